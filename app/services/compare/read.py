"""The read side of comparing two sessions."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import select
from sqlalchemy.orm import aliased

from app.db.documents import open_report
from app.db.models.fixes import AppliedFix
from app.db.models.sessions import OF_SESSION, Job, Session, StoredReport, StoredVerdict
from app.db.reports import read_document
from app.db.states import SessionState
from app.errors import NotFoundError
from app.services.alerts.incident_reads import get_incident
from app.services.compare.arrivals import ArrivalChange, arrival_changes
from app.services.compare.changes import (
    CauseChange,
    MetadataChanges,
    cause_changes,
    metadata_changes,
)
from app.services.compare.step_times import Difference, difference
from app.services.sessions.read import SESSIONS, SessionRow

if TYPE_CHECKING:
    from app.alerts.incidents import Incident
    from app.analysis.arrivals.document import Arrivals
    from app.analysis.report.document import Report
    from app.db.unit_of_work import Reads

# Sessions of a job that can be chosen from: the latest with a verdict.
CHOICES: Final = 50


@dataclass(frozen=True, slots=True)
class Side:
    """A session of a comparison; `report` is None where it has no verdict (yet)."""

    row: SessionRow
    meta: Mapping[str, Any]
    report: Report | None
    arrivals: Arrivals | None = None  # those need no verdict


@dataclass(frozen=True, slots=True)
class Choice:
    """A session that can be compared."""

    id: uuid.UUID
    number: int
    attempt: int
    received_at: datetime
    slowdown: float | None


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two sessions, and what changed from the first to the second."""

    now: datetime
    a: Side
    b: Side
    step_times: Difference | None  # recorded; None where one side has no verdict
    causes: tuple[CauseChange, ...]
    arrivals: tuple[ArrivalChange, ...]  # empty where one side has none
    metadata: MetadataChanges
    choices: Sequence[Choice]  # of the job of `a`, the newest first
    incident: Incident | None = None  # over, and compared before and after
    applied: frozenset[str] = frozenset()  # titles of the fixes of `a` that were applied

    @property
    def same_shape(self) -> bool:
        """Return whether both have the same workers."""
        return (self.a.row.dp, self.a.row.pp) == (self.b.row.dp, self.b.row.pp)


def compare_sessions(
    tx: Reads, a: uuid.UUID, b: uuid.UUID, incident: Incident | None = None
) -> Comparison:
    """Return two sessions side by side.

    Parameters
    ----------
    a, b : UUID
        The earlier and the later one, as far as whoever asks is concerned.

    Raises
    ------
    NotFoundError
        If there is no such session.
    """
    sides = _sides(tx, {a, b})
    for wanted in (a, b):
        if wanted not in sides:
            raise NotFoundError(f"There is no session {wanted}.")
    before, after = sides[a], sides[b]
    steps: Difference | None = None
    causes: tuple[CauseChange, ...] = ()
    if before.report is not None and after.report is not None:
        steps = difference(before.report.step_times.recorded, after.report.step_times.recorded)
        causes = cause_changes(before.report, after.report)
    return Comparison(
        now=tx.now,
        a=before,
        b=after,
        step_times=steps,
        causes=causes,
        arrivals=arrival_changes(before.arrivals, after.arrivals),
        metadata=metadata_changes(before.meta, after.meta),
        choices=_choices(tx, before.row.job),
        incident=incident,
        applied=frozenset(
            tx.session.execute(select(AppliedFix.title).where(AppliedFix.session_id == a)).scalars()
        ),
    )


def sessions_of_incident(
    tx: Reads, incident_id: uuid.UUID
) -> tuple[uuid.UUID, uuid.UUID, Incident]:
    """Return the session that showed an incident last, and the last one before it was resolved.

    Raises
    ------
    NotFoundError
        If there is no such incident, or no session after it.
    """
    incident = get_incident(tx, incident_id).row.incident
    facts = incident.facts
    if facts is None or incident.resolved_at is None:
        raise NotFoundError(f"Incident {incident_id} has nothing before and after it to compare.")
    later = aliased(Session)
    after = tx.session.execute(
        select(later.id)
        .join(StoredVerdict, StoredVerdict.session_id == later.id)
        .join(Session, Session.job_id == later.job_id)
        .where(
            Session.id == facts.session,
            later.received_at > Session.received_at,
            later.received_at <= incident.resolved_at,
        )
        .order_by(later.received_at.desc())
        .limit(1)
    ).scalar()
    if after is None:
        raise NotFoundError(f"No session came between incident {incident_id} and its end.")
    return facts.session, after, incident


def latest_two(tx: Reads, job: str) -> tuple[uuid.UUID, uuid.UUID]:
    """Return the last two sessions of a job that have a verdict, the earlier one first.

    Raises
    ------
    NotFoundError
        If there are no two.
    """
    found = _choices(tx, job)
    if len(found) < 2:  # noqa: PLR2004 - two sides
        raise NotFoundError(f"Job {job} has no two sessions with a verdict to compare.")
    return found[1].id, found[0].id


def _sides(tx: Reads, wanted: set[uuid.UUID]) -> dict[uuid.UUID, Side]:
    rows = tx.session.execute(
        SESSIONS.query()
        .add_columns(Session.meta, StoredReport)
        .outerjoin(StoredReport, StoredReport.session_id == Session.id)
        .where(Session.id.in_(wanted))
    ).mappings()
    found = {}
    for values in rows:
        [row] = SESSIONS.rows([values])
        meta, stored = values["meta"], values["StoredReport"]
        report, arrivals = None, None
        if stored is not None and row.state in SessionState.REPORTED:
            document = open_report(read_document(tx, stored))
            report = document if row.state is SessionState.ANALYZED else None
            arrivals = document.arrivals
        found[row.id] = Side(row, meta, report, arrivals)
    return found


def _choices(tx: Reads, job: str) -> list[Choice]:
    rows = tx.session.execute(
        select(
            Session.id,
            Session.number,
            Session.attempt,
            Session.received_at,
            StoredVerdict.slowdown,
        )
        .join(Job)
        .join(*OF_SESSION)
        .where(Job.name == job, Session.state == SessionState.ANALYZED)
        .order_by(Session.received_at.desc(), Session.id)
        .limit(CHOICES)
    )
    return [Choice(*row) for row in rows]
