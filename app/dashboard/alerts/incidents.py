"""What the page of incidents lists, firing first, and what is over."""

from __future__ import annotations

import math
import uuid
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Final

from app.alerts.readings import NO_DATA_CAUSE
from app.alerts.states import IncidentState
from app.analysis.wording import hours
from app.dashboard.alerts.channel_health import ChannelHealth, channels_title, health
from app.dashboard.alerts.incident_life import ChosenIncident, chosen_incident
from app.dashboard.alerts.parts import STATES, context, dead, headline, labels, since
from app.dashboard.look.format import MINUS, age, count, heat_color, percent, plural, times
from app.dashboard.look.parts import StateLabel

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from app.alerts.facts import Facts
    from app.alerts.incidents import Incident
    from app.services.alerts.channels.reads import ChannelView, Tally
    from app.services.alerts.incident_reads import IncidentRow
    from app.services.alerts.views import IncidentLife, Incidents, Over

WARNING: Final = StateLabel("warn", "", 0)

# So many incidents to a page.
PAGE: Final = 100
# A job is worth naming when it loses this share of all that is lost.
NAMED_SHARE: Final = 0.3


@dataclass(frozen=True, slots=True)
class IncidentLine:
    """An incident in the list."""

    id: uuid.UUID
    url: str
    job: str
    state: StateLabel
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
    states: Sequence[tuple[StateLabel, str]]
    list_title: str
    list_note: str
    lines: Sequence[IncidentLine]
    previous_url: str
    next_url: str
    over_title: str
    over: Sequence[OverLine]
    chosen: ChosenIncident | None
    asked: bool
    channels_title: str
    channels: Sequence[ChannelHealth]
    version: str


def incidents_page(  # noqa: PLR0913 - everything that is on it
    found: Incidents,
    life: IncidentLife | None,
    channels: Sequence[ChannelView],
    tallies: Mapping[uuid.UUID, Tally],
    *,
    asked: bool = True,
    number: int = 1,
) -> IncidentsPage:
    """Return the page of incidents.

    Parameters
    ----------
    found : Incidents
    life : IncidentLife or None
        Of the chosen one.
    channels : sequence of ChannelView
    tallies : mapping of UUID to Tally
    asked : bool
        Whether the chosen one was asked for by its address.
    number : int
        Of the page of the list; the last one where there are not so many.
    """
    chosen_id = life.view.row.incident.id if life else None
    rates = {row.incident.id: _rate(row, found) for row in found.present}
    rows = _ranked(found)
    firing = [row for row in rows if row.incident.state is IncidentState.FIRING]
    fire = found.counts.get(IncidentState.FIRING, 0)
    short = f"{count(fire)} firing" if fire else "none firing"
    number = min(max(number, 1), max(1, math.ceil(len(rows) / PAGE)))
    shown = rows[PAGE * (number - 1) : PAGE * number]
    return IncidentsPage(
        now=found.now,
        title=f"Incidents: {short}" if life is None else _title(life, short),
        heading=_heading(found, _by_job(firing, rates)),
        states=_states(found, channels),
        list_title=_list_title(found, _by_job(firing, rates)),
        list_note=_list_note(found, number, len(shown)),
        lines=[_line(row, rates[row.incident.id], chosen_id, found.now, number) for row in shown],
        previous_url=_page_url(number - 1) if number > 1 else "",
        next_url=_page_url(number + 1) if PAGE * number < len(rows) else "",
        over_title=_over_title(found),
        over=[_over(item, chosen_id) for item in found.over],
        chosen=None if life is None else chosen_incident(life, channels),
        asked=asked and life is not None,
        channels_title=channels_title(channels),
        channels=[health(channel, tallies.get(channel.id), found.now) for channel in channels],
        version=_version(found, life, channels),
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
    if facts is None or facts.shown is None or facts.session not in found.sessions:
        return None
    return facts.shown.waste * found.sessions[facts.session].world


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


def _heading(found: Incidents, lost: Mapping[str, float]) -> str:
    fire, total = found.counts.get(IncidentState.FIRING, 0), sum(found.counts.values())
    if not total:
        return "No incident is open"
    if not fire:
        return f"Nothing fires; {plural(total, 'incident')} open"
    verb, costs = ("fires", "costs") if fire == 1 else ("fire", "cost")
    subject = plural(fire, "incident")
    if not lost:
        return f"{subject} {verb}"
    # What is beyond the list was not added up.
    least = "" if fire <= len(found.present) else "at least "
    return f"{subject} {verb} and {costs} {least}{hours(sum(lost.values()))} GPU-hours each hour"


def _list_title(found: Incidents, lost: Mapping[str, float]) -> str:
    if not found.present:
        return "Nothing to list"
    fire, total = found.counts.get(IncidentState.FIRING, 0), sum(found.counts.values())
    text = f"{count(fire)} firing of {count(total)} open"
    hourly = sum(lost.values())
    if len(lost) > 1 and hourly > 0:
        job, most = max(lost.items(), key=lambda item: item[1])
        if most / hourly >= NAMED_SHARE:
            text += f"; {job} loses {percent(most / hourly, 0)} of the hours"
    return text


def _list_note(found: Incidents, number: int, shown: int) -> str:
    """Return in which order the list is, and what of it is not here."""
    if not found.present:
        return "An incident opens when a rule of alerts holds for a job"
    text = "Firing first, then by GPU-hours that the job loses each hour"
    listed, total = len(found.present), sum(found.counts.values())
    if shown < listed:
        first = PAGE * (number - 1) + 1
        text += f"; {first} to {first + shown - 1} of {count(listed)}"
    if listed < total:
        text += f"; {count(total - listed)} more are not listed"
    if found.hidden:
        text += f"; {count(found.hidden)} hidden while their jobs send nothing"
    return text


def _over_title(found: Incidents) -> str:
    text = f"{plural(found.over_count, 'incident')} over in the last 7 days"
    shown = len(found.over)
    return text if shown >= found.over_count else f"{text}; the latest {shown}"


def _page_url(number: int) -> str:
    return "/incidents" if number == 1 else f"/incidents?page={number}"


def _states(found: Incidents, channels: Sequence[ChannelView]) -> list[tuple[StateLabel, str]]:
    shown = [
        (state, f"{count(found.counts[stage])} {state.word.lower()}")
        for stage, state in STATES.items()
        if found.counts.get(stage)
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


def _line(
    row: IncidentRow, rate: float | None, chosen: uuid.UUID | None, now: datetime, number: int
) -> IncidentLine:
    incident, facts = row.incident, row.incident.facts
    slowdown = _slowdown(facts)
    fix = facts.fix if facts else None
    return IncidentLine(
        id=incident.id,
        url=f"/incidents/{incident.id}" + (f"?page={number}" if number > 1 else ""),
        job=row.job,
        state=STATES[incident.state],
        headline=headline(incident),
        labels=" · ".join(part for part in (_standing(incident, now), labels(facts)) if part),
        slowdown="none" if slowdown is None else times(slowdown),
        color="" if slowdown is None else heat_color(slowdown),
        lost="" if rate is None else hours(rate),
        fix=fix.title if fix else "",
        gain=_gain(fix.gain) if fix else "",
        since=since(incident),
        chosen=incident.id == chosen,
    )


def _standing(incident: Incident, now: datetime) -> str:
    """Return the detail behind the word for its state."""
    return "" if incident.state is IncidentState.PENDING else context(incident, now)


def _over(item: Over, chosen: uuid.UUID | None) -> OverLine:
    incident, before = item.row.incident, item.row.incident.facts
    # How slow the job was before and after says nothing of its silence.
    after = None if incident.cause == NO_DATA_CAUSE else item.after
    fix = before.fix if before else None
    slow_before, slow_after = _slowdown(before), _slowdown(after)
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
        before="" if slow_before is None else times(slow_before),
        after="" if slow_after is None else times(slow_after),
        fix=fix.title if fix else "",
        predicted=_gain(fix.gain) if fix else "",
        measured="" if saved is None else _gain(saved),
        lasted=age((ended - since(incident)).total_seconds()),
        resolved_at=ended,
        chosen=incident.id == chosen,
    )


def _slowdown(facts: Facts | None) -> float | None:
    return facts.shown.slowdown if facts and facts.shown else None


def _version(found: Incidents, life: IncidentLife | None, channels: Sequence[ChannelView]) -> str:
    """Return a short text that is the same as long as the page says the same."""
    parts: list[object] = [(row.incident.id, row.incident.state) for row in found.present]
    parts += [sorted(found.counts.items()), found.over_count]
    parts += [(channel.id, channel.enabled, channel.failures) for channel in channels]
    if life is not None:
        parts += [len(life.view.events), *((s.id, s.state, s.attempt) for s in life.deliveries)]
    return uuid.uuid5(uuid.NAMESPACE_OID, repr(parts)).hex
