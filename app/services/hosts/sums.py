"""Every host of a time with its sums, over all jobs and sessions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import (
    ARRAY,
    Integer,
    Text,
    and_,
    cast,
    false,
    func,
    or_,
    select,
    true,
    union_all,
)
from sqlalchemy.dialects.postgresql import array

from app.analysis.diagnosis.causes.registry import KINDS
from app.db.models.hosts import HostReading, HostRepair, HostWeek
from app.db.models.sessions import Job
from app.db.sums import total
from app.services.hosts.costs import Span, priced
from app.services.hosts.listed import BLAMED_FROM
from app.services.hosts.weeks import weeks_in

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import CTE, Select, Subquery

    from app.db.unit_of_work import Reads


def ledger(tx: Reads, span: Span, words: str) -> CTE:
    """Return every host with its sums, whether it was repaired, and whether it has the words.

    What whole weeks add up to is kept; only readings at the ends of the time are counted one by
    one, from an index, and only those that a cause names, which are few, are priced. All is first
    added up by job, so that words look at few rows.
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
            # looked up for those that are shown
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
        # Made once, whatever is asked of it.
        .prefix_with("MATERIALIZED", dialect="postgresql")
    )


def _seen(span: Span, words: Sequence[str]) -> Subquery:
    """Return each host as all its readings have it, and which words are in it or in its jobs."""
    both = union_all(_whole_weeks(span), _ends(span)).subquery("both").c
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
    one = parts.c
    # Jobs are fewer than their hosts: their names are looked at once.
    named = select(
        Job.id,
        *(
            Job.name.icontains(word, autoescape=True).label(f"word_{at}")
            for at, word in enumerate(words)
        ),
    ).subquery("named")
    has = [
        or_(one.host.icontains(word, autoescape=True), func.bool_or(named.c[f"word_{at}"]))
        for at, word in enumerate(words)
    ]
    query = select(
        one.host,
        func.max(one.ranks).label("ranks"),
        cast(func.sum(one.sessions), Integer).label("sessions"),
        func.count().label("jobs"),
        func.max(one.worst).label("worst"),
        func.max(one.computing).label("computing"),
        func.min(one.first_seen).label("first_seen"),
        func.max(one.last_seen).label("last_seen"),
        *(found.label(f"word_{at}") for at, found in enumerate(has)),
    ).group_by(one.host)
    return (query.join(named, named.c.id == one.job_id) if words else query).subquery("seen")


def _whole_weeks(span: Span) -> Select[*tuple[Any, ...]]:
    """Return what each host was in each job in the weeks that lie whole in a time."""
    return select(
        HostWeek.host,
        HostWeek.job_id,
        HostWeek.ranks,
        HostWeek.sessions,
        HostWeek.slowdown.label("worst"),
        HostWeek.computing,
        HostWeek.first_seen,
        HostWeek.last_seen,
    ).where(*weeks_in(span).holds(HostWeek.week.expression))


def _ends(span: Span) -> Select[*tuple[Any, ...]]:
    """Return the same of what a time has before and after these weeks."""
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
    """Return each host that a cause names, as those readings have it, and which words do."""
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
