"""Lists of hosts by cost over all jobs and sessions, as a page and as a file.

The database writes the lines of the file, thousands with one statement.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from pydantic import TypeAdapter
from sqlalchemy import (
    ARRAY,
    CTE,
    ColumnElement,
    Select,
    Subquery,
    TableValuedAlias,
    Text,
    and_,
    any_,
    cast,
    func,
    literal,
    select,
    true,
)
from sqlalchemy.dialects.postgresql import ARRAY as POSTGRESQL_ARRAY
from sqlalchemy.dialects.postgresql import JSONPATH, aggregate_order_by, array
from sqlalchemy.sql.selectable import LateralFromClause

from app.analysis.trace.rank_metadata import node_label
from app.hosts.costs import HOSTS, MOST, HostRow, Hosts, HostSums, Show, Span, Totals, ledger
from app.hosts.models import HostReading
from app.hosts.repairs import latest_repairs
from app.incidents.models.tables import AlertIncident, IncidentState
from app.platform.database.columns import as_json, total
from app.platform.database.projects import Project
from app.platform.database.unit_of_work import Reads
from app.web.lists import Page, PageRequest, columns_of, csv_lines, in_files, last_page

# Number of sessions that a sparkline shows.
TREND: Final = 24


@dataclass(frozen=True, slots=True)
class Alarms:
    """Number of fired incidents at a host, and whether one of them is still firing."""

    incidents: int
    firing: bool


NO_ALARM: Final = Alarms(0, firing=False)


def trends_of(tx: Reads, span: Span, hosts: Sequence[str], most: int) -> dict[str, list[float]]:
    """Return the slowdowns of each host in its latest `most` sessions, oldest first."""
    named = _named(hosts)
    received = HostReading.received_at
    latest = (
        select(HostReading.slowdown, received, HostReading.session_id)
        .where(HostReading.host == named.c.host, *span.holds(received.expression))
        .order_by(received.desc(), HostReading.session_id)
        .limit(most)
        .lateral("latest")
    )
    trends: dict[str, list[float]] = {host: [] for host in hosts}
    for host, slowdown in tx.session.execute(
        select(named.c.host, latest.c.slowdown)
        .join(latest, true())
        .order_by(named.c.host, latest.c.received_at, latest.c.session_id.desc())
    ):
        trends[host].append(slowdown)
    return trends


def guessed_of(tx: Reads, hosts: Sequence[str]) -> dict[str, bool]:
    """Return whether each host's name is a guess, according to its latest session."""
    named = _named(hosts)
    latest = (
        select(HostReading.guessed)
        .where(HostReading.host == named.c.host)
        .order_by(HostReading.received_at.desc())
        .limit(1)
        .lateral("latest")
    )
    rows = tx.session.execute(select(named.c.host, latest.c.guessed).join(latest, true()))
    return dict(map(tuple, rows))


# Path of the slow GPUs in the GPUs of a reading.
_SLOW_GPUS: Final = cast(literal("$[*] ? (@.slow == true).gpu"), JSONPATH)


def gpus_of(tx: Reads, span: Span, hosts: Sequence[str]) -> dict[str, list[str]]:
    """Return the GPUs of each host that causes name as slow."""
    # The join scans all slow readings, which are few and in an index.
    named = _named(hosts)
    gpus = func.jsonb_path_query_array(HostReading.gpus, _SLOW_GPUS)
    slow_gpus: dict[str, set[str]] = {}
    for host, some in tx.session.execute(
        select(HostReading.host, gpus)
        .join(named, named.c.host == HostReading.host)
        .where(HostReading.cause.is_not(None), *span.holds(HostReading.received_at.expression))
        .distinct()
    ):
        slow_gpus.setdefault(host, set()).update(some)
    return {
        host: sorted(names, key=lambda gpu: (len(gpu), gpu)) for host, names in slow_gpus.items()
    }


def alarms_of(tx: Reads, hosts: Sequence[str]) -> dict[str, Alarms]:
    """Return the fired incidents at each of these hosts; a host without one is left out."""
    where = AlertIncident.document["where"].astext
    rows = tx.session.execute(
        select(
            where,
            func.count(),
            func.bool_or(AlertIncident.state == IncidentState.FIRING),
        )
        .where(
            AlertIncident.fired_at.is_not(None), where == any_(literal(list(hosts), ARRAY(Text)))
        )
        .group_by(where)
    )
    return {host: Alarms(count, firing) for host, count, firing in rows}


def _named(hosts: Sequence[str]) -> TableValuedAlias:
    each = func.unnest(cast(literal(list(hosts), ARRAY(Text)), ARRAY(Text)))
    return each.table_valued("host").render_derived(name="named")


# Largest number of listed hosts that look slow but are not blamed.
LOOK_ALIKES: Final = 20
_COLUMNS: Final = tuple(columns_of(HostSums))


@dataclass(frozen=True, slots=True)
class _Counted:
    """The hosts of a period, as the database query returns them."""

    hosts: int
    ranks: int
    blamed: int
    repaired: int
    listed: int
    cost: float


_TOTALS: Final = TypeAdapter(tuple[_Counted, ...])


@dataclass(frozen=True, slots=True)
class _PageRows:
    """Result of the statement that reads a page of hosts."""

    totals: _Counted
    rows: Sequence[HostSums]
    alike: Sequence[HostSums]
    first: HostSums | None  # the most expensive one


def list_hosts(  # noqa: PLR0913 - what an address may ask for
    tx: Reads,
    span: Span,
    request: PageRequest,
    *,
    show: Show = Show.ALL,
    words: str = "",
    brief: bool = False,
    alike_from: float,
) -> Hosts:
    """Return a page of hosts.

    Parameters
    ----------
    words : str
        Return only hosts whose name, job or cause contains each of these words.
    brief : bool
        Read only the latest session of each trend, and no repairs.
    alike_from : float
        Slowdown from which on a host looks slow although no cause names it.
    """
    answer = _read_page(tx, span, request, show, words, alike_from)
    totals, alike, first = answer.totals, answer.alike, answer.first
    shown = (*answer.rows, *alike) if first is None else (first, *answer.rows, *alike)
    guessed = guessed_of(tx, sorted({row.host for row in shown}))
    rows = _detailed(tx, span, _marked(answer.rows, guessed), brief=brief)
    number = last_page(request.page, totals.listed, request.size)
    return Hosts(
        now=tx.now,
        totals=Totals(
            hosts=totals.hosts,
            ranks=totals.ranks,
            blamed=totals.blamed,
            repaired=totals.repaired,
            cost=totals.cost,
            first=None if first is None else node_label(first.host, guessed=guessed[first.host]),
            first_cost=0.0 if first is None else first.cost_gpu_hours,
        ),
        page=Page(rows, number, totals.listed, request.size),
        look_alikes=_marked(alike, guessed),
    )


def _read_page(  # noqa: PLR0913, PLR0917 - what an address may ask for
    tx: Reads, span: Span, request: PageRequest, show: Show, words: str, alike_from: float
) -> _PageRows:
    """Read the sums and the rows of a page of hosts with one statement."""
    hosts = ledger(tx, span, words)
    columns = hosts.c
    listed = and_(columns.matches, is_shown(columns, show))
    most_expensive = (columns.cost_gpu_hours.desc(), columns.host.asc())
    alike = (~columns.blamed) & (
        (columns.slow_sessions > 0) | (columns.slowdown_worst >= alike_from)
    )
    like = (columns.slow_sessions.desc(), columns.slowdown_worst.desc(), columns.host.asc())
    matching = select(func.count()).select_from(hosts).where(listed).scalar_subquery()
    last = func.greatest(0, (matching - 1) // request.size) * request.size
    sort = HOSTS.sort(request.sort)
    column = columns[HOSTS.sorts[sort.removeprefix("-")]]
    by = (column.desc() if sort.startswith("-") else column.asc()).nulls_last()
    offset = func.least(request.size * (request.page - 1), last)
    # Hosts with equal sort keys are ordered by cost, most expensive first.
    rows = (
        select(hosts).where(listed).order_by(by, *most_expensive).limit(request.size).offset(offset)
    )
    answer = tx.session.execute(
        select(
            as_json(_totals(hosts, listed)),
            as_json(rows),
            as_json(select(hosts).where(alike).order_by(*like).limit(LOOK_ALIKES)),
            as_json(select(hosts).where(columns.blamed).order_by(*most_expensive).limit(1)),
        )
        .select_from(Project)
        .where(Project.id == tx.scope.project_id)
    ).one()
    [totals] = _TOTALS.validate_python(answer[0])
    page, looks_alike, first = (HOSTS.rows(part or ()) for part in answer[1:])
    return _PageRows(totals, page, looks_alike, first[0] if first else None)


def _totals(hosts: CTE, listed: ColumnElement[bool]) -> Select[*tuple[Any, ...]]:
    columns = hosts.c
    return select(
        func.count().label("hosts"),
        func.coalesce(func.sum(columns.ranks), 0).label("ranks"),
        func.count().filter(columns.blamed).label("blamed"),
        func.count().filter(columns.repaired).label("repaired"),
        func.count().filter(listed).label("listed"),
        func.coalesce(total(columns.cost_gpu_hours, columns.blamed), 0.0).label("cost"),
    ).select_from(hosts)


def is_shown(columns: Any, show: Show) -> ColumnElement[bool]:  # noqa: ANN401 - columns of a CTE
    """Return the SQL condition that the list of a choice contains a host."""
    if show is Show.BLAMED:
        return and_(true(), columns.blamed)
    return true() if show is Show.ALL else and_(true(), columns.repaired)


def _detailed(tx: Reads, span: Span, rows: Sequence[HostSums], *, brief: bool) -> list[HostRow]:
    names = [row.host for row in rows]
    trends = trends_of(tx, span, names, 1 if brief else TREND)
    gpus, alarms = gpus_of(tx, span, names), alarms_of(tx, names)
    repairs = {} if brief else latest_repairs(tx, names)
    detailed = []
    for row in rows:
        trend, alarm = trends[row.host], alarms.get(row.host, NO_ALARM)
        detailed.append(
            HostRow(
                **{name: getattr(row, name) for name in _COLUMNS},
                slowdown_now=trend[-1],
                gpus=gpus.get(row.host, []),
                incidents=alarm.incidents,
                firing=alarm.firing,
                trend=trend,
                repair=repairs.get(row.host),
            )
        )
    return detailed


def _marked(rows: Sequence[HostSums], guessed: Mapping[str, bool]) -> list[HostSums]:
    return [replace(row, guessed=guessed.get(row.host, False)) for row in rows]


# Columns of the CSV file of hosts.
HEADER: Final = tuple(in_files(HostRow))
# Columns of the file whose values are read separately, for the listed hosts only.
_LOOKED_UP: Final = ("guessed", "slowdown_now", "gpus_named")


def hosts_file(tx: Reads, span: Span, sort: str, *, show: Show, words: str = "") -> str:
    """Return the lines of the file of hosts below `HEADER`, at most `MOST` lines.

    Parameters
    ----------
    sort : str
        Name of an order of `HOSTS`.
    show, words
        As of `list_hosts`.
    """
    hosts = ledger(tx, span, words)
    by = HOSTS.sort(sort)
    column = HOSTS.sorts[by.removeprefix("-")]
    # Hosts with equal sort keys are ordered by cost, most expensive first.
    order = [f"-{column}" if by.startswith("-") else column, "-cost_gpu_hours", "host"]
    listed = select(hosts).where(hosts.c.matches, is_shown(hosts.c, show)).cte("listed")
    of_time, gpus = _latest(listed, span, "of_time"), _gpus(span)
    ever = of_time if span.until is None else _latest(listed, Span(), "ever")
    rows = (
        select(
            *(column for column in listed.c if column.name not in _LOOKED_UP),
            ever.c.guessed,
            of_time.c.slowdown.label("slowdown_now"),
            func.coalesce(gpus.c.gpus, array([], type_=Text)).label("gpus_named"),
        )
        .select_from(listed)
        .join(of_time, true())
        .outerjoin(gpus, gpus.c.host == listed.c.host)
    )
    if ever is not of_time:
        rows = rows.join(ever, true())
    lines = csv_lines(rows, HEADER, order, MOST)
    return tx.session.execute(lines).scalar_one() or ""


def _latest(listed: CTE, span: Span, name: str) -> LateralFromClause:
    """Return the latest reading of each host in a period."""
    received = HostReading.received_at
    return (
        select(HostReading.slowdown, HostReading.guessed)
        .where(HostReading.host == listed.c.host, *span.holds(received.expression))
        .order_by(received.desc(), HostReading.session_id)
        .limit(1)
        .lateral(name)
    )


def _gpus(span: Span) -> Subquery:
    """Return the GPUs of each host that causes of a period name as slow."""
    slow_gpu = func.jsonb_path_query(HostReading.gpus, _SLOW_GPUS)
    # scans all slow readings: they are few, and in an index
    named = (
        select(HostReading.host, slow_gpu.op("#>>")(array([], type_=Text)).label("gpu"))
        .where(HostReading.cause.is_not(None), *span.holds(HostReading.received_at.expression))
        .distinct()
        .subquery("named")
    )
    gpu = aggregate_order_by(named.c.gpu, func.length(named.c.gpu), named.c.gpu)
    return (
        select(named.c.host, func.array_agg(gpu, type_=POSTGRESQL_ARRAY(Text)).label("gpus"))
        .group_by(named.c.host)
        .subquery("gpus_named")
    )
