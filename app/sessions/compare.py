"""Compare two sessions, or all sessions of two time ranges of a job."""

from __future__ import annotations

import statistics
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from sqlalchemy import select
from sqlalchemy.orm import aliased

from app.analysis.arrivals.document import Arrivals
from app.analysis.diagnosis.finding import UNKNOWN
from app.analysis.report.document import Report
from app.errors import NotFoundError
from app.fixes.models import AppliedFix
from app.incidents.lifecycle import Incident
from app.incidents.models.facts import Facts
from app.incidents.reads import get_incident
from app.incidents.store import facts_of_row, sessions_with_facts
from app.jobs.models import Job
from app.platform.database.states import SessionState
from app.platform.database.unit_of_work import Reads
from app.sessions.compare_steps import (
    CauseChange,
    Difference,
    MetadataChanges,
    cause_changes,
    difference,
    metadata_changes,
)
from app.sessions.models.reports import open_report, read_document
from app.sessions.models.tables import OF_SESSION, Session, StoredReport, StoredVerdict
from app.sessions.read import SESSIONS, SessionRow, no_session


@dataclass(frozen=True, slots=True)
class ArrivalChange:
    """Change of the time that other ranks wait at collectives because of a rank."""

    rank: int
    """Global rank."""
    last_share_before: float | None
    """Share of its collectives at which it came last, in the session before."""
    last_share_after: float | None
    """Share of its collectives at which it came last, in the session after."""
    waited_for_before_s: float | None
    """Time that each other rank of a group waited for it, seconds per step, in the session before:
    the mean of the group that waited longest.
    """
    waited_for_after_s: float | None
    """The same in the session after."""

    @property
    def change_s(self) -> float:
        """Return the change of the time that each other rank waits, in seconds per step."""
        return (self.waited_for_after_s or 0.0) - (self.waited_for_before_s or 0.0)


def arrival_changes(before: Arrivals | None, after: Arrivals | None) -> tuple[ArrivalChange, ...]:
    """Return the changes of all ranks with collectives in either session, largest change first.

    Empty where one of the sessions has no collectives over ranks.
    """
    if before is None or after is None:
        return ()
    sides = [{arrival.rank: arrival for arrival in side.ranks} for side in (before, after)]
    changes = []
    for rank in {*sides[0], *sides[1]}:
        was, now = (side.get(rank) for side in sides)
        changes.append(
            ArrivalChange(
                rank,
                None if was is None else was.last_share,
                None if now is None else now.last_share,
                None if was is None else was.waited_for_s,
                None if now is None else now.waited_for_s,
            )
        )
    return tuple(sorted(changes, key=lambda change: (-abs(change.change_s), change.rank)))


# Limit of the sessions of a job offered for a comparison: the latest with a verdict.
CHOICES: Final = 50


@dataclass(frozen=True, slots=True)
class Side:
    """One session of a comparison; `report` is None while the session has no verdict."""

    row: SessionRow
    meta: Mapping[str, Any]
    report: Report | None
    arrivals: Arrivals | None = None  # exist also without a verdict


@dataclass(frozen=True, slots=True)
class Choice:
    """A session that users can choose for the comparison."""

    id: uuid.UUID
    number: int
    attempt: int
    received_at: datetime
    slowdown: float | None


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two sessions, and the changes from the first to the second."""

    now: datetime
    a: Side
    b: Side
    step_times: Difference | None  # recorded times; None if a session has no verdict
    causes: tuple[CauseChange, ...]
    arrivals: tuple[ArrivalChange, ...]  # empty if a session has no collectives
    metadata: MetadataChanges
    choices: Sequence[Choice]  # sessions of the job of `a`, newest first
    incident: Incident | None = None  # an incident resolved between the sessions
    applied: frozenset[str] = frozenset()  # titles of the fixes of `a` that were applied

    @property
    def same_shape(self) -> bool:
        """Return whether both sessions have the same DP and PP sizes."""
        return (self.a.row.dp, self.a.row.pp) == (self.b.row.dp, self.b.row.pp)


def compare_sessions(
    tx: Reads, a: uuid.UUID, b: uuid.UUID, incident: Incident | None = None
) -> Comparison:
    """Return the comparison of two sessions.

    Parameters
    ----------
    a, b : UUID
        The session before and the session after; `a` may be the later one.

    Raises
    ------
    NotFoundError
        There is no such session.
    """
    sides = _sides(tx, {a, b})
    for session_id in (a, b):
        if session_id not in sides:
            raise no_session(session_id)
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
    """Return an incident's latest session, the last session until its resolution, and the incident.

    Raises
    ------
    NotFoundError
        There is no such incident, or no session after it.
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
    """Return the job's last two sessions with a verdict, the earlier session first.

    Raises
    ------
    NotFoundError
        The job has fewer than two sessions with a verdict.
    """
    choices = _choices(tx, job)
    if len(choices) < 2:  # noqa: PLR2004 - two sides
        raise NotFoundError(f"Job {job} has no two sessions with a verdict to compare.")
    return choices[1].id, choices[0].id


def _sides(tx: Reads, wanted: set[uuid.UUID]) -> dict[uuid.UUID, Side]:
    rows = tx.session.execute(
        SESSIONS.query()
        .add_columns(Session.meta, StoredReport)
        .outerjoin(StoredReport, StoredReport.session_id == Session.id)
        .where(Session.id.in_(wanted))
    ).mappings()
    sides = {}
    for values in rows:
        [row] = SESSIONS.rows([values])
        meta, stored = values["meta"], values["StoredReport"]
        report, arrivals = None, None
        if stored is not None and row.state in SessionState.REPORTED:
            document = open_report(read_document(tx, stored))
            report = document if row.state is SessionState.ANALYZED else None
            arrivals = document.arrivals
        sides[row.id] = Side(row, meta, report, arrivals)
    return sides


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


# Limit of the sessions compared per time range: the latest ones of the range.
MOST_SESSIONS: Final = 500


@dataclass(frozen=True, slots=True)
class TimeSide:
    """A time range of a job with its sessions; `until` is excluded."""

    since: datetime
    until: datetime
    sessions: Sequence[Facts]  # sessions with a verdict, oldest first
    steps_s: Sequence[float]  # step times of all sessions, from their verdicts

    @property
    def step_times(self) -> list[float]:
        """Return the median step time of each session in seconds, oldest session first."""
        return [facts.step_time_s for facts in self.sessions if facts.step_time_s is not None]

    @property
    def slowdown(self) -> float | None:
        """Return the median of the sessions' slowdowns; None without a session."""
        slowdowns = [
            facts.headline.slowdown for facts in self.sessions if facts.headline is not None
        ]
        return statistics.median(slowdowns) if slowdowns else None

    @property
    def layouts(self) -> frozenset[str]:
        """Return the distinct parallel sizes of the sessions."""
        return frozenset(facts.layout for facts in self.sessions)

    def named(self, cause: str) -> int:
        """Return the number of sessions whose verdict names a cause."""
        return sum(any(named.cause == cause for named in facts.causes) for facts in self.sessions)


@dataclass(frozen=True, slots=True)
class CauseCount:
    """The number of sessions with a cause, in each of two time ranges."""

    cause: str
    before: int
    after: int


@dataclass(frozen=True, slots=True)
class TimesComparison:
    """Two time ranges of a job, and the changes between them."""

    now: datetime
    job: str
    a: TimeSide
    b: TimeSide
    step_times: Difference | None
    """Difference of the sessions' median step times; None if a range has none with a verdict."""
    within: Difference | None
    """Difference of the step times in all sessions; None if a range has none with a verdict."""
    causes: tuple[CauseCount, ...]  # sorted by the change of the share of sessions, largest first

    @property
    def same_sizes(self) -> bool:
        """Return whether the job had the same parallel sizes in all sessions of both ranges."""
        return len(self.a.layouts | self.b.layouts) <= 1


def compare_times(
    tx: Reads,
    job: str,
    before: tuple[datetime, datetime],
    after: tuple[datetime, datetime],
) -> TimesComparison:
    """Return the comparison of two time ranges of a job.

    Parameters
    ----------
    before, after : (datetime, datetime)
        Begin and excluded end.

    Raises
    ------
    NotFoundError
        There is no such job.
    """
    job_id = tx.session.execute(select(Job.id).where(Job.name == job)).scalar()
    if job_id is None:
        raise NotFoundError(f"There is no job {job}.")
    a, b = (_side(tx, job_id, *bounds) for bounds in (before, after))
    return TimesComparison(
        now=tx.now,
        job=job,
        a=a,
        b=b,
        step_times=_difference(a.step_times, b.step_times),
        within=_difference(a.steps_s, b.steps_s),
        causes=_causes(a, b),
    )


def _difference(before: Sequence[float], after: Sequence[float]) -> Difference | None:
    return difference(before, after) if before and after else None


def _side(tx: Reads, job_id: int, since: datetime, until: datetime) -> TimeSide:
    latest = (
        sessions_with_facts()
        .where(Session.job_id == job_id, Session.received_at >= since, Session.received_at < until)
        .order_by(Session.received_at.desc(), Session.id)
        .limit(MOST_SESSIONS)
    )
    rows = [row for row in tx.session.execute(latest) if row.document.headline is not None][::-1]
    steps_s = [step_s for row in rows for step_s in row.document.steps_s]
    return TimeSide(since, until, [facts_of_row(row) for row in rows], steps_s)


def _causes(a: TimeSide, b: TimeSide) -> tuple[CauseCount, ...]:
    names = {
        cause.cause
        for side in (a, b)
        for facts in side.sessions
        for cause in facts.causes
        if cause.cause != UNKNOWN
    }
    counts = [CauseCount(name, a.named(name), b.named(name)) for name in names]

    def changed(count: CauseCount) -> float:
        before = count.before / max(1, len(a.sessions))
        return abs(count.after / max(1, len(b.sessions)) - before)

    return tuple(sorted(counts, key=lambda count: (-changed(count), count.cause)))
