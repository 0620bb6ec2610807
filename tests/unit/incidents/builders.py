"""Builders of sessions, rules and job states for the tests of alerts."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from app.analysis.budget.split import Shares
from app.analysis.diagnosis.headline import HeadlineKind
from app.analysis.report.session_verdict import Slowdown, SuspectedCause
from app.incidents.conditions import HISTORY_SESSIONS, evaluate
from app.incidents.grouping import IncidentChange, JobState
from app.incidents.lifecycle import Incident, Silence
from app.incidents.models.facts import Facts
from app.incidents.models.rules import CauseFound, NoData, Rule, Threshold
from app.incidents.models.tables import IncidentState

START = datetime(2026, 1, 1, tzinfo=UTC)
EVERY = timedelta(minutes=30)

SLOW_NODE = SuspectedCause("slow_worker", ("node-7",), confidence=0.95, evidence=("It is slow.",))


SHARES = Shares(
    computing=0.6,
    own_slowness=0.0,
    slow_together=0.07,
    waiting=0.0,
    bubble=0.0,
    communication=0.04,
    communication_above=0.0,
    launch_delays=0.0,
    between_steps=0.01,
    between_steps_above=0.28,
    missing=0.0,
)


def slow_rule(**changes: Any) -> Rule:  # noqa: ANN401 - fields of Rule
    rule = Rule(uuid.UUID(int=1), "slow", Threshold("slowdown", 1.1, 1.05))
    return replace(rule, **changes)


def sure_rule(**changes: Any) -> Rule:  # noqa: ANN401 - fields of Rule
    rule = Rule(uuid.UUID(int=2), "sure", CauseFound(0.9, 0.8), consecutive=1)
    return replace(rule, **changes)


def silent_rule(**changes: Any) -> Rule:  # noqa: ANN401 - fields of Rule
    rule = Rule(uuid.UUID(int=3), "silent", NoData(intervals=3), consecutive=1)
    return replace(rule, **changes)


def regression_rule(**changes: Any) -> Rule:  # noqa: ANN401 - fields of Rule
    rule = Rule(uuid.UUID(int=4), "regression", Threshold("regression", 0.05, 0.03))
    return replace(rule, **changes)


def session(
    number: int,
    slowdown: float | None = 1.0,
    *causes: SuspectedCause,
    step_time_s: float | None = 10.0,
    discrepancy: float | None = 0.01,
    layout: str = "dp=2 pp=2",
) -> Facts:
    return Facts(
        session=uuid.UUID(int=1000 + number),
        job="llm",
        attempt=1,
        number=number,
        received_at=START + number * EVERY,
        layout=layout,
        slowdown=slowdown,
        slowdown_ci95=None if slowdown is None else (slowdown - 0.01, slowdown + 0.01),
        waste=None if slowdown is None else 1 - 1 / slowdown,
        gpu_hours_lost=None if slowdown is None else 10 * (slowdown - 1),
        discrepancy=discrepancy,
        step_time_s=None if slowdown is None else step_time_s,
        causes=causes,
        headline=None
        if slowdown is None
        else Slowdown(slowdown, None, 10 * (slowdown - 1), HeadlineKind.PUBLISHED),
    )


class Job:
    """A job with successive sessions, and the state that a database would store."""

    def __init__(self, *rules: Rule, labels: Mapping[str, str] | None = None) -> None:
        self.rules: Sequence[Rule] = rules
        self.labels = labels or {}
        self.history: list[Facts] = []
        self.incidents: dict[uuid.UUID, Incident] = {}
        self.since: dict[uuid.UUID, datetime] = {}
        self.finished_at: datetime | None = None
        self._ids = itertools.count(1)

    def new_id(self) -> uuid.UUID:
        return uuid.UUID(int=next(self._ids))

    def come(self, *sessions: Facts) -> list[IncidentChange]:
        """Evaluate sessions, each at the time of its arrival."""
        changes = []
        for facts in sessions:
            self.history.append(facts)
            changes += self.look(facts.received_at)
        return changes

    def look(self, now: datetime) -> list[IncidentChange]:
        state = JobState(
            job="llm",
            labels=self.labels,
            history=self.history[-HISTORY_SESSIONS:],
            received=sorted(facts.received_at for facts in self.history),
            finished_at=self.finished_at,
            incidents=[i for i in self.incidents.values() if i.state is not IncidentState.RESOLVED],
            silences=self.silences(),
            since=self.since,
        )
        changes = evaluate(state, self.rules, now, self.new_id)
        for change in changes:
            self.incidents[change.incident.id] = change.incident
        return changes

    def silences(self) -> dict[str, Silence]:
        return {
            incident.fingerprint: incident.silence
            for incident in self.incidents.values()
            if incident.silence is not None
        }

    def update(self, incident: Incident) -> None:
        self.incidents[incident.id] = incident

    def only(self, *states: IncidentState) -> Incident:
        [found] = [i for i in self.incidents.values() if not states or i.state in states]
        return found

    def states(self) -> list[tuple[str, str, str]]:
        return [(i.cause, i.where, str(i.state)) for i in self.incidents.values()]


def told(changes: Iterable[IncidentChange]) -> list[str]:
    return [change.event for change in changes if change.notifies]


IdMaker = Callable[[], uuid.UUID]
