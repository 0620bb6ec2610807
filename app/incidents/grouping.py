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

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final
from uuid import UUID

from pydantic import TypeAdapter

from app.incidents.lifecycle import Baseline, Incident, Silence, fingerprint_of
from app.incidents.models.facts import Facts, HangFacts, NoticeFacts
from app.incidents.models.rules import Rule, highest
from app.incidents.models.tables import IncidentState


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
    def believed_open(self) -> set[UUID]:
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
        believed = (
            sent.content.believed_open if sent.delivered else believed | sent.content.believed_open
        )
    return believed


# ---- The board of one evaluation of a job: what it reads, and the incidents as it changes them ---


# What a job recorded may come up to this time after it said that it ended.
FINISH_GRACE: Final = timedelta(minutes=15)


@dataclass(frozen=True, slots=True)
class IncidentChange:
    """The outcome of an incident."""

    incident: Incident  # as it is now
    before: IncidentState | None  # None where it is new
    # ``opened``, ``fired``, ``held``, ``escalated``, ``unsilenced``, ``resolved``, or a person's
    # order, such as ``acknowledged`` and ``reopened``
    event: str

    @property
    def tells(self) -> bool:
        """Return whether channels may have to be told."""
        return self.event != "held" and self.incident.was_notified


@dataclass(frozen=True, slots=True)
class JobState:
    """Everything of a job that rules look at."""

    job: str
    labels: Mapping[str, str]  # of its latest session
    # Its analyzed sessions, the oldest first; at most `HISTORY_SESSIONS` are needed.
    history: Sequence[Facts]
    # when its latest sessions came, analyzed or not, the oldest first
    received: Sequence[datetime]
    finished_at: datetime | None  # when the job said that it ended
    incidents: Sequence[Incident]  # those that are not resolved
    silences: Mapping[str, Silence]  # by fingerprint, those of earlier incidents that may last
    # by rule, when a person last said that an incident of it is
    # over: sessions up to then are settled
    since: Mapping[UUID, datetime]
    hang: HangFacts | None = None  # its latest one, over or not
    # of its pulse: those that go on, and those that open incidents are about
    notices: Sequence[NoticeFacts] = ()
    # by rule, when an incident of the pulse that it held ended: sessions up to then were about that
    heard: Mapping[UUID, datetime] = field(default_factory=dict)

    @property
    def is_finished(self) -> bool:
        """Return whether it has ended, and no other start of it has sent since."""
        return is_finished(self.finished_at, self.received)


def is_finished(finished_at: datetime | None, received: Sequence[datetime]) -> bool:
    """Return whether a job has ended, and no other start of it has sent since."""
    return finished_at is not None and (not received or received[-1] <= finished_at + FINISH_GRACE)


class Board:
    """The incidents of a job while one evaluation works on them."""

    def __init__(
        self,
        job: JobState,
        rules: Mapping[UUID, Rule],
        now: datetime,
        new_id: Callable[[], UUID],
    ) -> None:
        self.job, self.rules, self.now = job, rules, now
        self._new_id = new_id
        self._before = {incident.id: incident for incident in job.incidents}
        self._present = {incident.fingerprint: incident for incident in job.incidents}
        self._events: dict[UUID, str] = {}

    def present(self) -> list[Incident]:
        """Return the incidents that are not over."""
        return [i for i in self._present.values() if i.state is not IncidentState.RESOLVED]

    def put(self, incident: Incident, event: str) -> None:
        """Replace an incident by its changed self, and note the news."""
        self._present[incident.fingerprint] = incident
        # Of several things in one evaluation the last one is the news; "held" is none.
        if event != "held" or incident.id not in self._events:
            self._events[incident.id] = event

    def open(self, rule: Rule, cause: str, where: str) -> Incident:
        """Begin an incident; under a silence of an earlier one that may last."""
        fingerprint = fingerprint_of(self.job.job, cause, where)
        opened = Incident(
            id=self._new_id(),
            fingerprint=fingerprint,
            cause=cause,
            where=where,
            state=IncidentState.PENDING,
            severity=rule.severity,
            rules=(rule.id,),
            opened_at=self.now,
            silence=self.job.silences.get(fingerprint),
        )
        self.put(opened, "opened")
        return opened

    def join(
        self,
        incident: Incident,
        rule: Rule,
        facts: Facts | None,
        value: float | None,
        baseline: Baseline | None = None,
    ) -> None:
        """Record that a rule holds an incident, with the facts and the value that it read."""
        ids = tuple(dict.fromkeys((*incident.rules, rule.id)))
        severity = highest([self.rules[id_].severity for id_ in ids if id_ in self.rules])
        self.put(
            replace(
                incident,
                rules=ids,
                severity="critical" if incident.escalated_at else severity,
                facts=_later(facts, incident.facts),
                value=value,
                baseline=baseline or incident.baseline,
            ),
            "held",
        )

    def get(self, fingerprint: str) -> Incident | None:
        """Return the incident about a thing, where one is not over."""
        found = self._present.get(fingerprint)
        return None if found is None or found.state is IncidentState.RESOLVED else found

    def changes(self) -> list[IncidentChange]:
        """Return the incidents that changed."""
        changes = []
        for incident in self._present.values():
            before = self._before.get(incident.id)
            if before == incident:
                continue
            if before is None and incident.state is IncidentState.RESOLVED:
                continue  # it began and ended within this evaluation: nothing was
            changes.append(
                IncidentChange(
                    incident, before.state if before else None, self._events[incident.id]
                )
            )
        return changes


def _later(one: Facts | None, other: Facts | None) -> Facts | None:
    """Return the later session: a rule may hold because of an older one than another rule."""
    known = [facts for facts in (one, other) if facts is not None]
    return max(known, key=lambda facts: facts.order, default=None)
