"""A digest as a note that fits on one screen, for channels that people read."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Final
from urllib.parse import urlencode

from app.analysis.wording import hours
from app.incidents.channels.kind import Note, Section
from app.incidents.message import Alert, Message, cause_name
from app.incidents.models.tables import IncidentState
from app.incidents.text import duration

# Maximum of lines under each of the two headings: together they fill the screen of a phone.
LINES: Final = 5


def digest_note(message: Message) -> Note:
    """Return a digest: counts by cause with their cost, and the most expensive incidents.

    Its link opens the list of exactly these incidents.
    """
    shown = message.present or message.resolved
    query = {"message": str(message.id)}
    if not message.firing:
        query["state"] = IncidentState.RESOLVED.value
    return Note(
        id=message.id,
        at=message.at,
        title=message.title,
        sections=(
            Section("By cause", _by_cause(shown)),
            Section(
                "Most expensive" if message.firing else "Over", _most_expensive(message, shown)
            ),
        ),
        link=f"{message.base_url}incidents?{urlencode(query)}",
        receiver=message.receiver,
        link_text=f"Open all {len(shown)}",
    )


def _lost(alert: Alert) -> float:
    return (alert.facts.lost_each_hour if alert.facts else None) or 0.0


def _by_cause(alerts: Sequence[Alert]) -> tuple[str, ...]:
    by_cause: dict[str, list[Alert]] = defaultdict(list)
    for alert in alerts:
        by_cause[alert.cause].append(alert)
    ordered = sorted(by_cause.items(), key=lambda item: (-_cost(item[1]), -len(item[1])))
    lines = [f"{len(of)} × {cause_name(cause)}{_costs(of)}" for cause, of in ordered[:LINES]]
    rest = [alert for _, of in ordered[LINES:] for alert in of]
    return (*lines, f"{len(rest)} others{_costs(rest)}") if rest else tuple(lines)


def _cost(alerts: Iterable[Alert]) -> float:
    # Count the lost hours of a job once, although it may have several incidents.
    by_job: dict[str, float] = {}
    for alert in alerts:
        by_job[alert.job] = max(by_job.get(alert.job, 0.0), _lost(alert))
    return sum(by_job.values())


def _costs(alerts: Iterable[Alert]) -> str:
    lost = _cost(alerts)
    return f", {hours(lost)} GPU-hours each hour" if lost > 0 else ""


def _most_expensive(message: Message, alerts: Sequence[Alert]) -> tuple[str, ...]:
    # The sort is stable: alerts of equal loss keep the message's order, the worst first.
    ordered = sorted(alerts, key=lambda alert: -_lost(alert))
    lines = []
    for alert in ordered[:LINES]:
        if message.firing:
            about = _costs([alert])
        else:
            about = f", after {duration((alert.resolved_at or message.at) - alert.since)}"
        lines.append(f"{alert.subject}{about}")
    return tuple(lines)
