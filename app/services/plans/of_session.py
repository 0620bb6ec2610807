"""Use case: ask for the plan of the whole job that a stored session shows."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Final

from app.analysis.diagnosis.observation import Observation
from app.analysis.mitigation.running import RunningJob, running_job
from app.analysis.trace.metadata import parse_metadata
from app.errors import ConflictError, UnanalyzableError
from app.inputs.plans.request import read_request
from app.inputs.plans.session import session_job, spec_of_session
from app.services.plans.requests import Submitted, submit_plan
from app.services.sessions.read import get_session
from app.services.sessions.replays.prepared import prepared_session
from app.services.sessions.replays.timelines import StoredTrace, stored_trace, whole_session
from app.services.sessions.reports import report_document

if TYPE_CHECKING:
    from app.services.container import Container

NOT_MEASURED: Final = "plan.not_measured"


def plan_session(container: Container, session_id: uuid.UUID) -> Submitted:
    """Store a plan of a session's whole job, as measured; the same session is the same plan.

    Raises
    ------
    NotFoundError
        If there is no such session, or no report or trace of it.
    InvalidSpecError
        ``plan.metadata_missing`` or ``plan.metadata_unfit``, with the keys.
    ConflictError
        ``plan.not_measured``: the session has no verdict, or does not say what a block takes.
    BusyError
        If others keep asking.
    """
    with container.reading() as tx:
        row = get_session(tx, session_id, container.settings).row
        if row.headline is None:
            raise ConflictError(
                f"The session is {row.state}; only an analyzed one with a verdict is measured.",
                code=NOT_MEASURED,
            )
        report = report_document(tx, session_id)
        stored = stored_trace(tx, session_id)
    job = session_job(parse_metadata(stored.meta))
    running = _running(container, session_id, stored, job.layers)
    recorded = report.step_times.recorded
    document = spec_of_session(job, running, sum(recorded) / len(recorded), str(session_id))
    name = f"{row.job}, session {row.number}"
    return submit_plan(container, read_request({"spec": document, "name": name}))


def _running(
    container: Container,
    session_id: uuid.UUID,
    stored: StoredTrace,
    layers: tuple[tuple[int, ...], ...],
) -> RunningJob:
    try:
        with prepared_session(container, session_id) as replayed, whole_session():
            running = running_job(Observation(stored.unpack(), replayed.main), layers)
    except UnanalyzableError as error:
        raise ConflictError(error.message, code=NOT_MEASURED) from error
    if running is None:
        raise ConflictError(
            "Stages do not all compute the same microbatches, forward and backward.",
            code=NOT_MEASURED,
        )
    return running
