"""The board of one evaluation of a job: what it reads, and the incidents as it changes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from app.alerts.facts import Facts, HangFacts
from app.alerts.incidents import Baseline, Incident, Silence, fingerprint_of
from app.alerts.notices.facts import NoticeFacts
from app.alerts.rules import Rule, highest
from app.alerts.states import IncidentState

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
        return self.event != "held" and self.incident.told


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
