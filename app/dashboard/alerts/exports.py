"""The tables of incidents, rules and channels as CSV."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from typing import TYPE_CHECKING, Final

from app.dashboard.alerts.parts import members
from app.dashboard.alerts.rules import condition_words, jobs_words, told
from app.dashboard.ui.csv_text import Table
from app.services.alerts.deliveries.reads import DeliveryRow
from app.services.alerts.incident_reads import IncidentRow, InsideRow
from app.services.alerts.views import IncidentLife, incidents

if TYPE_CHECKING:
    import uuid

    from app.alerts.rules import Rule
    from app.dashboard.alerts.filters import IncidentsQuery
    from app.services.alerts.channels.reads import ChannelView, Tally
    from app.services.alerts.channels.views import Undelivered
    from app.services.container import Container

# Incidents that are read at once.
BATCH: Final = 2000
COLUMNS: Final = (
    *("id", "severity", "state", "job", "cause", "where", "slowdown", "gpu_hours_lost_per_hour"),
    *("fix", "predicted_gain", "opened_at", "fired_at", "resolved_at", "assignee", "labels"),
    "jobs_inside",
)


def incidents_csv(container: Container, query: IncidentsQuery) -> Table:
    """Return the incidents that an address asks for, in its order."""
    return Table(COLUMNS, _listed(container, query))


def _listed(container: Container, query: IncidentsQuery) -> Iterator[Sequence[object]]:
    """Return the rows; each page is read in a transaction of its own."""
    for number in count(1):
        with container.reading() as tx:
            found = incidents(tx, query.at(tx.now), sort=query.sort, number=number, size=BATCH)
        rows = [item.row for item in found.over] if found.filtered.over else found.present
        yield from (incident_cells(row) for row in rows)
        if number >= found.pages:
            return


def incident_cells(row: IncidentRow) -> Sequence[object]:
    """Return the cells of an incident."""
    incident, facts = row.incident, row.incident.facts
    shown, fix = (facts.headline, facts.fix) if facts else (None, None)
    return (
        *(incident.id, incident.severity, incident.state, row.job, incident.cause),
        *(incident.where, shown and shown.slowdown),
        facts and facts.lost_each_hour,
        *(fix and fix.title, fix and fix.gain),
        *(incident.opened_at, incident.fired_at, incident.resolved_at, row.assignee),
        *(facts.labels if facts else None, len({one.job for one in row.inside})),
    )


def _deliveries(found: IncidentLife) -> Table:
    return _delivered(found.deliveries)


def _delivered(rows: Sequence[DeliveryRow]) -> Table:
    return Table.of(DeliveryRow, rows)


# File name → what makes it of an incident.
OF_INCIDENT: Final[Mapping[str, Callable[[IncidentLife], Table]]] = {
    "inside": lambda found: Table.of(InsideRow, members(found.view.row)),
    "deliveries": _deliveries,
}


def undelivered_csv(rows: Sequence[Undelivered]) -> Table:
    """Return messages that did not arrive."""
    return _delivered([one.delivery for one in rows])


def channels_csv(channels: Sequence[ChannelView], tallies: Mapping[uuid.UUID, Tally]) -> Table:
    """Return channels without what they are set to, which holds secrets."""
    names = (
        *("id", "name", "kind", "audience", "enabled", "rate_limit", "disabled_reason"),
        *("failures", "last_error", "last_failure_at", "last_success_at", "waiting", "created_at"),
    )
    of_day = ((tallies.get(one.id), one) for one in channels)
    return Table(
        (*names, "delivered_24h", "failed_24h"),
        (
            (
                *(getattr(one, name) for name in names),
                *((tally.delivered, tally.failed) if tally else (0, 0)),
            )
            for tally, one in of_day
        ),
    )


def rules_csv(rules: Sequence[Rule], channels: Sequence[ChannelView]) -> Table:
    """Return rules, in words, and who hears of them."""
    return Table(
        ("id", "name", "enabled", "condition", "jobs", "severity", "audience", "channels"),
        (
            (
                *(rule.id, rule.name, rule.enabled, condition_words(rule)),
                *(jobs_words(rule.selector), rule.severity, rule.audience, told(rule, channels)),
            )
            for rule in rules
        ),
    )
