"""The read side of hosts: which cost most over all jobs and sessions, and which only look slow."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from sqlalchemy import select

from app.analysis.trace.ranks.machine import called
from app.db.models.hosts import HostRepair
from app.lists.columns import columns_of
from app.lists.pages import Page
from app.services.hosts.details import NO_ALARM, TREND, alarms_of, gpus_of, guessed_of, trends_of
from app.services.hosts.listed import HOSTS, HostRow, Hosts, HostSums, Show, Totals
from app.services.hosts.repairs import latest_repairs
from app.services.hosts.sums import by_host

if TYPE_CHECKING:
    from app.db.unit_of_work import Reads
    from app.lists.listing import PageRequest
    from app.services.hosts.costs import Span

# Hosts listed that look slow and are not blamed.
LOOK_ALIKES: Final = 20


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
    ledger = by_host(tx, span, words)
    # Among equals the most expensive one comes first.
    ledger.sort(key=lambda row: (-row.cost_gpu_hours, row.host))
    repaired = set(tx.session.execute(select(HostRepair.host).distinct()).scalars())
    matching = [row for row in ledger if row.matches and _shown(row, show, repaired)]
    page = HOSTS.page(matching, request)
    alike = _look_alikes(ledger, alike_from)
    first = next((row for row in ledger if row.blamed), None)
    shown = (*page.rows, *alike) if first is None else (first, *page.rows, *alike)
    guessed = guessed_of(tx, sorted({row.host for row in shown}))
    rows = _detailed(tx, span, _marked(page.rows, guessed), brief=brief)
    return Hosts(
        now=tx.now,
        totals=_totals(ledger, repaired, guessed),
        page=Page(rows, page.number, page.total, page.size),
        look_alikes=_marked(alike, guessed),
    )


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
                **{name: getattr(row, name) for name in columns_of(HostSums)},
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


def _shown(row: HostSums, show: Show, repaired: Collection[str]) -> bool:
    if show is Show.BLAMED:
        return row.blamed
    return show is Show.ALL or row.host in repaired


def _look_alikes(ledger: Sequence[HostSums], alike_from: float) -> list[HostSums]:
    alike = [
        row
        for row in ledger
        if not row.blamed and (row.slow_sessions > 0 or row.slowdown_worst >= alike_from)
    ]
    alike.sort(key=lambda row: (-row.slow_sessions, -row.slowdown_worst, row.host))
    return alike[:LOOK_ALIKES]


def _totals(
    ledger: Sequence[HostSums], repaired: Collection[str], guessed: Mapping[str, bool]
) -> Totals:
    blamed = [row for row in ledger if row.blamed]
    return Totals(
        hosts=len(ledger),
        ranks=sum(row.ranks for row in ledger),
        blamed=len(blamed),
        repaired=sum(row.host in repaired for row in ledger),
        cost=sum(row.cost_gpu_hours for row in blamed),
        first=called(blamed[0].host, guessed=guessed[blamed[0].host]) if blamed else None,
        first_cost=blamed[0].cost_gpu_hours if blamed else 0.0,
    )
