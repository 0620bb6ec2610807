"""The read side of hosts: which cost most over all jobs and sessions, and which only look slow."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import (
    ARRAY,
    Integer,
    Text,
    and_,
    cast,
    column,
    false,
    func,
    or_,
    select,
    true,
)
from sqlalchemy.dialects.postgresql import JSONB

from app.alerts.states import IncidentState
from app.analysis.diagnosis.causes.registry import EVERY
from app.db.models.alerts import AlertIncident
from app.db.models.hosts import HostReading, HostRepair
from app.db.models.sessions import Job
from app.services.hosts.costs import Span, priced
from app.services.hosts.repairs import Repair, latest_repairs

if TYPE_CHECKING:
    from sqlalchemy import Subquery

    from app.db.unit_of_work import Reads

# Hosts to a page, and to a file.
PAGE: Final = 50
MOST: Final = 10_000
# Sessions of a trend: what a sparkline shows.
TREND: Final = 24
# Slow in fewer sessions a host is not blamed: its neighbor may have been at fault, or chance.
BLAMED_FROM: Final = 2
# Hosts listed that look slow and are not blamed.
LOOK_ALIKES: Final = 20


class Show(StrEnum):
    """Which hosts a list holds."""

    BLAMED = "blamed"
    REPAIRED = "repaired"
    ALL = "all"


@dataclass(frozen=True, slots=True)
class HostRow:
    """A host over a time.

    Parameters
    ----------
    host : str
    cost : float
        GPU-hours; see `app.services.hosts.costs.priced`.
    ranks : int
        The most that a job had there.
    sessions, slow_sessions, jobs, slow_jobs : int
        Seen, and slow: named by a cause.
    worst : float
        The largest slowdown.
    is_slow : bool
        Whether the latest session's causes name it.
    computing : float or None
        The largest time against peers.
    causes : tuple of str
    first_seen, last_seen : datetime
    named : bool
        Whether it is what was looked for.
    now : float
        Slowdown of the latest session; known of the hosts of a page.
    """

    host: str
    cost: float
    ranks: int
    sessions: int
    slow_sessions: int
    jobs: int
    slow_jobs: int
    worst: float
    is_slow: bool
    computing: float | None
    causes: tuple[str, ...]
    first_seen: datetime
    last_seen: datetime
    named: bool = True
    now: float = 1.0

    @property
    def blamed(self) -> bool:
        """Return whether it was slow more than once."""
        return self.slow_sessions >= BLAMED_FROM


@dataclass(frozen=True, slots=True)
class Alarms:
    """Incidents that name a host: those that were told of, and whether one fires."""

    incidents: int
    firing: bool


@dataclass(frozen=True, slots=True)
class Totals:
    """All hosts of a time.

    Parameters
    ----------
    hosts, ranks : int
    blamed, repaired, matching : int
        Hosts; `matching` are those that the list is about.
    cost : float
        Of those that are blamed, GPU-hours.
    first, first_cost : str or None, float
        The most expensive of these.
    """

    hosts: int
    ranks: int
    blamed: int
    repaired: int
    matching: int
    cost: float
    first: str | None
    first_cost: float


@dataclass(frozen=True, slots=True)
class Hosts:
    """A page of hosts, with what is known of each.

    Parameters
    ----------
    now : datetime
    totals : Totals
    rows : sequence of HostRow
    page : int
    trends : mapping of str to sequence of float
        Slowdown in the latest sessions, oldest first.
    gpus : mapping of str to sequence of str
        Those that causes name.
    alarms : mapping of str to Alarms
    repairs : mapping of str to Repair
        The last one.
    look_alikes : sequence of HostRow
    """

    now: datetime
    totals: Totals
    rows: Sequence[HostRow]
    page: int
    trends: Mapping[str, Sequence[float]]
    gpus: Mapping[str, Sequence[str]]
    alarms: Mapping[str, Alarms]
    repairs: Mapping[str, Repair]
    look_alikes: Sequence[HostRow]

    @property
    def pages(self) -> int:
        """Return how many pages there are."""
        return max(1, -(-self.totals.matching // PAGE))


DEAREST: Final = "-cost"
# What hosts are sorted by; a minus sign in front turns it round.
SORTS: Final[Mapping[str, Callable[[HostRow], Any]]] = {
    "host": lambda row: row.host,
    "cost": lambda row: row.cost,
    "worst": lambda row: row.worst,
    "jobs": lambda row: row.slow_jobs,
    "sessions": lambda row: row.slow_sessions,
    "seen": lambda row: row.last_seen,
}


def list_hosts(  # noqa: PLR0913 - what an address may ask for
    tx: Reads,
    span: Span,
    *,
    show: Show = Show.ALL,
    words: str = "",
    sort: str = DEAREST,
    page: int = 1,
    size: int = PAGE,
    alike_from: float,
) -> Hosts:
    """Return a page of hosts.

    Parameters
    ----------
    tx : Reads
    span : Span
    show : Show
    words : str
        Only those of which host, a job or a cause has each of these words.
    sort : str
        A name in `SORTS`, with a minus sign for the largest first.
    page, size : int
        The last one where there are not so many.
    alike_from : float
        From this slowdown on a host that no cause names looks slow.
    """
    ledger = _by_host(tx, span, words)
    repaired = set(tx.session.execute(select(HostRepair.host).distinct()).scalars())
    matching = _sorted([row for row in ledger if row.named and _shown(row, show, repaired)], sort)
    page = min(max(page, 1), max(1, -(-len(matching) // size)))
    rows = matching[size * (page - 1) : size * page]
    names = [row.host for row in rows]
    trends = _trends(tx, span, names)
    return Hosts(
        now=tx.now,
        totals=_totals(ledger, repaired, len(matching)),
        rows=[replace(row, now=trends[row.host][-1]) for row in rows],
        page=page,
        trends=trends,
        gpus=_gpus(tx, span, names),
        alarms=alarms_of(tx, names),
        repairs=latest_repairs(tx, names),
        look_alikes=_look_alikes(ledger, alike_from),
    )


def _by_host(tx: Reads, span: Span, words: str) -> list[HostRow]:
    """Return every host with its sums.

    All readings are counted from an index, and only those that a cause names, which are few, are
    priced. Both are first added up by job, so that words look at few rows.
    """
    of_all, of_slow = _seen(span, words.split()), _slow(tx, span, words.split())
    seen, slow = of_all.c, of_slow.c
    named = [
        or_(seen[f"word_{at}"], func.coalesce(slow[f"word_{at}"], false()))
        for at in range(len(words.split()))
    ]
    found = tx.session.execute(
        select(
            seen.host,
            func.coalesce(slow.cost, 0.0),
            seen.ranks,
            seen.sessions,
            func.coalesce(slow.sessions, 0),
            seen.jobs,
            func.coalesce(slow.jobs, 0),
            seen.worst,
            func.coalesce(slow.last_seen == seen.last_seen, false()),
            seen.computing,
            slow.causes,
            seen.first_seen,
            seen.last_seen,
            and_(true(), *named),
        )
        .select_from(of_all)
        .outerjoin(of_slow, slow.host == seen.host)
    )
    return [_row(list(sums)) for sums in found]


def _seen(span: Span, words: Sequence[str]) -> Subquery:
    """Return each host as all its readings have it, and which words are in it or in its jobs."""
    parts = (
        select(
            HostReading.host,
            HostReading.job_id,
            func.max(HostReading.ranks).label("ranks"),
            func.count().label("sessions"),
            func.max(HostReading.slowdown).label("worst"),
            func.max(HostReading.computing).label("computing"),
            func.min(HostReading.received_at).label("first_seen"),
            func.max(HostReading.received_at).label("last_seen"),
        )
        .where(*span.holds(HostReading.received_at.expression))
        .group_by(HostReading.host, HostReading.job_id)
        .subquery("seen_in_jobs")
    )
    one = parts.c
    has = [
        func.bool_or(
            or_(
                one.host.icontains(word, autoescape=True),
                Job.name.icontains(word, autoescape=True),
            )
        )
        for word in words
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
    return (query.join(Job, Job.id == one.job_id) if words else query).subquery("seen")


def _slow(tx: Reads, span: Span, words: Sequence[str]) -> Subquery:
    """Return each host that a cause names, as those readings have it, and which words do."""
    reading = priced(tx, span, slow=True).c
    causes = [
        [name for name, kind in EVERY.items() if word.lower() in kind.title.lower()]
        for word in words
    ]
    return (
        select(
            reading.host,
            func.sum(reading.cost).label("cost"),
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


def _row(sums: list[Any]) -> HostRow:
    """Return a host of its sums, which are in the order of its fields; null for no cause."""
    causes = HostRow.__slots__.index("causes")
    sums[causes] = tuple(sums[causes] or ())
    return HostRow(*sums)


def _shown(row: HostRow, show: Show, repaired: Collection[str]) -> bool:
    if show is Show.BLAMED:
        return row.blamed
    return show is Show.ALL or row.host in repaired


def _sorted(rows: list[HostRow], sort: str) -> list[HostRow]:
    """Return hosts in an order that was asked for; among equals the dearer one first."""
    key = SORTS.get(sort.removeprefix("-"))
    if key is None:
        return _sorted(rows, DEAREST)
    rows.sort(key=lambda row: (-row.cost, row.host))
    rows.sort(key=key, reverse=sort.startswith("-"))
    return rows


def _look_alikes(ledger: Sequence[HostRow], alike_from: float) -> list[HostRow]:
    alike = [
        row
        for row in ledger
        if not row.blamed and (row.slow_sessions > 0 or row.worst >= alike_from)
    ]
    alike.sort(key=lambda row: (-row.slow_sessions, -row.worst, row.host))
    return alike[:LOOK_ALIKES]


def _totals(ledger: Sequence[HostRow], repaired: Collection[str], matching: int) -> Totals:
    blamed = _sorted([row for row in ledger if row.blamed], DEAREST)
    return Totals(
        hosts=len(ledger),
        ranks=sum(row.ranks for row in ledger),
        blamed=len(blamed),
        repaired=sum(row.host in repaired for row in ledger),
        matching=matching,
        cost=sum(row.cost for row in blamed),
        first=blamed[0].host if blamed else None,
        first_cost=blamed[0].cost if blamed else 0.0,
    )


def _trends(tx: Reads, span: Span, hosts: Sequence[str]) -> dict[str, list[float]]:
    """Return the slowdown of each host in its latest sessions, oldest first."""
    recent = func.row_number().over(
        partition_by=HostReading.host,
        order_by=(HostReading.received_at.desc(), HostReading.session_id),
    )
    latest = (
        select(HostReading.host, HostReading.slowdown, recent.label("recent"))
        .where(HostReading.host.in_(hosts), *span.holds(HostReading.received_at.expression))
        .subquery()
    )
    found: dict[str, list[float]] = {host: [] for host in hosts}
    for host, slowdown in tx.session.execute(
        select(latest.c.host, latest.c.slowdown)
        .where(latest.c.recent <= TREND)
        .order_by(latest.c.host, latest.c.recent.desc())
    ):
        found[host].append(slowdown)
    return found


def _gpus(tx: Reads, span: Span, hosts: Sequence[str]) -> dict[str, list[str]]:
    """Return the GPUs of each host that causes name."""
    elements = func.jsonb_array_elements(HostReading.gpus)
    each = elements.table_valued(column("value", JSONB)).lateral()
    gpu = each.c.value
    name = gpu["gpu"].astext
    found: dict[str, list[str]] = {}
    for host, one in tx.session.execute(
        select(HostReading.host, name)
        .join(each, true())
        .where(
            HostReading.host.in_(hosts),
            HostReading.cause.is_not(None),
            gpu["slow"].as_boolean(),
            *span.holds(HostReading.received_at.expression),
        )
        .distinct()
    ):
        found.setdefault(host, []).append(one)
    return {host: sorted(names, key=lambda one: (len(one), one)) for host, names in found.items()}


def alarms_of(tx: Reads, hosts: Sequence[str]) -> dict[str, Alarms]:
    """Return the incidents that name each of these hosts as their place."""
    where = AlertIncident.document["where"].astext
    rows = tx.session.execute(
        select(
            where,
            func.count(),
            func.bool_or(AlertIncident.state == IncidentState.FIRING),
        )
        .where(AlertIncident.fired_at.is_not(None), where.in_(hosts))
        .group_by(where)
    )
    return {host: Alarms(count, firing) for host, count, firing in rows}
