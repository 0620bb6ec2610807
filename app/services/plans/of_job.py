"""What is known of the plan of a session's whole job: whether it can be asked for, what it says."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import Double, select

from app.analysis.trace.metadata import parse_metadata
from app.db.models.plans import Plan
from app.db.models.sessions import Session
from app.db.states import PlanState, SessionState
from app.errors import InvalidMetadataError, InvalidSpecError
from app.inputs.plans.session import session_job

if TYPE_CHECKING:
    from collections.abc import Mapping

    from app.db.unit_of_work import Reads


@dataclass(frozen=True, slots=True)
class WholeJob:
    """The plan of the whole job that a session measured; times in ms.

    `lacking` are the metadata without which it cannot be planned, else why it cannot.
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
        """Return whether it can be planned."""
        return not self.lacking and not self.unfit


def whole_job_of(tx: Reads, session_id: uuid.UUID) -> WholeJob | None:
    """Return the plan of a session's whole job; None without a verdict, or without operations."""
    row = tx.session.execute(
        select(Session.number, Session.meta, Session.state, Session.trace_removed_at).where(
            Session.id == session_id
        )
    ).one_or_none()
    if row is None or row.state != SessionState.ANALYZED or row.trace_removed_at is not None:
        return None
    return read_whole_job(tx, session_id, row.number, row.meta)


def read_whole_job(
    tx: Reads, session_id: uuid.UUID, number: int, meta: Mapping[str, Any]
) -> WholeJob:
    """Return the plan of the whole job of an analyzed session."""
    try:
        session_job(parse_metadata(meta))
    except InvalidSpecError as error:
        missing = [fault.column for fault in error.faults if fault.code == "missing"]
        lacking = tuple(column for column in missing if column)
        return WholeJob(session_id, number, lacking, "" if lacking else error.message)
    except InvalidMetadataError as error:
        return WholeJob(session_id, number, unfit=error.message)
    found = tx.session.execute(
        select(
            Plan.id,
            Plan.state,
            Plan.outline["iteration_time_ms"]["simulated"].astext.cast(Double).label("planned"),
            Plan.spec["as_it_runs"]["iteration_ms"].astext.cast(Double).label("running"),
        )
        .where(Plan.spec["as_it_runs"]["session"].astext == str(session_id))
        .order_by(Plan.created_at.desc(), Plan.id)
        .limit(1)
    ).one_or_none()
    if found is None:
        return WholeJob(session_id, number)
    return WholeJob(
        session_id,
        number,
        plan=found.id,
        state=found.state,
        iteration_ms=found.planned,
        running_ms=found.running,
    )
