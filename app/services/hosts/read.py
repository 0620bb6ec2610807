"""The read side of hosts: which cost most over all jobs and sessions, and which only look slow."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import select

from app.db.models.hosts import HostRepair
from app.services.hosts.details import TREND, alarms_of, gpus_of, trends_of
from app.services.hosts.listed import PAGE, HostRow, Hosts, Show, Totals
from app.services.hosts.repairs import latest_repairs
from app.services.hosts.sums import by_host

if TYPE_CHECKING:
    from app.db.unit_of_work import Reads
    from app.services.hosts.costs import Span

# Hosts listed that look slow and are not blamed.
LOOK_ALIKES: Final = 20

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
    brief: bool = False,
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
    brief : bool
        Whether trends of one session do, and no repairs are needed: for files of many hosts.
    alike_from : float
        From this slowdown on a host that no cause names looks slow.
    """
    ledger = by_host(tx, span, words)
    repaired = set(tx.session.execute(select(HostRepair.host).distinct()).scalars())
    matching = _sorted([row for row in ledger if row.named and _shown(row, show, repaired)], sort)
    page = min(max(page, 1), max(1, -(-len(matching) // size)))
    rows = matching[size * (page - 1) : size * page]
    names = [row.host for row in rows]
    return Hosts(
        now=tx.now,
        totals=_totals(ledger, repaired, len(matching)),
        rows=rows,
        page=page,
        trends=trends_of(tx, span, names, 1 if brief else TREND),
        gpus=gpus_of(tx, span, names),
        alarms=alarms_of(tx, names),
        repairs={} if brief else latest_repairs(tx, names),
        look_alikes=_look_alikes(ledger, alike_from),
    )


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
