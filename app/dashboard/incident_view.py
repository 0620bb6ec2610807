"""What the page of incidents lists, firing first, and what is over."""

from __future__ import annotations

import uuid
from collections import Counter
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Final

from app.alerts.incidents import State as Stage
from app.dashboard.alert_parts import STATES, dead, headline, labels, since
from app.dashboard.channel_health import Health, channels_title, health
from app.dashboard.format import MINUS, age, heat_color, hours, percent, plural, times
from app.dashboard.incident_life import Chosen, chosen_incident
from app.dashboard.parts import State

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from app.services.alert_channels import ChannelView
    from app.services.alert_incidents import IncidentRow
    from app.services.alert_views import IncidentLife, Incidents, Over, Tally

WARNING: Final = State("warn", "", 0)


@dataclass(frozen=True, slots=True)
class Line:
    """An incident in the list."""

    id: uuid.UUID
    url: str
    job: str
    state: State
    headline: str
    labels: str
    slowdown: str
    color: str
    lost: str
    fix: str
    gain: str
    since: datetime
    chosen: bool


@dataclass(frozen=True, slots=True)
class OverLine:
    """An incident that is over; gains are empty where nothing measured them."""

    url: str
    job: str
    headline: str
    before: str
    after: str
    fix: str
    predicted: str
    measured: str
    lasted: str
    resolved_at: datetime
    chosen: bool


@dataclass(frozen=True, slots=True)
class IncidentsPage:
    """The page; `version` changes when anything on it does that is not a mere age."""

    now: datetime
    title: str
    heading: str
    states: Sequence[tuple[State, str]]
    list_title: str
    lines: Sequence[Line]
    over_title: str
    over: Sequence[OverLine]
    chosen: Chosen | None
    channels_title: str
    channels: Sequence[Health]
    version: str


def incidents_page(
    found: Incidents,
    life: IncidentLife | None,
    channels: Sequence[ChannelView],
    tallies: Mapping[uuid.UUID, Tally],
) -> IncidentsPage:
    """Return the page of incidents.

    Parameters
    ----------
    found : Incidents
    life : IncidentLife or None
        Of the chosen one.
    channels : sequence of ChannelView
    tallies : mapping of UUID to Tally
    """
    chosen_id = life.view.row.incident.id if life else None
    rates = {row.incident.id: _rate(row, found) for row in found.present}
    rows = _ranked(found)
    firing = [row for row in rows if row.incident.state is Stage.FIRING]
    short = f"{len(firing)} firing" if firing else "none firing"
    return IncidentsPage(
        now=found.now,
        title=f"Incidents: {short}" if life is None else _title(life, short),
        heading=_heading(firing, rows, _by_job(firing, rates)),
        states=_states(rows, channels),
        list_title=_list_title(firing, rows, _by_job(firing, rates)),
        lines=[_line(row, rates[row.incident.id], chosen_id) for row in rows],
        over_title=f"{plural(len(found.over), 'incident')} over in the last 7 days",
        over=[_over(item, chosen_id) for item in found.over],
        chosen=None if life is None else chosen_incident(life, channels),
        channels_title=channels_title(channels),
        channels=[health(channel, tallies.get(channel.id), found.now) for channel in channels],
        version=_version(rows, life, channels),
    )


def most_pressing(found: Incidents) -> uuid.UUID | None:
    """Return the incident that is shown where none is asked for; None where none is open."""
    rows = _ranked(found)
    return rows[0].incident.id if rows else None


def _ranked(found: Incidents) -> list[IncidentRow]:
    """Return firing ones first, then by what the job loses."""
    return sorted(
        found.present,
        key=lambda row: (STATES[row.incident.state].order, -(_rate(row, found) or 0.0)),
    )


def _rate(row: IncidentRow, found: Incidents) -> float | None:
    """Return GPU-hours lost each hour by the job."""
    facts = row.incident.facts
    if facts is None or facts.waste is None or facts.session not in found.sessions:
        return None
    return facts.waste * found.sessions[facts.session].world


def _by_job(
    rows: Sequence[IncidentRow], rates: Mapping[uuid.UUID, float | None]
) -> dict[str, float]:
    """Count a job's loss once, however many incidents it has."""
    lost: dict[str, float] = {}
    for row in rows:
        rate = rates[row.incident.id]
        if rate is not None:
            lost[row.job] = max(rate, lost.get(row.job, 0.0))
    return lost


def _title(life: IncidentLife, short: str) -> str:
    row = life.view.row
    word = STATES[row.incident.state].word.lower()
    return f"{row.job}: {headline(row.incident)}, {word} ({short})"


def _heading(
    firing: Sequence[IncidentRow], rows: Sequence[IncidentRow], lost: Mapping[str, float]
) -> str:
    if not rows:
        return "No incident is open"
    if not firing:
        return f"Nothing fires; {plural(len(rows), 'incident')} open"
    verb = "fires" if len(firing) == 1 else "fire"
    if not lost:
        return f"{plural(len(firing), 'incident')} {verb}"
    total = hours(sum(lost.values()))
    subject = plural(len(firing), "incident")
    costs = "costs" if len(firing) == 1 else "cost"
    return f"{subject} {verb} and {costs} {total} GPU-hours each hour"


def _list_title(
    firing: Sequence[IncidentRow], rows: Sequence[IncidentRow], lost: Mapping[str, float]
) -> str:
    if not rows:
        return "Nothing to list"
    text = f"{len(firing)} firing of {len(rows)} open"
    total = sum(lost.values())
    if len(lost) > 1 and total > 0:
        job, most = max(lost.items(), key=lambda item: item[1])
        text += f"; {job} loses {percent(most / total, 0)} of the hours"
    return text


def _states(
    rows: Sequence[IncidentRow], channels: Sequence[ChannelView]
) -> list[tuple[State, str]]:
    counted = Counter(row.incident.state for row in rows)
    shown = [
        (state, f"{counted[stage]} {state.word.lower()}")
        for stage, state in STATES.items()
        if counted[stage]
    ]
    gone = len(dead(channels))
    if gone:
        verb = "channel is dead" if gone == 1 else "channels are dead"
        shown.append((WARNING, f"{gone} {verb}"))
    if not any(channel.enabled for channel in channels):
        shown.append((WARNING, "no channel: nobody is told"))
    return shown


def _gain(gain: float) -> str:
    text = percent(abs(gain))
    if text == percent(0.0):
        return text
    return f"{MINUS if gain > 0 else '+'}{text}"


def _line(row: IncidentRow, rate: float | None, chosen: uuid.UUID | None) -> Line:
    incident, facts = row.incident, row.incident.facts
    slowdown = facts.slowdown if facts else None
    fix = facts.fix if facts else None
    return Line(
        id=incident.id,
        url=f"/incidents/{incident.id}",
        job=row.job,
        state=STATES[incident.state],
        headline=headline(incident),
        labels=", ".join(
            part
            for part in (
                "critical" if incident.severity == "critical" else "",
                labels(facts),
            )
            if part
        ),
        slowdown="none" if slowdown is None else times(slowdown),
        color="" if slowdown is None else heat_color(slowdown),
        lost="" if rate is None else hours(rate),
        fix=fix.title if fix else "",
        gain=_gain(fix.gain) if fix else "",
        since=since(incident),
        chosen=incident.id == chosen,
    )


def _over(item: Over, chosen: uuid.UUID | None) -> OverLine:
    incident, before, after = item.row.incident, item.row.incident.facts, item.after
    fix = before.fix if before else None
    saved = (
        1 - after.step_time_s / before.step_time_s
        if before and after and before.step_time_s and after.step_time_s
        else None
    )
    ended = incident.resolved_at or incident.opened_at
    return OverLine(
        url=f"/incidents/{incident.id}",
        job=item.row.job,
        headline=headline(incident),
        before=times(before.slowdown) if before and before.slowdown is not None else "",
        after=times(after.slowdown) if after and after.slowdown is not None else "",
        fix=fix.title if fix else "",
        predicted=_gain(fix.gain) if fix else "",
        measured="" if saved is None else _gain(saved),
        lasted=age((ended - since(incident)).total_seconds()),
        resolved_at=ended,
        chosen=incident.id == chosen,
    )


def _version(
    rows: Sequence[IncidentRow], life: IncidentLife | None, channels: Sequence[ChannelView]
) -> str:
    """Return a short text that is the same as long as the page says the same."""
    parts: list[object] = [(row.incident.id, row.incident.state) for row in rows]
    parts += [(channel.id, channel.enabled, channel.failures) for channel in channels]
    if life is not None:
        parts += [len(life.view.events), *((s.id, s.state, s.attempt) for s in life.deliveries)]
    return uuid.uuid5(uuid.NAMESPACE_OID, repr(parts)).hex
