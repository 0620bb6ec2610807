"""What a list says of the hosts on one page of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from sqlalchemy import ARRAY, Text, any_, cast, func, literal, select, true
from sqlalchemy.dialects.postgresql import JSONPATH

from app.alerts.states import IncidentState
from app.db.models.alerts import AlertIncident
from app.db.models.hosts import HostReading

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import TableValuedAlias

    from app.db.unit_of_work import Reads
    from app.services.hosts.costs import Span

# Sessions of a trend: what a sparkline shows.
TREND: Final = 24


@dataclass(frozen=True, slots=True)
class Alarms:
    """Incidents that name a host: those that were sent, and whether one fires."""

    incidents: int
    firing: bool


NO_ALARM: Final = Alarms(0, firing=False)


def trends_of(tx: Reads, span: Span, hosts: Sequence[str], most: int) -> dict[str, list[float]]:
    """Return the slowdown of each host in its latest sessions, at most `limit`, oldest first."""
    named = _named(hosts)
    received = HostReading.received_at
    latest = (
        select(HostReading.slowdown, received, HostReading.session_id)
        .where(HostReading.host == named.c.host, *span.holds(received.expression))
        .order_by(received.desc(), HostReading.session_id)
        .limit(most)
        .lateral("latest")
    )
    found: dict[str, list[float]] = {host: [] for host in hosts}
    for host, slowdown in tx.session.execute(
        select(named.c.host, latest.c.slowdown)
        .join(latest, true())
        .order_by(named.c.host, latest.c.received_at, latest.c.session_id.desc())
    ):
        found[host].append(slowdown)
    return found


def guessed_of(tx: Reads, hosts: Sequence[str]) -> dict[str, bool]:
    """Return whether the name of each host is a guess, by the latest session that has it."""
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


def gpus_of(tx: Reads, span: Span, hosts: Sequence[str]) -> dict[str, list[str]]:
    """Return the GPUs of each host that causes name."""
    # Joined, so that all slow readings are looked through: they are few, and in an index.
    named = _named(hosts)
    gpus = func.jsonb_path_query_array(
        HostReading.gpus, cast(literal("$[*] ? (@.slow == true).gpu"), JSONPATH)
    )
    found: dict[str, set[str]] = {}
    for host, some in tx.session.execute(
        select(HostReading.host, gpus)
        .join(named, named.c.host == HostReading.host)
        .where(HostReading.cause.is_not(None), *span.holds(HostReading.received_at.expression))
        .distinct()
    ):
        found.setdefault(host, set()).update(some)
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
        .where(
            AlertIncident.fired_at.is_not(None), where == any_(literal(list(hosts), ARRAY(Text)))
        )
        .group_by(where)
    )
    return {host: Alarms(count, firing) for host, count, firing in rows}


def _named(hosts: Sequence[str]) -> TableValuedAlias:
    each = func.unnest(cast(literal(list(hosts), ARRAY(Text)), ARRAY(Text)))
    return each.table_valued("host").render_derived(name="named")
