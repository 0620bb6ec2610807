"""Plan of a session's whole job: whether the job can be planned, the request, the result."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from pydantic import TypeAdapter
from sqlalchemy import Double, Select, Text, cast, null, select, true

from app.analysis.diagnosis.observation import Observation
from app.analysis.mitigation.layers.costs import running_job
from app.analysis.report.fix_outcomes import Calibration
from app.analysis.trace.metadata import parse_metadata
from app.errors import ConflictError, InvalidMetadataError, InvalidSpecError, UnanalyzableError
from app.fixes.applied import FIXES, MOST_LISTED, Realized, applied, calibrations_of, measured_gains
from app.plans.models import Plan
from app.plans.requests import Submitted, submit_plan
from app.plans.specs.session import session_job, spec_of_session
from app.plans.specs.spec import read_request
from app.platform.container import Container
from app.platform.database.columns import as_json
from app.platform.database.projects import Project
from app.platform.database.states import PlanState, SessionState
from app.platform.database.unit_of_work import Reads
from app.sessions.models.tables import Session
from app.sessions.read import get_session, report_document
from app.sessions.replays import prepared_session, stored_trace, whole_session


@dataclass(frozen=True, slots=True)
class WholeJob:
    """Plan of a session's whole job, or the reason why the job cannot be planned; times in ms.

    `lacking` are the keys of missing metadata; `unfit` is any other reason, as a sentence.
    """

    session: uuid.UUID
    number: int
    lacking: tuple[str, ...] = ()
    unfit: str = ""
    plan: uuid.UUID | None = None
    state: PlanState | None = None
    iteration_ms: float | None = None
    running_ms: float | None = None

    @property
    def answerable(self) -> bool:
        """Return whether the job can be planned."""
        return not self.lacking and not self.unfit


@dataclass(frozen=True, slots=True)
class _PlannedSession:
    """Session with the newest plan of its job."""

    number: int
    meta: dict[str, Any]
    plan: uuid.UUID | None
    state: PlanState | None
    planned: float | None
    running: float | None


_PLANNED_SESSIONS: Final = TypeAdapter(tuple[_PlannedSession, ...])


def whole_job_query(session_id: uuid.UUID) -> Select[*tuple[Any, ...]]:
    """Return the query of `whole_job`; it yields no row without a verdict or operations."""
    newest = (
        select(
            Plan.id.label("plan"),
            Plan.state,
            Plan.outline["iteration_time_ms"]["simulated"].astext.cast(Double).label("planned"),
            Plan.spec["as_it_runs"]["iteration_ms"].astext.cast(Double).label("running"),
        )
        .where(Plan.spec["as_it_runs"]["session"].astext == cast(Session.id, Text))
        .order_by(Plan.created_at.desc(), Plan.id)
        .limit(1)
        .lateral()
    )
    return (
        select(
            Session.number,
            Session.meta,
            newest.c.plan,
            newest.c.state,
            newest.c.planned,
            newest.c.running,
        )
        .outerjoin(newest, true())
        .where(
            Session.id == session_id,
            Session.state == SessionState.ANALYZED,
            Session.trace_removed_at.is_(None),
        )
    )


def whole_job(session_id: uuid.UUID, rows: object) -> WholeJob | None:
    """Return the plan of a session's whole job; None for a session without verdict or operations.

    Parameters
    ----------
    rows : object
        Result of `whole_job_query` as JSON.
    """
    row = next(iter(_PLANNED_SESSIONS.validate_python(rows or ())), None)
    if row is None:
        return None
    try:
        session_job(parse_metadata(row.meta))
    except InvalidSpecError as error:
        missing = [fault.column for fault in error.faults if fault.code == "missing"]
        lacking = tuple(column for column in missing if column)
        return WholeJob(session_id, row.number, lacking, "" if lacking else error.message)
    except InvalidMetadataError as error:
        return WholeJob(session_id, row.number, unfit=error.message)
    return WholeJob(
        session_id,
        row.number,
        plan=row.plan,
        state=row.state,
        iteration_ms=row.planned,
        running_ms=row.running,
    )


NOT_MEASURED: Final = "plan.not_measured"


def plan_session(container: Container, session_id: uuid.UUID) -> Submitted:
    """Submit a plan of a session's whole job with the session's measured times.

    Raises
    ------
    NotFoundError
        There is no such session, or the session has no report or no trace.
    InvalidSpecError
        ``plan.metadata_missing`` or ``plan.metadata_unfit``, with the metadata keys.
    ConflictError
        ``plan.not_measured``: the session has no verdict, or no separable times of blocks.
    BusyError
        If too many replays are under way.
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
    try:
        with prepared_session(container, session_id) as replayed, whole_session():
            running = running_job(Observation(stored.unpack(), replayed.main), job.layers)
    except UnanalyzableError as error:
        raise ConflictError(error.message, code=NOT_MEASURED) from error
    if running is None:
        raise ConflictError(
            "Stages do not all compute the same microbatches, forward and backward.",
            code=NOT_MEASURED,
        )
    recorded = report.step_times.recorded
    document = spec_of_session(job, running, sum(recorded) / len(recorded), str(session_id))
    name = f"{row.job}, session {row.number}"
    return submit_plan(container, read_request({"spec": document, "name": name}))


@dataclass(frozen=True, slots=True)
class Remedies:
    """Applied fixes (newest first), calibrations of predicted gains, and the whole job's plan.

    The keys of `calibrations` are codes of fixes; the key ``""`` covers all fixes together.
    `whole_job` is None if it is not requested, or if the session has no verdict or no operations.
    """

    applied: Sequence[Realized]
    calibrations: Mapping[str, Calibration]
    whole_job: WholeJob | None


def remedies(  # noqa: PLR0913 - filters of the fixes, and the plan
    tx: Reads,
    *,
    job: str | None = None,
    session: uuid.UUID | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    most: int = MOST_LISTED,
    planned_by: uuid.UUID | None = None,
) -> Remedies:
    """Return the applied fixes and the plan of the whole job, read in one statement.

    Parameters
    ----------
    job, session, since, until, most
        See `app.fixes.applied.realized_fixes`.
    planned_by : UUID, optional
        Session whose whole job's plan is requested.
    """
    listed = FIXES.query().where(*applied(job, session, since, until)).order_by(*FIXES.ties)
    planned = null() if planned_by is None else as_json(whole_job_query(planned_by))
    fixes, measured, plans = tx.session.execute(
        select(as_json(listed.limit(most)), as_json(measured_gains()), planned)
        .select_from(Project)
        .where(Project.id == tx.scope.project_id)
    ).one()
    return Remedies(
        FIXES.rows(fixes or ()),
        calibrations_of(
            (row["action"], row["predicted_gain"], row["realized_gain"]) for row in measured or ()
        ),
        None if planned_by is None else whole_job(planned_by, plans),
    )
