"""The read side of hosts: which cost most over all jobs and sessions, and which only look slow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import ARRAY, CTE, ColumnElement, Float, Text, column, func, or_, select, true
from sqlalchemy.dialects.postgresql import JSONB, aggregate_order_by

from app.alerts.states import IncidentState
from app.analysis.diagnosis.causes.registry import EVERY
from app.db.models.alerts import AlertIncident
from app.db.models.hosts import HostReading, HostRepair
from app.services.hosts.costs import Span, priced
from app.services.hosts.repairs import Repair, latest_repairs

if TYPE_CHECKING:
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
    now, worst : float
        Slowdown of the latest session, and the largest.
    is_slow : bool
        Whether the latest session's causes name it.
    computing : float or None
        The largest time against peers.
    causes : tuple of str
    first_seen, last_seen : datetime
    """

    host: str
    cost: float
    ranks: int
    sessions: int
    slow_sessions: int
    jobs: int
    slow_jobs: int
    now: float
    worst: float
    is_slow: bool
    computing: float | None
    causes: tuple[str, ...]
    first_seen: datetime
    last_seen: datetime

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
SORTS: Final = ("host", "cost", "now", "jobs", "sessions", "seen")


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
    ledger = _by_host(priced(tx, span), words)
    wanted = _shown(ledger, show, words)
    totals = _totals(tx, ledger, wanted)
    page = min(max(page, 1), max(1, -(-totals.matching // size)))
    rows = [
        _row(found)
        for found in tx.session.execute(
            select(ledger)
            .where(*wanted)
            .order_by(*_order(ledger, sort))
            .limit(size)
            .offset(size * (page - 1))
        )
    ]
    names = [row.host for row in rows]
    alike = [
        _row(found)
        for found in tx.session.execute(
            select(ledger)
            .where(
                ledger.c.slow_sessions < BLAMED_FROM,
                or_(ledger.c.slow_sessions > 0, ledger.c.worst >= alike_from),
            )
            .order_by(ledger.c.slow_sessions.desc(), ledger.c.worst.desc(), ledger.c.host)
            .limit(LOOK_ALIKES)
        )
    ]
    return Hosts(
        now=tx.now,
        totals=totals,
        rows=rows,
        page=page,
        trends=_trends(tx, span, names),
        gpus=_gpus(tx, span, names),
        alarms=alarms_of(tx, names),
        repairs=latest_repairs(tx, names),
        look_alikes=alike,
    )


def _by_host(readings: CTE, words: str) -> CTE:
    """Return every host of the readings with its sums."""
    one = readings.c
    slow = one.cause.is_not(None)
    newest = one.received_at.desc()

    def latest(column: ColumnElement[Any], kind: Any) -> ColumnElement[Any]:  # noqa: ANN401 - a type of SQLAlchemy
        ordered = aggregate_order_by(column, newest)
        found: ColumnElement[Any] = func.array_agg(ordered, type_=ARRAY(kind))[1]
        return found

    return (
        select(
            one.host,
            func.sum(one.cost).label("cost"),
            func.max(one.ranks).label("ranks"),
            func.count().label("sessions"),
            func.count().filter(slow).label("slow_sessions"),
            func.count(one.job_id.distinct()).label("jobs"),
            func.count(one.job_id.distinct()).filter(slow).label("slow_jobs"),
            latest(one.slowdown, Float).label("now"),
            func.max(one.slowdown).label("worst"),
            latest(one.cause, Text).label("cause_now"),
            func.max(one.computing).label("computing"),
            func.array_agg(one.cause.distinct(), type_=ARRAY(Text)).filter(slow).label("causes"),
            func.min(one.received_at).label("first_seen"),
            func.max(one.received_at).label("last_seen"),
            *(
                func.bool_or(_has(one, word)).label(f"word_{at}")
                for at, word in enumerate(words.split())
            ),
        )
        .group_by(one.host)
        .cte("by_host")
    )


def _has(one: Any, word: str) -> ColumnElement[bool]:  # noqa: ANN401 - the columns of a CTE
    """Return whether a reading has a word in its host, its job or its cause."""
    causes = [name for name, kind in EVERY.items() if word.lower() in kind.title.lower()]
    return or_(
        one.host.icontains(word, autoescape=True),
        one.job.icontains(word, autoescape=True),
        one.cause.in_(causes),
    )


def _shown(ledger: CTE, show: Show, words: str) -> list[ColumnElement[bool]]:
    wanted: list[ColumnElement[bool]] = [
        ledger.c[f"word_{at}"] for at, _ in enumerate(words.split())
    ]
    if show is Show.BLAMED:
        wanted.append(_blamed(ledger))
    elif show is Show.REPAIRED:
        wanted.append(_repaired(ledger))
    return wanted


def _blamed(ledger: CTE) -> ColumnElement[bool]:
    found: ColumnElement[bool] = ledger.c.slow_sessions >= BLAMED_FROM
    return found


def _repaired(ledger: CTE) -> ColumnElement[bool]:
    found: ColumnElement[bool] = ledger.c.host.in_(select(HostRepair.host))
    return found


def _totals(tx: Reads, ledger: CTE, wanted: Sequence[ColumnElement[bool]]) -> Totals:
    blamed = _blamed(ledger)
    dearest = aggregate_order_by(ledger.c.host, ledger.c.cost.desc(), ledger.c.host)
    found = tx.session.execute(
        select(
            func.count(),
            func.coalesce(func.sum(ledger.c.ranks), 0),
            func.count().filter(blamed),
            func.count().filter(_repaired(ledger)),
            func.count().filter(*wanted) if wanted else func.count(),
            func.coalesce(func.sum(ledger.c.cost).filter(blamed), 0.0),
            func.array_agg(dearest, type_=ARRAY(Text)).filter(blamed)[1],
            func.coalesce(func.max(ledger.c.cost).filter(blamed), 0.0),
        ).select_from(ledger)
    ).one()
    return Totals(*found)


def _row(found: Any) -> HostRow:  # noqa: ANN401 - a row of the ledger
    return HostRow(
        host=found.host,
        cost=found.cost,
        ranks=found.ranks,
        sessions=found.sessions,
        slow_sessions=found.slow_sessions,
        jobs=found.jobs,
        slow_jobs=found.slow_jobs,
        now=found.now,
        worst=found.worst,
        is_slow=found.cause_now is not None,
        computing=found.computing,
        causes=tuple(found.causes or ()),
        first_seen=found.first_seen,
        last_seen=found.last_seen,
    )


def _order(ledger: CTE, sort: str) -> list[ColumnElement[Any]]:
    name = sort.removeprefix("-")
    if name not in SORTS:
        return _order(ledger, DEAREST)
    columns = {"jobs": "slow_jobs", "sessions": "slow_sessions", "seen": "last_seen"}
    column = ledger.c[columns.get(name, name)]
    first = column.desc() if sort.startswith("-") else column.asc()
    return [first, ledger.c.cost.desc(), ledger.c.host]


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
