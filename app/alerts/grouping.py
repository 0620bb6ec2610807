"""Grouping: when a job's incidents are sent, and which of them a channel's message holds.

The incidents of one job are one group (Alertmanager's semantics):

group_wait
    A group that has been quiet waits before its first message, so that what begins together is
    told together. What ends within that time was never told, and nothing is sent.
group_interval
    At least so long between two messages of a group.
repeat_interval
    What still fires is told again after this, unless it is acknowledged.

What a channel knows is read from what it was sent (`Sent`), never remembered anywhere else: after
any failure, restart or doubled run the next look comes to the right message. A channel hears that
an incident is over only if it may have heard of the incident, and always does in that case.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final
from uuid import UUID

from pydantic import TypeAdapter

from app.alerts.incidents import Incident
from app.alerts.states import IncidentState


@dataclass(frozen=True, slots=True)
class Timing:
    """Intervals of all groups."""

    group_wait: timedelta = timedelta(seconds=30)
    group_interval: timedelta = timedelta(minutes=5)
    repeat_interval: timedelta = timedelta(hours=4)


@dataclass(frozen=True, slots=True)
class Manner:
    """How a kind of channel wants to be told."""

    acknowledgements: bool = False  # also that an incident was acknowledged
    refreshes: bool = False  # also again what was acknowledged: it forgets what is not repeated
    # Whether what many groups say may come as one message. Where each incident is opened and
    # closed by itself it may not.
    digests: bool = True


class Status(StrEnum):
    """The state of an incident that a channel was sent."""

    FIRING = "firing"
    ACKNOWLEDGED = "acknowledged"
    RESOLVED = "resolved"


@dataclass(frozen=True, slots=True)
class IncidentItem:
    """An incident in a message; equal items are no news."""

    incident: UUID
    status: Status
    epoch: int


@dataclass(frozen=True, slots=True)
class Content:
    """What a message says."""

    present: tuple[IncidentItem, ...] = ()
    """All that fires, or is acknowledged where the channel shows that."""
    resolved: tuple[IncidentItem, ...] = ()
    """What is over since the channel was last told."""
    withheld: tuple[UUID, ...] = ()
    """What the channel knows of and is told nothing about at present: silenced, or another incident
    speaks for it. Kept, so that its end is told later."""

    @property
    def told(self) -> set[UUID]:
        """Return the incidents that a channel with this message holds to be open."""
        return {item.incident for item in self.present} | set(self.withheld)


CONTENT: Final = TypeAdapter(Content)


@dataclass(frozen=True, slots=True)
class Sent:
    """An earlier message of the group to the channel."""

    created_at: datetime
    content: Content
    delivered: bool  # whether the channel surely got it; else it may have, or not
    # False where a newer one took its place, so that it was not due any more, or where the
    # channel was disabled since, and is to hear of everything anew.
    counts: bool = True


@dataclass(frozen=True, slots=True)
class Audience:
    """A channel as a group sees it."""

    manner: Manner
    sent: Sequence[Sent]
    """What was tried, the oldest first; older than the last delivered one is not needed."""


def visible(incidents: Sequence[Incident], inside: frozenset[UUID] = frozenset()) -> list[Incident]:
    """Return the incidents to notify about: not silenced, and not inside of another one."""
    return [
        i
        for i in incidents
        if i.state in (IncidentState.FIRING, IncidentState.ACKNOWLEDGED) and i.id not in inside
    ]


def next_flush(
    timing: Timing, now: datetime, flushed_at: datetime | None, due_at: datetime | None
) -> datetime:
    """Return when a group is to be looked at because of a transition now.

    Parameters
    ----------
    now : datetime
    flushed_at : datetime or None
        When it was last looked at.
    due_at : datetime or None
        When it was to be looked at anyway.
    """
    at = now + timing.group_wait
    if flushed_at is not None:
        at = max(at, flushed_at + timing.group_interval)
    return at if due_at is None else min(at, due_at)


def content_for(
    incidents: Sequence[Incident], audience: Audience, inside: frozenset[UUID] = frozenset()
) -> Content:
    """Return what a channel has to hear now.

    Parameters
    ----------
    incidents : sequence of Incident
        Those of the group that this channel is for, and those that it may have heard of, also the
        resolved ones.
    inside : frozenset of UUID
        Those that an incident of another job speaks for.
    """
    shown = {incident.id: incident for incident in visible(incidents, inside)}
    believed = _believed(audience)
    return Content(
        present=tuple(_item(incident, audience.manner) for incident in shown.values()),
        resolved=tuple(
            IncidentItem(incident.id, Status.RESOLVED, incident.epoch)
            for incident in incidents
            if incident.state is IncidentState.RESOLVED and incident.id in believed
        ),
        withheld=tuple(
            incident.id
            for incident in incidents
            if incident.state is not IncidentState.RESOLVED
            and incident.id in believed
            and incident.id not in shown
        ),
    )


def is_due(
    content: Content,
    incidents: Sequence[Incident],
    audience: Audience,
    timing: Timing,
    now: datetime,
) -> bool:
    """Return whether a channel is to be told `content`: it is news, or to be repeated."""
    counted = [sent for sent in audience.sent if sent.counts]
    if not counted:
        return bool(content.present or content.resolved)
    last = counted[-1]
    if set(content.present) - set(last.content.present):
        return True
    if set(content.resolved) - set(last.content.resolved):
        return True
    repeated = {
        incident.id
        for incident in incidents
        if audience.manner.refreshes or incident.state is IncidentState.FIRING
    }
    return now >= last.created_at + timing.repeat_interval and (
        any(item.incident in repeated for item in content.present)
        # What was refused, or is still being tried, has not been told.
        or bool(content.resolved)
        or (bool(content.present) and not last.delivered)
    )


def _item(incident: Incident, manner: Manner) -> IncidentItem:
    shows = manner.acknowledgements and incident.state is IncidentState.ACKNOWLEDGED
    return IncidentItem(
        incident.id, Status.ACKNOWLEDGED if shows else Status.FIRING, incident.epoch
    )


def _believed(audience: Audience) -> set[UUID]:
    """Return the incidents that the channel may hold to be open.

    The last delivered message says it all; each later one may have come through as well.
    """
    believed: set[UUID] = set()
    for sent in audience.sent:
        believed = sent.content.told if sent.delivered else believed | sent.content.told
    return believed
