"""The read side of comparing two times of a job: all sessions of one against all of the other."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Final

from sqlalchemy import select

from app.alerts.facts import Facts
from app.analysis.diagnosis.finding import UNKNOWN
from app.db.models.sessions import Job, Session
from app.errors import NotFoundError
from app.services.alerts.facts import facts_of_row, sessions_with_facts
from app.services.compare.step_times import Difference, difference

if TYPE_CHECKING:
    from app.db.unit_of_work import Reads

# Sessions of a time that are read: the latest ones.
MOST_SESSIONS: Final = 500


@dataclass(frozen=True, slots=True)
class TimeSide:
    """A time of a job; `until` is not part of it."""

    since: datetime
    until: datetime
    sessions: Sequence[Facts]  # those with a verdict, oldest first
    steps_s: Sequence[float]  # steps of these sessions, as far as their verdicts have them

    @property
    def step_times(self) -> list[float]:
        """Return the median step of each session, seconds."""
        return [one.step_time_s for one in self.sessions if one.step_time_s is not None]

    @property
    def slowdown(self) -> float | None:
        """Return the median slowdown."""
        found = [one.headline.slowdown for one in self.sessions if one.headline is not None]
        return statistics.median(found) if found else None

    @property
    def layouts(self) -> frozenset[str]:
        """Return the sizes that the job had."""
        return frozenset(one.layout for one in self.sessions)

    def named(self, cause: str) -> int:
        """Return in how many sessions a cause is named."""
        return sum(any(one.cause == cause for one in facts.causes) for facts in self.sessions)


@dataclass(frozen=True, slots=True)
class CauseCount:
    """A cause, and in how many sessions of each time it is named."""

    cause: str
    before: int
    after: int


@dataclass(frozen=True, slots=True)
class TimesComparison:
    """Two times of a job."""

    now: datetime
    job: str
    a: TimeSide
    b: TimeSide
    # of the sessions' median steps, and of the steps within the sessions; None where one side
    # has none
    step_times: Difference | None
    within: Difference | None
    causes: tuple[CauseCount, ...]  # the one whose share of sessions changed most first

    @property
    def same_sizes(self) -> bool:
        """Return whether the job had the same sizes throughout."""
        return len(self.a.layouts | self.b.layouts) <= 1


def compare_times(
    tx: Reads,
    job: str,
    before: tuple[datetime, datetime],
    after: tuple[datetime, datetime],
) -> TimesComparison:
    """Return two times of a job side by side.

    Parameters
    ----------
    before, after : (datetime, datetime)
        Begin and end; the end is not part of it.

    Raises
    ------
    NotFoundError
        If there is no such job.
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
    found = [CauseCount(name, a.named(name), b.named(name)) for name in names]

    def changed(one: CauseCount) -> float:
        before = one.before / max(1, len(a.sessions))
        return abs(one.after / max(1, len(b.sessions)) - before)

    return tuple(sorted(found, key=lambda one: (-changed(one), one.cause)))
