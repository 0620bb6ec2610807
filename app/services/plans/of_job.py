"""What is known of the plan of a session's whole job: whether it can be asked for, what it says."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pydantic import TypeAdapter
from sqlalchemy import Double, Text, cast, select, true

from app.analysis.trace.metadata import parse_metadata
from app.db.models.plans import Plan
from app.db.models.sessions import Session
from app.db.states import PlanState, SessionState
from app.errors import InvalidMetadataError, InvalidSpecError
from app.inputs.plans.session import session_job

if TYPE_CHECKING:
    from sqlalchemy import Select


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


@dataclass(frozen=True, slots=True)
class _Found:
    """A session with its newest plan."""

    number: int
    meta: dict[str, Any]
    plan: uuid.UUID | None
    state: PlanState | None
    planned: float | None
    running: float | None


_FOUND: Final = TypeAdapter(tuple[_Found, ...])


def whole_job_query(session_id: uuid.UUID) -> Select[*tuple[Any, ...]]:
    """Return the query of what `whole_job` reads: no row without a verdict or operations."""
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
    """Return the plan of a session's whole job; None without a verdict, or without operations.

    Parameters
    ----------
    rows : object
        What `whole_job_query` found, as JSON.
    """
    row = next(iter(_FOUND.validate_python(rows or ())), None)
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
