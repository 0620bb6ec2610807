"""The file of hosts: thousands of lines, from one statement."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sqlalchemy import Text, cast, func, literal, select, true
from sqlalchemy.dialects.postgresql import ARRAY, JSONPATH, aggregate_order_by, array

from app.db.models.hosts import HostReading
from app.lists.columns import in_files
from app.lists.csv_lines import csv_lines
from app.services.hosts.costs import Span
from app.services.hosts.listed import HOSTS, MOST, HostRow, Show
from app.services.hosts.read import is_shown
from app.services.hosts.sums import ledger

if TYPE_CHECKING:
    from sqlalchemy import CTE, Subquery
    from sqlalchemy.sql.selectable import LateralFromClause

    from app.db.unit_of_work import Reads

# The columns of the file.
HEADER: Final = tuple(in_files(HostRow))
# What is looked up for each host that is listed, by the name in the file.
_LOOKED_UP: Final = ("guessed", "slowdown_now", "gpus_named")


def hosts_file(tx: Reads, span: Span, sort: str, *, show: Show, words: str = "") -> str:
    """Return the lines of the hosts of a time below `HEADER`; at most `MOST`.

    Parameters
    ----------
    sort : str
        The name of an order of `HOSTS`.
    show, words
        As `app.services.hosts.read.list_hosts` takes them.
    """
    hosts = ledger(tx, span, words)
    # Among equals the most expensive one comes first.
    order = [_column(HOSTS.sort(sort)), "-cost_gpu_hours", "host"]
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


def _column(sort: str) -> str:
    """Return the column of an order, with the minus sign of the order."""
    minus = "-" if sort.startswith("-") else ""
    return minus + HOSTS.sorts[sort.removeprefix("-")]


def _latest(listed: CTE, span: Span, name: str) -> LateralFromClause:
    """Return the latest reading of each host in a time."""
    received = HostReading.received_at
    return (
        select(HostReading.slowdown, HostReading.guessed)
        .where(HostReading.host == listed.c.host, *span.holds(received.expression))
        .order_by(received.desc(), HostReading.session_id)
        .limit(1)
        .lateral(name)
    )


def _gpus(span: Span) -> Subquery:
    """Return the GPUs of each host that causes name in a time."""
    found = func.jsonb_path_query(
        HostReading.gpus, cast(literal("$[*] ? (@.slow == true).gpu"), JSONPATH)
    )
    # all slow readings: they are few, and in an index
    named = (
        select(HostReading.host, found.op("#>>")(array([], type_=Text)).label("gpu"))
        .where(HostReading.cause.is_not(None), *span.holds(HostReading.received_at.expression))
        .distinct()
        .subquery("named")
    )
    gpu = aggregate_order_by(named.c.gpu, func.length(named.c.gpu), named.c.gpu)
    return (
        select(named.c.host, func.array_agg(gpu, type_=ARRAY(Text)).label("gpus"))
        .group_by(named.c.host)
        .subquery("gpus_named")
    )
