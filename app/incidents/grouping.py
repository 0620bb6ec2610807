"""Grouping: when a job's incidents are sent, and which incidents a channel's message contains.

The incidents of one job are one group (Alertmanager's semantics):

group_wait
    Delay of the first message of a quiet group, so that incidents that begin together are sent
    together. An incident that ends within it is never sent.
group_interval
    Least time between two messages of a group.
repeat_interval
    Time after which firing incidents are sent again, unless they are acknowledged.

The state that a channel knows is derived from the messages sent to it (`Sent`) and stored nowhere
else: after any failure, restart or doubled run the next flush makes the right message. A channel is
sent the end of an incident exactly if it may have been sent the incident.

`Board` holds the incidents of a job during one evaluation.
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
    """Notification intervals that apply to all groups."""

    group_wait: timedelta = timedelta(seconds=30)
    group_interval: timedelta = timedelta(minutes=5)
    repeat_interval: timedelta = timedelta(hours=4)


@dataclass(frozen=True, slots=True)
class DeliveryStyle:
    """The messages that a kind of channel gets."""

    acknowledgements: bool = False  # whether the channel is sent acknowledgements
    # Whether acknowledged incidents are repeated too, because the receiver would forget them
    refreshes: bool = False
    # Whether a digest may combine messages of several groups; False if the receiver opens and
    # closes each incident by itself.
    digests: bool = True


class Status(StrEnum):
    """The state of an incident in a message."""

    FIRING = "firing"
    ACKNOWLEDGED = "acknowledged"
    RESOLVED = "resolved"


@dataclass(frozen=True, slots=True)
class IncidentItem:
    """An incident in a message; an item equal to an item that was sent before is no news."""

    incident: UUID
    status: Status
    epoch: int


@dataclass(frozen=True, slots=True)
class Content:
    """The incidents in a message, and the incidents withheld from it."""

    present: tuple[IncidentItem, ...] = ()
    """Firing and acknowledged incidents."""
    resolved: tuple[IncidentItem, ...] = ()
    """Incidents resolved since the last message to the channel."""
    withheld: tuple[UUID, ...] = ()
    """Incidents known to the channel that are silenced, or that a lead now represents; kept so that
    their end is sent later."""

    @property
    def believed_open(self) -> set[UUID]:
        """Return the incidents that a receiver of this message considers open."""
        return {item.incident for item in self.present} | set(self.withheld)


CONTENT: Final = TypeAdapter(Content)


@dataclass(frozen=True, slots=True)
class Sent:
    """An earlier message of the group to the channel."""

    created_at: datetime
    content: Content
    delivered: bool  # whether the receiver confirmed the message
    # False for a superseded message and for messages from before the channel was disabled, so that
    # the channel gets all open incidents again.
    counts: bool = True


@dataclass(frozen=True, slots=True)
class Audience:
    """A channel with the messages that a group has sent to it."""

    style: DeliveryStyle
    sent: Sequence[Sent]
    """Attempted messages, the oldest first; none older than the last delivered one is needed."""


def visible(incidents: Sequence[Incident], inside: frozenset[UUID] = frozenset()) -> list[Incident]:
    """Return the incidents to notify about: firing or acknowledged, and not members of a lead."""
    return [
        i
        for i in incidents
        if i.state in (IncidentState.FIRING, IncidentState.ACKNOWLEDGED) and i.id not in inside
    ]


def next_flush(
    timing: Timing, now: datetime, flushed_at: datetime | None, due_at: datetime | None
) -> datetime:
    """Return the time of a group's next flush, given that an incident changes now.

    Parameters
    ----------
    flushed_at : datetime or None
        Time of the group's last flush.
    due_at : datetime or None
        Time of the flush that is scheduled already.
    """
    at = now + timing.group_wait
    if flushed_at is not None:
        at = max(at, flushed_at + timing.group_interval)
    return at if due_at is None else min(at, due_at)


def content_for(
    incidents: Sequence[Incident], audience: Audience, inside: frozenset[UUID] = frozenset()
) -> Content:
    """Return the content of a message to a channel at present.

    Parameters
    ----------
    incidents : sequence of Incident
        Incidents of the group that are routed to this channel, and incidents that may have been
        sent to it before, including resolved incidents.
    inside : frozenset of UUID
        Members of a lead of another job.
    """
    shown = {incident.id: incident for incident in visible(incidents, inside)}
    believed = _believed(audience)
    return Content(
        present=tuple(
            IncidentItem(
                incident.id,
                Status.ACKNOWLEDGED
                if audience.style.acknowledgements and incident.state is IncidentState.ACKNOWLEDGED
                else Status.FIRING,
                incident.epoch,
            )
            for incident in shown.values()
        ),
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
    """Return whether `content` is to be sent to a channel, as news or as a repetition."""
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
        if audience.style.refreshes or incident.state is IncidentState.FIRING
    }
    return now >= last.created_at + timing.repeat_interval and (
        any(item.incident in repeated for item in content.present)
        # The channel does not know of a message that was refused or is still being attempted.
        or bool(content.resolved)
        or (bool(content.present) and not last.delivered)
    )


def _believed(audience: Audience) -> set[UUID]:
    """Return the incidents that the channel may consider open.

    The last delivered message is complete; each later one may have arrived as well.
    """
    believed: set[UUID] = set()
    for sent in audience.sent:
        believed = (
            sent.content.believed_open if sent.delivered else believed | sent.content.believed_open
        )
    return believed


# Sessions may arrive up to this time after the job reported its end.
FINISH_GRACE: Final = timedelta(minutes=15)


@dataclass(frozen=True, slots=True)
class IncidentChange:
    """A transition of an incident."""

    incident: Incident  # the incident after the transition
    before: IncidentState | None  # state before the transition; None for a new incident
    # ``opened``, ``fired``, ``held`` (no transition), ``escalated``, ``unsilenced``, ``resolved``,
    # or the order of a user, such as ``acknowledged``
    event: str

    @property
    def notifies(self) -> bool:
        """Return whether channels may have to be notified."""
        return self.event != "held" and self.incident.was_notified


@dataclass(frozen=True, slots=True)
class JobState:
    """All data of a job that rules read."""

    job: str
    labels: Mapping[str, str]  # labels of the job's latest session
    # analyzed sessions of the job, sorted from oldest to newest; rules need at most
    # `HISTORY_SESSIONS`
    history: Sequence[Facts]
    # times at which the latest sessions were received, analyzed or not, sorted from oldest to
    # newest
    received: Sequence[datetime]
    finished_at: datetime | None  # when the job reported its end
    incidents: Sequence[Incident]  # open incidents
    silences: Mapping[str, Silence]  # silences of earlier incidents, by fingerprint
    # by rule, the time at which a user last resolved one of its incidents: sessions up to this time
    # do not count
    since: Mapping[UUID, datetime]
    hang: HangFacts | None = None  # the latest hang, whether or not it ended
    # ongoing notices of the job's pulse, and the notices of open incidents
    notices: Sequence[NoticeFacts] = ()
    # by rule, the time at which its last incident about a notice ended: sessions up to this time do
    # not count
    heard: Mapping[UUID, datetime] = field(default_factory=dict)

    @property
    def is_finished(self) -> bool:
        """Return whether the job ended, and no later attempt of the job has sent sessions."""
        return is_finished(self.finished_at, self.received)


def is_finished(finished_at: datetime | None, received: Sequence[datetime]) -> bool:
    """Return whether a job ended, and no later attempt of the job has sent sessions."""
    return finished_at is not None and (not received or received[-1] <= finished_at + FINISH_GRACE)


class Board:
    """The incidents of a job during one evaluation, and their changes."""

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
        """Return the open incidents."""
        return [i for i in self._present.values() if i.state is not IncidentState.RESOLVED]

    def put(self, incident: Incident, event: str) -> None:
        """Replace an incident by its new version, and record the event."""
        self._present[incident.fingerprint] = incident
        # Of several events of an incident in one evaluation only the last counts; "held" is no
        # event.
        if event != "held" or incident.id not in self._events:
            self._events[incident.id] = event

    def open(self, rule: Rule, cause: str, where: str) -> Incident:
        """Open an incident with the silence of an earlier incident of its fingerprint."""
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
        """Add a rule to an incident, with the facts and the value that the rule read."""
        ids = tuple(dict.fromkeys((*incident.rules, rule.id)))
        severity = highest([self.rules[id_].severity for id_ in ids if id_ in self.rules])
        self.put(
            replace(
                incident,
                rules=ids,
                severity="critical" if incident.escalated_at else severity,
                # Keep the newer facts, because a rule may hold for an older session than another
                # rule.
                facts=max(
                    (f for f in (facts, incident.facts) if f is not None),
                    key=lambda f: f.order,
                    default=None,
                ),
                value=value,
                baseline=baseline or incident.baseline,
            ),
            "held",
        )

    def get(self, fingerprint: str) -> Incident | None:
        """Return the open incident with a fingerprint, or None."""
        incident = self._present.get(fingerprint)
        if incident is None or incident.state is IncidentState.RESOLVED:
            return None
        return incident

    def changes(self) -> list[IncidentChange]:
        """Return the incidents that changed."""
        changes = []
        for incident in self._present.values():
            before = self._before.get(incident.id)
            if before == incident:
                continue
            if before is None and incident.state is IncidentState.RESOLVED:
                continue  # opened and resolved within this evaluation
            changes.append(
                IncidentChange(
                    incident, before.state if before else None, self._events[incident.id]
                )
            )
        return changes
