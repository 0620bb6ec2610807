"""The states of an incident and the transitions between them.

An incident is one problem of one job: its fingerprint is made of the job, the cause and the place,
never of a step or a session. It begins when a rule's condition first holds (``pending``), is sent
to channels once the condition has held long enough (``firing``), and ends ``resolved``; when the
problem returns it is another incident.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Final
from uuid import UUID

from pydantic import TypeAdapter

from app.errors import ConflictError
from app.incidents.models.facts import Facts, HangFacts, NoticeFacts
from app.incidents.models.rules import Severity
from app.incidents.models.tables import IncidentState


class Trigger(StrEnum):
    """The trigger of a transition."""

    CONFIRM = "confirm"  # the condition has held for `consecutive` sessions
    CLEAR = "clear"  # the condition no longer holds, or a user resolved it
    ACKNOWLEDGE = "acknowledge"
    SILENCE = "silence"
    SILENCE_END = "silence_end"
    ESCALATE = "escalate"
    UNACKNOWLEDGE = "unacknowledge"  # by a user
    REOPEN = "reopen"  # by a user, after they resolved it


TRANSITIONS: Final = {
    (IncidentState.PENDING, Trigger.CONFIRM): IncidentState.FIRING,
    (IncidentState.PENDING, Trigger.CLEAR): IncidentState.RESOLVED,
    (IncidentState.FIRING, Trigger.CLEAR): IncidentState.RESOLVED,
    (IncidentState.FIRING, Trigger.ACKNOWLEDGE): IncidentState.ACKNOWLEDGED,
    (IncidentState.FIRING, Trigger.SILENCE): IncidentState.SILENCED,
    (IncidentState.FIRING, Trigger.ESCALATE): IncidentState.FIRING,
    (IncidentState.ACKNOWLEDGED, Trigger.CLEAR): IncidentState.RESOLVED,
    (IncidentState.ACKNOWLEDGED, Trigger.SILENCE): IncidentState.SILENCED,
    (IncidentState.ACKNOWLEDGED, Trigger.ESCALATE): IncidentState.FIRING,
    (IncidentState.ACKNOWLEDGED, Trigger.UNACKNOWLEDGE): IncidentState.FIRING,
    (IncidentState.SILENCED, Trigger.CLEAR): IncidentState.RESOLVED,
    (IncidentState.SILENCED, Trigger.SILENCE): IncidentState.SILENCED,
    (IncidentState.SILENCED, Trigger.SILENCE_END): IncidentState.FIRING,
    (IncidentState.RESOLVED, Trigger.REOPEN): IncidentState.FIRING,
}


@dataclass(frozen=True, slots=True)
class Silence:
    """A silence: its end, its reason, and who set it."""

    until: datetime
    reason: str
    by: str


@dataclass(frozen=True, slots=True)
class Baseline:
    """The step time before a regression, kept while the regression lasts."""

    layout: str  # sizes of the job; see `Facts`
    step_time_s: float


@dataclass(frozen=True, slots=True)
class Incident:
    """An incident."""

    id: UUID
    fingerprint: str  # see `fingerprint_of`
    # cause, where: the place is a host, worker or stage; `where` is empty if the cause has no place
    cause: str
    where: str
    state: IncidentState
    severity: Severity  # the highest of its rules; ``critical`` once escalated
    rules: tuple[UUID, ...]  # ids of the rules whose conditions hold or held
    opened_at: datetime
    epoch: int = 0  # incremented when the incident has to be sent to all channels again
    # facts of the latest session for which a rule held; None without such a session
    facts: Facts | None = None
    value: float | None = None  # value in that session that the rule compared with its threshold
    baseline: Baseline | None = None  # only of a regression
    fired_at: datetime | None = None
    resolved_at: datetime | None = None
    escalated_at: datetime | None = None
    acknowledged_by: str | None = None
    silence: Silence | None = None  # the last silence; kept after its end
    why_resolved: str | None = None
    hang: HangFacts | None = None  # only of an incident about a hang
    notice: NoticeFacts | None = None  # only of an incident about a notice of the pulse
    resolved_by: str | None = None  # name of a user; None if the rules ended the incident

    @property
    def diagnosed_cause(self) -> str:
        """Return the cause; for a notice of the pulse, the cause that a session diagnosed."""
        return self.cause if self.notice is None else self.notice.cause or self.cause

    @property
    def was_notified(self) -> bool:
        """Return whether channels may have been notified of the incident."""
        return self.fired_at is not None


INCIDENT: Final = TypeAdapter(Incident)


def fingerprint_of(job: str, cause: str, where: str) -> str:
    """Return the fingerprint that identifies a problem: 32 hexadecimal digits."""
    return hashlib.sha256(f"{job}\x00{cause}\x00{where}".encode()).hexdigest()[:32]


def can(state: IncidentState, trigger: Trigger) -> bool:
    """Return whether a trigger applies in a state."""
    return (state, trigger) in TRANSITIONS


def confirm(incident: Incident, now: datetime) -> Incident:
    """Fire an incident; during a silence the incident becomes silenced instead."""
    fired = replace(_moved(incident, Trigger.CONFIRM), fired_at=now)
    if fired.silence is not None and fired.silence.until > now:
        return replace(fired, state=TRANSITIONS[IncidentState.FIRING, Trigger.SILENCE])
    return fired


def clear(incident: Incident, now: datetime, why: str, *, by: str | None = None) -> Incident:
    """Resolve an incident."""
    return replace(
        _moved(incident, Trigger.CLEAR), resolved_at=now, why_resolved=why, resolved_by=by
    )


def acknowledge(incident: Incident, by: str) -> Incident:
    """Acknowledge an incident, so that its messages are not repeated."""
    return replace(_moved(incident, Trigger.ACKNOWLEDGE), acknowledged_by=by)


def unacknowledge(incident: Incident) -> Incident:
    """Undo an acknowledgement, so that the messages are repeated again."""
    return replace(_moved(incident, Trigger.UNACKNOWLEDGE), acknowledged_by=None)


def reopen(incident: Incident, now: datetime) -> Incident:
    """Undo a user's resolution: the incident returns to the state before the resolution.

    Raises
    ------
    ConflictError
        ``incident.ended_by_itself``: its rules ended it, and would do so again.
    """
    again = replace(_moved(incident, Trigger.REOPEN), resolved_at=None, why_resolved=None)
    if incident.resolved_by is None:
        raise ConflictError(
            "The incident ended by itself; if it comes back, it fires again.",
            code="incident.ended_by_itself",
        )
    again = replace(again, resolved_by=None)
    if not again.was_notified:
        return replace(again, state=IncidentState.PENDING)
    if again.silence is not None and again.silence.until > now:
        return replace(again, state=IncidentState.SILENCED)
    return replace(again, state=IncidentState.ACKNOWLEDGED) if again.acknowledged_by else again


def silence(incident: Incident, order: Silence) -> Incident:
    """Silence an incident; a new silence replaces the present silence."""
    return replace(_moved(incident, Trigger.SILENCE), silence=order, acknowledged_by=None)


def end_silence(incident: Incident) -> Incident:
    """End the silence of an open incident."""
    return replace(_moved(incident, Trigger.SILENCE_END), epoch=incident.epoch + 1)


def escalate(incident: Incident, now: datetime) -> Incident:
    """Escalate an incident: it becomes critical, and an acknowledgement no longer counts."""
    return replace(
        _moved(incident, Trigger.ESCALATE),
        severity="critical",
        escalated_at=now,
        acknowledged_by=None,
        epoch=incident.epoch + 1,
    )


def _moved(incident: Incident, trigger: Trigger) -> Incident:
    state = TRANSITIONS.get((incident.state, trigger))
    if state is None:
        raise ConflictError(
            f"The incident is {incident.state}; {trigger.replace('_', ' ')} does not apply.",
            code="incident.wrong_state",
        )
    return replace(incident, state=state)
