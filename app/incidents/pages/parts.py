"""Parts of incident pages: states, titles, members, losses and possible orders."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from markupsafe import Markup

from app.incidents.channel_reads import ChannelView, is_dead
from app.incidents.everywhere import Onset
from app.incidents.held_machines import place_of
from app.incidents.lifecycle import Incident
from app.incidents.message import cause_name, silent_together, view_url
from app.incidents.models.facts import NO_DATA_CAUSE, Facts
from app.incidents.models.rules import Audience
from app.incidents.models.tables import IncidentState
from app.incidents.reads import IncidentRow, InsideRow
from app.web.format import MINUS, percent, plural, times
from app.web.moments import when
from app.web.parts import StateLabel


def since_when(onset: Onset, now: datetime) -> Markup:
    """Return an onset as text: ``since 02:35, session 4, was 1.01×``."""
    before = "the first with a verdict" if onset.was is None else f"was {times(onset.was)}"
    return Markup("since {}, session {}, {}").format(when(onset.at, now), onset.number, before)


# Sort orders are negative, so that open incidents precede all session states.
STATES: Final = {
    IncidentState.FIRING: StateLabel("firing", "Firing", -4),
    IncidentState.ACKNOWLEDGED: StateLabel("ack", "Acknowledged", -3),
    IncidentState.PENDING: StateLabel("pending", "Pending", -2),
    IncidentState.SILENCED: StateLabel("silenced", "Silenced", -1),
    IncidentState.RESOLVED: StateLabel("resolved", "Resolved", 5),
}

# Labels of the audiences that a rule notifies, and to which a channel belongs.
AUDIENCES: Final[Mapping[Audience, str]] = {"on_call": "on call", "owner": "the job's owner"}

# Maximum length in characters of a receiver's answer in a table.
ANSWER_CHARACTERS: Final = 160


@dataclass(frozen=True, slots=True)
class Actions:
    """The orders that are possible for an incident."""

    id: uuid.UUID
    url: str
    headline: str
    state: StateLabel
    since: datetime
    context: str
    can_acknowledge: bool
    can_silence: bool
    can_resolve: bool
    can_unacknowledge: bool
    can_reopen: bool
    is_silenced: bool


def headline(incident: Incident) -> str:
    """Return an incident's cause and place: ``Slow worker: node-017``."""
    place = f": {place_of(incident.where, incident.facts)}" if incident.where else ""
    return f"{cause_name(incident.cause)}{place}"


def title_of(row: IncidentRow) -> str:
    """Return job, cause and place; for jobs that went silent together, the number of jobs."""
    return silent_together_title(row) or f"{row.job}: {headline(row.incident)}"


def silent_together_title(row: IncidentRow) -> str:
    """Return the title of jobs that went silent together; empty for other incidents."""
    jobs = len({row.job, *(member.job for member in row.inside)})
    if row.incident.cause != NO_DATA_CAUSE or jobs == 1:
        return ""
    return silent_together(jobs)


def job_count(row: IncidentRow) -> str:
    """Return the number of an incident's jobs as text; empty for a single job."""
    jobs = {row.job, *(member.job for member in row.inside)}
    return plural(len(jobs), "job") if len(jobs) > 1 else ""


def member_rows(row: IncidentRow) -> Sequence[InsideRow]:
    """Return a row for each job of an incident, its own job first; empty for a single job.

    A job with several member incidents has one row, so that the number of rows equals `job_count`.
    """
    if not job_count(row):
        return ()
    incident, facts = row.incident, row.incident.facts
    silent = incident.cause == NO_DATA_CAUSE
    rows = {
        row.job: InsideRow(
            incident.id,
            row.job,
            incident.cause,
            incident.state,
            # A silent job has no present slowdown to show.
            None if silent else measured_slowdown(facts),
            None if silent or facts is None else facts.lost_each_hour,
        )
    }
    for member in row.inside:
        rows.setdefault(member.job, member)
    return tuple(rows.values())


def measured_slowdown(facts: Facts | None) -> float | None:
    """Return the slowdown in an incident's facts; None if unknown."""
    return facts.headline.slowdown if facts and facts.headline else None


def lost_each_hour(row: IncidentRow) -> float | None:
    """Return the GPU-hours that the job and its members lose each hour; None if unknown."""
    facts = row.incident.facts
    own = None if facts is None else facts.lost_each_hour
    if own is None and row.incident.notice is not None:
        own = row.incident.notice.lost_each_hour
    # Count each job once, although it may have several member incidents.
    others = {each.job: each.lost for each in row.inside if each.lost is not None}
    losses = [lost for job, lost in others.items() if job != row.job]
    losses += [] if own is None else [own]
    return sum(losses) if losses else None


def gain_text(gain: float) -> str:
    """Return the gain of a fix as a signed percentage of a step."""
    text = percent(abs(gain))
    if text == percent(0.0):
        return text
    return f"{MINUS if gain > 0 else '+'}{text}"


def session_url(incident: Incident, job_url: str) -> str:
    """Return the address of an incident's latest session or hang; without these, of its job."""
    shown = incident.facts or incident.hang
    return view_url("/", incident.facts, incident.hang) if shown else job_url


def fired_or_opened(incident: Incident) -> datetime:
    """Return when an incident fired, or was opened if it has not fired."""
    return incident.fired_at or incident.opened_at


def state_context(incident: Incident, now: datetime) -> str:
    """Return details of an incident's state: who acknowledged it, or why it is silenced."""
    if incident.state is IncidentState.ACKNOWLEDGED and incident.acknowledged_by:
        return f"by {incident.acknowledged_by}"
    if incident.state is IncidentState.SILENCED and incident.silence is not None:
        silence = incident.silence
        why = f": {silence.reason}" if silence.reason else ""
        return Markup("until {} by {}{}").format(when(silence.until, now), silence.by, why)
    if incident.state is IncidentState.PENDING:
        return "the condition must hold for more sessions"
    return "critical" if incident.severity == "critical" else ""


def labels(facts: Facts | None) -> str:
    """Return owner, project and team from the labels of a job."""
    given = facts.labels if facts is not None else {}
    named = [f"{name} {given[name]}" for name in ("owner", "project", "team") if name in given]
    return ", ".join(named)


def actions(row: IncidentRow, now: datetime) -> Actions:
    """Return the orders that are possible for an incident."""
    incident = row.incident
    return Actions(
        id=incident.id,
        url=f"/incidents/{incident.id}",
        headline=headline(incident),
        state=STATES[incident.state],
        since=fired_or_opened(incident),
        context=state_context(incident, now),
        can_acknowledge=incident.state is IncidentState.FIRING,
        can_silence=incident.state in IncidentState.TOLD,
        can_resolve=incident.state is not IncidentState.RESOLVED,
        can_unacknowledge=incident.state is IncidentState.ACKNOWLEDGED,
        can_reopen=incident.resolved_by is not None,
        is_silenced=incident.state is IncidentState.SILENCED,
    )


def failure_text(error: str | None, answer: str | None) -> str:
    """Return the error of a delivery, with the receiver's answer if it answered."""
    words = " ".join((answer or "").split())
    if not error or not words or words in error:
        return error or words
    short = words if len(words) <= ANSWER_CHARACTERS else f"{words[:ANSWER_CHARACTERS]}…"
    return f"{error.removesuffix('.')}: {short}"


def dead_channels(channels: Sequence[ChannelView]) -> list[ChannelView]:
    """Return the channels that deliver nothing although no user disabled them."""
    return [
        channel
        for channel in channels
        if is_dead(
            readable=channel.readable,
            enabled=channel.enabled,
            disabled_reason=channel.disabled_reason,
            failures=channel.failures,
        )
    ]
