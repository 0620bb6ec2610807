"""Costs of hosts over a period: GPU-hours of each verdict, sums by host, whole weeks of sums.

A verdict counts until the next session of its job, for at most six hours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Annotated, Any, Final

from pydantic import Field
from sqlalchemy import (
    ARRAY,
    CTE,
    ColumnElement,
    Double,
    Integer,
    Select,
    Subquery,
    Text,
    and_,
    cast,
    false,
    func,
    literal,
    or_,
    select,
    true,
    union_all,
)
from sqlalchemy.dialects.postgresql import array

from app.analysis.diagnosis.causes.registry import KINDS
from app.hosts.models import HostReading, HostRepair, HostWeek
from app.hosts.repairs import Repair
from app.jobs.models import Job
from app.platform.database.columns import total
from app.platform.database.unit_of_work import Reads
from app.sessions.models.tables import Session
from app.web.lists import Column, Listing, Page

# Longest time for which a verdict counts: after it the job may have ended or changed.
LONGEST_VERDICT: Final = timedelta(hours=6)
_HOUR_S: Final = 3600.0


@dataclass(frozen=True, slots=True)
class Span:
    """A period; a bound of None means no bound."""

    since: datetime | None = None
    until: datetime | None = None

    def holds(self, moment: ColumnElement[datetime]) -> list[ColumnElement[bool]]:
        """Return the SQL conditions that a time is in the period."""
        conditions = []
        if self.since is not None:
            conditions.append(moment >= self.since)
        if self.until is not None:
            conditions.append(moment <= self.until)
        return conditions


def seconds(time: Any) -> ColumnElement[float]:  # noqa: ANN401 - an interval
    """Return the seconds of an interval as a double; ``EXTRACT`` returns slow decimals."""
    return func.date_part("epoch", time, type_=Double)


def priced(
    tx: Reads,
    span: Span,
    host: str | None = None,
    *,
    slow: bool = False,
    durations: CTE | None = None,
) -> CTE:
    """Return the readings of a period with the cost of each, GPU-hours.

    A verdict counts from its session until the next session of the job, for at most
    `LONGEST_VERDICT`; the latest verdict of a job counts as long as the previous one, and at least
    for the analyzed steps.

    Parameters
    ----------
    slow : bool
        Return only readings that a cause names: other readings have no cost.
    durations : CTE, optional
        Result of `verdict_durations` for this period or a longer one, to share within a statement.
    """
    if durations is None:
        durations = verdict_durations(tx, span)
    verdict_s = func.greatest(HostReading.measured_s, seconds(durations.c.duration))
    query = (
        select(
            HostReading.host,
            HostReading.session_id,
            HostReading.job_id,
            Job.name.label("job"),
            HostReading.received_at,
            HostReading.ranks,
            HostReading.workers,
            HostReading.slowdown,
            HostReading.computing,
            HostReading.cause,
            HostReading.other_cause,
            HostReading.gpus,
            HostReading.guessed,
            (HostReading.lost_each_hour * verdict_s / _HOUR_S).label("cost"),
        )
        .join(durations, durations.c.id == HostReading.session_id)
        # An outer join, which the planner removes from statements that do not use the job's name.
        .outerjoin(Job, Job.id == HostReading.job_id)
        .where(*span.holds(HostReading.received_at.expression))
    )
    if host is not None:
        query = query.where(HostReading.host == host)
    if slow:
        query = query.where(HostReading.cause.is_not(None))
    return query.cte("priced")


def verdict_durations(tx: Reads, span: Span) -> CTE:
    """Return the sessions of a period with the interval for which each session's verdict counts."""
    received, order = Session.received_at, (Session.received_at, Session.id)
    following = func.lead(received).over(partition_by=Session.job_id, order_by=order)
    before = func.lag(received).over(partition_by=Session.job_id, order_by=order)
    gap_before = received - before
    end = func.least(
        func.coalesce(following, received + gap_before, received),
        received + LONGEST_VERDICT,
        literal(tx.now if span.until is None else min(tx.now, span.until)),
    )
    columns = (Session.id, Session.job_id, Session.world, Session.labels, received)
    query = select(*columns, (end - received).label("duration"))
    if span.since is not None:
        # An earlier session matters only for the interval between it and the next session.
        query = query.where(received >= span.since - LONGEST_VERDICT)
    return query.cte("verdict_durations")


# Largest numbers of hosts on a page and in a file.
PAGE: Final = 50
MOST: Final = 10_000
# Number of slow sessions from which on a host is blamed: a single one may be due to chance or to a
# neighbor.
BLAMED_FROM: Final = 2


class Show(StrEnum):
    """Choices of the hosts that a list shows."""

    BLAMED = "blamed"
    REPAIRED = "repaired"
    ALL = "all"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSums:
    """Sums of a host over a period.

    `slow_sessions` counts the sessions in which a cause named a worker on the host; a host with two
    or more is `blamed`.
    """

    host: Annotated[str, Column(sort="host")]
    cost_gpu_hours: Annotated[
        float,
        Column(sort="-cost"),
        Field(
            description="What these causes cost while each verdict stood: until the job's next "
            "session, at most 6 h."
        ),
    ]
    blamed: bool
    slow_sessions: Annotated[int, Column(sort="-sessions")]
    sessions: int
    slow_jobs: Annotated[int, Column(sort="-jobs")]
    jobs: int
    slowdown_worst: Annotated[float, Column(sort="-worst")]
    computing_worst: Annotated[
        float | None, Field(description="The largest time of its computing against peers.")
    ]
    causes: tuple[str, ...]
    guessed: Annotated[
        bool, Field(description="Whether the name may be that of a container, which changes.")
    ]
    first_seen: Annotated[datetime, Column(csv=None)]
    last_seen: Annotated[datetime, Column(sort="-seen")]
    # Largest number of ranks of one job on the host.
    ranks: Annotated[int, Field(exclude=True)]
    # Whether a cause of the host's latest session names a worker on it.
    is_slow: Annotated[bool, Field(exclude=True)]


@dataclass(frozen=True, slots=True, kw_only=True)
class HostRow(HostSums):
    """A host over a period, with details that are read only for the hosts of a page.

    `slow_sessions` counts the sessions in which a cause named a worker on the host; a host with two
    or more is `blamed`.
    """

    slowdown_now: Annotated[
        float, Field(description="That of its slowest worker alone, in its latest session.")
    ]
    gpus: Annotated[
        Sequence[str], Column(csv="gpus_named"), Field(description="GPUs that causes name.")
    ]
    incidents: Annotated[int, Column(csv=None), Field(description="Sent incidents that name it.")]
    firing: Annotated[bool, Column(csv=None)]
    # Slowdowns in the host's latest sessions, oldest first.
    trend: Annotated[Sequence[float], Field(exclude=True)]
    # Latest repair of the host; None in a brief list.
    repair: Annotated[Repair | None, Field(exclude=True)]


HOSTS: Final = Listing(HostSums, default_sort="-cost")


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over all hosts of a period."""

    hosts: int
    ranks: int
    blamed: int  # hosts
    repaired: int  # hosts
    cost: float  # of the blamed hosts, GPU-hours
    first: str | None  # display name of the most expensive blamed host
    first_cost: float  # its cost, GPU-hours


@dataclass(frozen=True, slots=True)
class Hosts:
    """A page of hosts, with sums over all hosts."""

    now: datetime
    totals: Totals
    page: Page[HostRow]
    look_alikes: Sequence[HostSums]


# Weeks begin on Mondays at midnight, UTC, as the database's `host_week_of` counts them.
WEEK: Final = timedelta(days=7)
_FIRST: Final = datetime(2001, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Weeks:
    """The whole weeks within a period, whose sums are stored; its ends are summed from readings."""

    # Start of the first week and end of the last week; None: no bound. Both are equal if the period
    # contains no whole week.
    first: datetime | None
    end: datetime | None

    def holds(self, week: ColumnElement[datetime]) -> list[ColumnElement[bool]]:
        """Return the SQL conditions that a week with this start is one of these weeks."""
        conditions = []
        if self.first is not None:
            conditions.append(week >= self.first)
        if self.end is not None:
            conditions.append(week < self.end)
        return conditions

    def leaves(self, moment: ColumnElement[datetime]) -> ColumnElement[bool]:
        """Return the SQL condition that a time is in none of these weeks."""
        if self.first is None and self.end is None:
            return ~true()
        if self.first is None:
            return moment >= self.end
        if self.end is None:
            return moment < self.first
        return or_(moment < self.first, moment >= self.end)


def weeks_in(span: Span) -> Weeks:
    """Return the whole weeks within a period.

    Examples
    --------
    >>> from app.hosts.costs import Span
    >>> weeks_in(Span(since=datetime(2026, 11, 18, tzinfo=UTC))).first.isoformat()
    '2026-11-23T00:00:00+00:00'
    """
    first = None if span.since is None else _begin(span.since, up=True)
    end = None if span.until is None else _begin(span.until, up=False)
    if first is not None and end is not None:
        end = max(first, end)
    return Weeks(first, end)


def _begin(moment: datetime, *, up: bool) -> datetime:
    weeks, rest = divmod(moment - _FIRST, WEEK)
    return _FIRST + (weeks + (up and bool(rest))) * WEEK


def ledger(tx: Reads, span: Span, words: str) -> CTE:
    """Return the query of all hosts with sums, repairs, and matches of the searched words.

    Sums of whole weeks are stored. Single readings are read, from an index, only at the ends of the
    period, and costs are computed only for the few readings that a cause names. Everything is first
    summed by job, so that the words are compared with few rows.
    """
    of_all, of_slow = _seen(span, words.split()), _slow(tx, span, words.split())
    seen, slow = of_all.c, of_slow.c
    named = [
        or_(seen[f"word_{at}"], func.coalesce(slow[f"word_{at}"], false()))
        for at in range(len(words.split()))
    ]
    slow_sessions = func.coalesce(slow.sessions, 0)
    return (
        select(
            seen.host,
            func.coalesce(slow.cost, 0.0).label("cost_gpu_hours"),
            (slow_sessions >= BLAMED_FROM).label("blamed"),
            slow_sessions.label("slow_sessions"),
            seen.sessions,
            func.coalesce(slow.jobs, 0).label("slow_jobs"),
            seen.jobs,
            seen.worst.label("slowdown_worst"),
            seen.computing.label("computing_worst"),
            func.coalesce(slow.causes, array([], type_=Text)).label("causes"),
            # Details of the row, which a later statement reads only for the hosts of the page.
            false().label("guessed"),
            seen.first_seen,
            seen.last_seen,
            seen.ranks,
            func.coalesce(slow.last_seen == seen.last_seen, false()).label("is_slow"),
            and_(true(), *named).label("matches"),
            seen.host.in_(select(HostRepair.host)).label("repaired"),
        )
        .select_from(of_all)
        .outerjoin(of_slow, slow.host == seen.host)
        .cte("ledger")
        # Materialized, since several parts of the statement read it.
        .prefix_with("MATERIALIZED", dialect="postgresql")
    )


def _seen(span: Span, words: Sequence[str]) -> Subquery:
    """Return the query of each host's sums over all readings, and of the words that match it."""
    both = (
        union_all(
            select(
                HostWeek.host,
                HostWeek.job_id,
                HostWeek.ranks,
                HostWeek.sessions,
                HostWeek.slowdown.label("worst"),
                HostWeek.computing,
                HostWeek.first_seen,
                HostWeek.last_seen,
            ).where(*weeks_in(span).holds(HostWeek.week.expression)),
            _ends(span),
        )
        .subquery("both")
        .c
    )
    parts = (
        select(
            both.host,
            both.job_id,
            func.max(both.ranks).label("ranks"),
            func.sum(both.sessions).label("sessions"),
            func.max(both.worst).label("worst"),
            func.max(both.computing).label("computing"),
            func.min(both.first_seen).label("first_seen"),
            func.max(both.last_seen).label("last_seen"),
        )
        .group_by(both.host, both.job_id)
        .subquery("seen_in_jobs")
    )
    part = parts.c
    # There are fewer jobs than hosts, so the words are compared once with each job's name.
    named = select(
        Job.id,
        *(
            Job.name.icontains(word, autoescape=True).label(f"word_{at}")
            for at, word in enumerate(words)
        ),
    ).subquery("named")
    has = [
        or_(part.host.icontains(word, autoescape=True), func.bool_or(named.c[f"word_{at}"]))
        for at, word in enumerate(words)
    ]
    query = select(
        part.host,
        func.max(part.ranks).label("ranks"),
        cast(func.sum(part.sessions), Integer).label("sessions"),
        func.count().label("jobs"),
        func.max(part.worst).label("worst"),
        func.max(part.computing).label("computing"),
        func.min(part.first_seen).label("first_seen"),
        func.max(part.last_seen).label("last_seen"),
        *(matches.label(f"word_{at}") for at, matches in enumerate(has)),
    ).group_by(part.host)
    return (query.join(named, named.c.id == part.job_id) if words else query).subquery("seen")


def _ends(span: Span) -> Select[*tuple[Any, ...]]:
    """Return the query of the sums of readings before and after the whole weeks of a period."""
    received = HostReading.received_at
    return (
        select(
            HostReading.host,
            HostReading.job_id,
            func.max(HostReading.ranks),
            func.count(),
            func.max(HostReading.slowdown),
            func.max(HostReading.computing),
            func.min(received),
            func.max(received),
        )
        .where(*span.holds(received.expression), weeks_in(span).leaves(received.expression))
        .group_by(HostReading.host, HostReading.job_id)
    )


def _slow(tx: Reads, span: Span, words: Sequence[str]) -> Subquery:
    """Return the query of each host's sums over slow readings, and of words that match a cause."""
    reading = priced(tx, span, slow=True).c
    causes = [
        [name for name, kind in KINDS.items() if word.lower() in kind.title.lower()]
        for word in words
    ]
    return (
        select(
            reading.host,
            total(reading.cost).label("cost"),
            func.count().label("sessions"),
            func.count(reading.job_id.distinct()).label("jobs"),
            func.max(reading.received_at).label("last_seen"),
            func.array_agg(reading.cause.distinct(), type_=ARRAY(Text)).label("causes"),
            *(
                func.bool_or(reading.cause.in_(names)).label(f"word_{at}")
                for at, names in enumerate(causes)
            ),
        )
        .group_by(reading.host)
        .subquery("slow")
    )
