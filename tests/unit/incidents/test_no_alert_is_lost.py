"""Any order of sessions, clock jumps, rule edits, failures and restarts loses or doubles no alert.

The state machine simulates a job, its rules, the people on call, two channels and a network that
loses answers. Lists stand in for database rows; every decision is the program's.
"""

from __future__ import annotations

import itertools
import uuid
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from app.analysis.report.session_verdict import SuspectedCause
from app.incidents.grouping import (
    CONTENT,
    Audience,
    Content,
    DeliveryStyle,
    IncidentChange,
    Sent,
    Status,
    Timing,
    content_for,
    is_due,
    next_flush,
    visible,
)
from app.incidents.lifecycle import (
    INCIDENT,
    Incident,
    Silence,
    Trigger,
    acknowledge,
    can,
    clear,
    silence,
)
from app.incidents.models.rules import Escalation, Threshold
from app.incidents.models.tables import IncidentState
from tests.support.nightly import drawn
from tests.unit.incidents.builders import (
    START,
    Job,
    regression_rule,
    session,
    silent_rule,
    slow_rule,
    sure_rule,
)

pytestmark = pytest.mark.slow

TIMING = Timing()
CAUSES = (
    (),
    (SuspectedCause("slow_worker", ("node-7",), confidence=0.95),),
    (SuspectedCause("slow_worker", ("node-9", "node-7"), confidence=0.5),),
    (SuspectedCause("stage_imbalance", ("stage 3",), confidence=0.99),),
)


@dataclass
class Row:
    """A delivery."""

    id: int
    created_at: datetime
    content: Content | None = None
    state: str = "waiting"


@dataclass
class Channel:
    """A channel, its deliveries, and the incidents that its receiver considers open."""

    style: DeliveryStyle
    rows: list[Row] = field(default_factory=list)
    seen: dict[int, Content] = field(default_factory=dict)
    got: list[Row] = field(default_factory=list)
    believes: dict[uuid.UUID, tuple[Status, int]] = field(default_factory=dict)
    ever: set[uuid.UUID] = field(default_factory=set)

    def audience(self, without: Row | None = None) -> Audience:
        return Audience(
            self.style,
            [
                Sent(row.created_at, row.content, row.state == "delivered", row.state != "over")
                for row in self.rows
                if row.content is not None and row is not without
            ],
        )

    def open(self) -> list[Row]:
        return [row for row in self.rows if row.state == "waiting"]

    def receive(self, row: Row) -> None:
        content = row.content
        assert content is not None
        if row.id in self.seen:
            assert self.seen[row.id] == content, "the same id with another content"
            return
        assert all(row.id > earlier for earlier in self.seen), "out of order"
        if self.got:
            self._expect_news(self.got[-1], row)
        self.seen[row.id] = content
        self.got.append(row)
        for item in content.resolved:
            self.believes.pop(item.incident, None)
        self.believes |= {item.incident: (item.status, item.epoch) for item in content.present}
        self.ever |= set(self.believes)

    def _expect_news(self, before: Row, row: Row) -> None:
        assert before.content is not None
        assert row.content is not None
        news = set(row.content.present) - set(before.content.present) or row.content.resolved
        repeated = row.created_at >= before.created_at + TIMING.repeat_interval
        assert news or repeated, "doubled"


class NoAlertIsLost(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.job = Job(slow_rule(), sure_rule(), silent_rule(), regression_rule())
        self.now = START
        self.numbers = itertools.count(1)
        self.ids = itertools.count(1)
        self.late: list[int] = []
        self.flushed_at: datetime | None = None
        self.due_at: datetime | None = None
        self.channels = [Channel(DeliveryStyle()), Channel(DeliveryStyle(acknowledgements=True))]

    # -- what happens ----------------------------------------------------------------------------

    def _session(
        self,
        number: int,
        slowdown: float | None,
        causes: tuple[SuspectedCause, ...],
        step_time_s: float = 10.0,
    ) -> None:
        made = session(number, slowdown, *causes, step_time_s=step_time_s)
        facts = replace(made, received_at=self.now)
        self.job.history.append(facts)
        self._look()

    @rule(
        slowdown=st.sampled_from([None, 1.0, 1.07, 1.2, 1.2, 1.6]),
        causes=st.sampled_from(CAUSES),
        step_time_s=st.sampled_from([10.0, 10.4, 11.0]),
    )
    def session_comes(
        self, slowdown: float | None, causes: tuple[SuspectedCause, ...], step_time_s: float
    ) -> None:
        self._session(next(self.numbers), slowdown, causes, step_time_s)

    @rule(count=st.sampled_from([2, 30, 110]), step_time_s=st.sampled_from([10.0, 11.0]))
    def many_sessions_come(self, count: int, step_time_s: float) -> None:
        """Evaluate more sessions than a condition looks back at."""
        for _ in range(count):
            self.now += timedelta(minutes=1)
            self._session(next(self.numbers), 1.0, (), step_time_s)

    @rule(causes=st.sampled_from(CAUSES), looked=st.booleans())
    def it_gets_slow(self, causes: tuple[SuspectedCause, ...], *, looked: bool) -> None:
        for _ in range(2):
            self._session(next(self.numbers), 1.2, causes)
        if looked:
            self._catch_up()

    @rule(outcome=st.sampled_from(["ok", "lost", "down", "refused"]))
    def it_gets_fast(self, outcome: str) -> None:
        for _ in range(2):
            self._session(next(self.numbers), 1.0, ())
        self._catch_up(outcome)

    @rule(outcome=st.sampled_from(["ok", "ok", "lost", "down", "refused"]))
    def all_is_sent(self, outcome: str) -> None:
        self._catch_up(outcome)

    @rule()
    def session_is_analyzed_late(self) -> None:
        self.late.append(next(self.numbers))

    @precondition(lambda self: self.late)
    @rule(slowdown=st.sampled_from([1.0, 1.2]), causes=st.sampled_from(CAUSES))
    def late_session_comes(self, slowdown: float, causes: tuple[SuspectedCause, ...]) -> None:
        self._session(self.late.pop(), slowdown, causes)

    @rule(minutes=st.sampled_from([0.1, 0.6, 5, 31, 241, 10_000]))
    def time_passes(self, minutes: float) -> None:
        self.now += timedelta(minutes=minutes)

    @rule(minutes=st.sampled_from([1, 60]))
    def clock_is_set_back(self, minutes: float) -> None:
        self.now -= timedelta(minutes=minutes)

    @rule()
    def sweeper_looks(self) -> None:
        self._look()
        self._flush_if_due()

    @rule(channel=st.integers(0, 1), outcome=st.sampled_from(["ok", "lost", "down", "refused"]))
    def attempt(self, channel: int, outcome: str) -> None:
        self._attempt(self.channels[channel], outcome)

    @rule(which=st.integers(0, 20), deed=st.sampled_from(["acknowledge", "silence", "resolve"]))
    def user_acts(self, which: int, deed: str) -> None:
        present = [i for i in self.job.incidents.values() if i.state is not IncidentState.RESOLVED]
        if not present:
            return
        found = present[which % len(present)]
        after: Incident | None = None
        if deed == "acknowledge" and can(found.state, Trigger.ACKNOWLEDGE):
            after = acknowledge(found, "ann")
        elif deed == "silence" and can(found.state, Trigger.SILENCE):
            after = silence(found, Silence(self.now + timedelta(hours=1), "why", "ann"))
        elif deed == "resolve" and found.state in IncidentState.TOLD:
            after = clear(found, self.now, "over", by="ann")
            self.job.since |= dict.fromkeys(found.rules, self.now)
        if after is not None:
            self.job.update(after)
            self._transition()

    @rule(
        kept=st.sets(st.sampled_from([0, 1, 2, 3])),
        at_least=st.sampled_from([1.06, 1.1, 1.3]),
        escalates=st.booleans(),
    )
    def user_edits_rules(self, kept: set[int], at_least: float, *, escalates: bool) -> None:
        plan = Escalation(at_least=1.5, after_minutes=60) if escalates else None
        rules = [
            slow_rule(condition=Threshold("slowdown", at_least, 1.05), escalation=plan),
            sure_rule(),
            silent_rule(),
            regression_rule(),
        ]
        self.job.rules = [rules[number] for number in sorted(kept)]
        self._look()

    @rule()
    def everything_restarts(self) -> None:
        self.job.incidents = {
            id_: INCIDENT.validate_json(INCIDENT.dump_json(found))
            for id_, found in self.job.incidents.items()
        }
        for channel in self.channels:
            for row in channel.rows:
                if row.content is not None:
                    row.content = CONTENT.validate_json(CONTENT.dump_json(row.content))

    # -- what must hold --------------------------------------------------------------------------

    @invariant()
    def one_incident_at_most_for_the_same_thing(self) -> None:
        present = [
            i.fingerprint
            for i in self.job.incidents.values()
            if i.state is not IncidentState.RESOLVED
        ]
        assert len(present) == len(set(present))

    @invariant()
    def queues_stay_short(self) -> None:
        for channel in self.channels:
            assert len(channel.open()) <= 1

    def teardown(self) -> None:
        """Let all work finish, and check that receivers know of all firing and ended incidents."""
        for _ in range(3):
            self.now = max(self.now, START) + TIMING.repeat_interval
            self._look()
            self._flush_if_due()
            for channel in self.channels:
                for _ in range(len(channel.open())):
                    self._attempt(channel, "ok")
        shown = {i.id: i for i in visible(list(self.job.incidents.values()))}
        for channel in self.channels:
            assert channel.open() == []
            for id_, incident in shown.items():
                acknowledged = incident.state is IncidentState.ACKNOWLEDGED
                status = (
                    Status.ACKNOWLEDGED
                    if acknowledged and channel.style.acknowledgements
                    else Status.FIRING
                )
                assert channel.believes.get(id_) == (status, incident.epoch), "lost"
            for id_ in channel.believes:
                assert self.job.incidents[id_].state is not IncidentState.RESOLVED, "forgotten"

    def _catch_up(self, outcome: str = "ok") -> None:
        """Advance the time until all due messages are sent."""
        self.now += TIMING.group_interval
        self._look()
        self._flush_if_due()
        for channel in self.channels:
            self._attempt(channel, outcome)

    # -- what the durable part does --------------------------------------------------------------

    def _look(self) -> None:
        changes: list[IncidentChange] = self.job.look(self.now)
        if any(change.notifies for change in changes):
            self._transition()

    def _transition(self) -> None:
        self.due_at = next_flush(TIMING, self.now, self.flushed_at, self.due_at)

    def _flush_if_due(self) -> None:
        if self.due_at is None or self.due_at > self.now:
            return
        incidents = list(self.job.incidents.values())
        for channel in self.channels:
            if any(row.content is None for row in channel.open()):
                continue
            audience = channel.audience()
            content = content_for(incidents, audience)
            if is_due(content, incidents, audience, TIMING, self.now):
                for row in channel.open():
                    row.state = "over"
                channel.rows.append(Row(next(self.ids), self.now))
        self.flushed_at = self.now
        self.due_at = self.now + TIMING.repeat_interval

    def _attempt(self, channel: Channel, outcome: str) -> None:
        if not channel.open():
            return
        row = channel.open()[0]
        if row.content is None:
            incidents = list(self.job.incidents.values())
            audience = channel.audience(without=row)
            content = content_for(incidents, audience)
            if not is_due(content, incidents, audience, TIMING, max(self.now, row.created_at)):
                row.state = "over"
                return
            row.content = content
        if outcome in ("ok", "lost"):
            channel.receive(row)
        if outcome == "ok":
            row.state = "delivered"
        elif outcome == "refused":
            row.state = "failed"


NoAlertIsLost.TestCase.settings = settings(drawn(40), stateful_step_count=30)
TestNoAlertIsLost = NoAlertIsLost.TestCase
