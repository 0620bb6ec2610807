"""The read side of hosts: which cost most over all jobs and sessions, and which only look slow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from pydantic import TypeAdapter
from sqlalchemy import and_, func, select, true

from app.analysis.trace.ranks.machine import called
from app.db.json_values import as_json
from app.db.models.access import Project
from app.db.sums import total
from app.lists.columns import columns_of
from app.lists.pages import Page, last_page
from app.services.hosts.details import NO_ALARM, TREND, alarms_of, gpus_of, guessed_of, trends_of
from app.services.hosts.listed import HOSTS, HostRow, Hosts, HostSums, Show, Totals
from app.services.hosts.repairs import latest_repairs
from app.services.hosts.sums import ledger

if TYPE_CHECKING:
    from sqlalchemy import CTE, ColumnElement, Select

    from app.db.unit_of_work import Reads
    from app.lists.listing import PageRequest
    from app.services.hosts.costs import Span

# Hosts listed that look slow and are not blamed.
LOOK_ALIKES: Final = 20
_COLUMNS: Final = tuple(columns_of(HostSums))


@dataclass(frozen=True, slots=True)
class _Counted:
    """The hosts of a time as the database returns them."""

    hosts: int
    ranks: int
    blamed: int
    repaired: int
    listed: int
    cost: float


_TOTALS: Final = TypeAdapter(tuple[_Counted, ...])


@dataclass(frozen=True, slots=True)
class _Found:
    """What a page shows, as the first statement returns it."""

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
        Only those of which host, a job or a cause has each of these words.
    brief : bool
        Whether trends of one session do, and no repairs are needed: for files of many hosts.
    alike_from : float
        From this slowdown on a host that no cause names looks slow.
    """
    found = _found(tx, span, request, show, words, alike_from)
    totals, alike, first = found.totals, found.alike, found.first
    shown = (*found.rows, *alike) if first is None else (first, *found.rows, *alike)
    guessed = guessed_of(tx, sorted({row.host for row in shown}))
    rows = _detailed(tx, span, _marked(found.rows, guessed), brief=brief)
    number = last_page(request.page, totals.listed, request.size)
    return Hosts(
        now=tx.now,
        totals=Totals(
            hosts=totals.hosts,
            ranks=totals.ranks,
            blamed=totals.blamed,
            repaired=totals.repaired,
            cost=totals.cost,
            first=None if first is None else called(first.host, guessed=guessed[first.host]),
            first_cost=0.0 if first is None else first.cost_gpu_hours,
        ),
        page=Page(rows, number, totals.listed, request.size),
        look_alikes=_marked(alike, guessed),
    )


def _found(  # noqa: PLR0913, PLR0917 - what an address may ask for
    tx: Reads, span: Span, request: PageRequest, show: Show, words: str, alike_from: float
) -> _Found:
    """Return what a page shows of the hosts of a time, with one statement."""
    hosts = ledger(tx, span, words)
    one = hosts.c
    listed = and_(one.matches, is_shown(one, show))
    most_expensive = (one.cost_gpu_hours.desc(), one.host.asc())
    alike = (~one.blamed) & ((one.slow_sessions > 0) | (one.slowdown_worst >= alike_from))
    like = (one.slow_sessions.desc(), one.slowdown_worst.desc(), one.host.asc())
    matching = select(func.count()).select_from(hosts).where(listed).scalar_subquery()
    last = func.greatest(0, (matching - 1) // request.size) * request.size
    sort = HOSTS.sort(request.sort)
    column = one[HOSTS.sorts[sort.removeprefix("-")]]
    by = (column.desc() if sort.startswith("-") else column.asc()).nulls_last()
    offset = func.least(request.size * (request.page - 1), last)
    # Among equals the most expensive one comes first.
    rows = (
        select(hosts).where(listed).order_by(by, *most_expensive).limit(request.size).offset(offset)
    )
    answer = tx.session.execute(
        select(
            as_json(_totals(hosts, listed)),
            as_json(rows),
            as_json(select(hosts).where(alike).order_by(*like).limit(LOOK_ALIKES)),
            as_json(select(hosts).where(one.blamed).order_by(*most_expensive).limit(1)),
        )
        .select_from(Project)
        .where(Project.id == tx.scope.project_id)
    ).one()
    [totals] = _TOTALS.validate_python(answer[0])
    page, looks_alike, first = (HOSTS.rows(part or ()) for part in answer[1:])
    return _Found(totals, page, looks_alike, first[0] if first else None)


def _totals(hosts: CTE, listed: ColumnElement[bool]) -> Select[*tuple[Any, ...]]:
    one = hosts.c
    return select(
        func.count().label("hosts"),
        func.coalesce(func.sum(one.ranks), 0).label("ranks"),
        func.count().filter(one.blamed).label("blamed"),
        func.count().filter(one.repaired).label("repaired"),
        func.count().filter(listed).label("listed"),
        func.coalesce(total(one.cost_gpu_hours, one.blamed), 0.0).label("cost"),
    ).select_from(hosts)


def is_shown(one: Any, show: Show) -> ColumnElement[bool]:  # noqa: ANN401 - columns of a CTE
    """Return whether a host is one of those that a list holds."""
    if show is Show.BLAMED:
        return and_(true(), one.blamed)
    return true() if show is Show.ALL else and_(true(), one.repaired)


def _detailed(tx: Reads, span: Span, rows: Sequence[HostSums], *, brief: bool) -> list[HostRow]:
    names = [row.host for row in rows]
    trends = trends_of(tx, span, names, 1 if brief else TREND)
    gpus, alarms = gpus_of(tx, span, names), alarms_of(tx, names)
    repairs = {} if brief else latest_repairs(tx, names)
    found = []
    for row in rows:
        trend, alarm = trends[row.host], alarms.get(row.host, NO_ALARM)
        found.append(
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
    return found


def _marked(rows: Sequence[HostSums], guessed: Mapping[str, bool]) -> list[HostSums]:
    return [replace(row, guessed=guessed.get(row.host, False)) for row in rows]
