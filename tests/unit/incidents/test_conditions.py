"""A job's incidents after sessions, time and acts of users."""

from __future__ import annotations

import itertools
from dataclasses import replace
from datetime import timedelta

import pytest

from app.analysis.report.session_verdict import KnownLoss, SuspectedCause
from app.incidents.conditions import HISTORY_SESSIONS, RULE_GONE
from app.incidents.lifecycle import Silence, acknowledge, clear, silence
from app.incidents.models.rules import DEFAULT_RULES, CauseFound, Escalation, Selector, Threshold
from app.incidents.models.tables import IncidentState
from tests.unit.incidents.builders import (
    EVERY,
    SLOW_NODE,
    START,
    Job,
    regression_rule,
    session,
    silent_rule,
    slow_rule,
    sure_rule,
    told,
)

OTHER_NODE = SuspectedCause("slow_worker", ("node-9",), confidence=0.95)
STAGE = SuspectedCause("stage_imbalance", ("stage 3",), confidence=0.7)


def test_two_slow_sessions_in_a_row_fire_once() -> None:
    job = Job(slow_rule())
    assert told(job.come(session(1, 1.2, SLOW_NODE))) == []
    assert job.only().state is IncidentState.PENDING
    assert told(job.come(session(2, 1.2, SLOW_NODE))) == ["fired"]
    assert told(job.come(session(3, 1.3, SLOW_NODE))) == []
    assert job.only().state is IncidentState.FIRING
    assert job.only().value == 1.3


def test_a_fast_session_between_slow_ones_starts_over_and_sends_nothing() -> None:
    job = Job(slow_rule())
    changes = job.come(session(1, 1.2), session(2, 1.0), session(3, 1.2), session(4, 1.0))
    assert told(changes) == []
    assert {i.state for i in job.incidents.values()} == {IncidentState.RESOLVED}


def test_a_slow_session_without_a_verdict_between_does_not_start_over() -> None:
    job = Job(slow_rule())
    assert told(job.come(session(1, 1.2), session(2, None), session(3, 1.2))) == ["fired"]


def test_a_number_between_the_thresholds_neither_fires_nor_resolves() -> None:
    job = Job(slow_rule())
    assert told(job.come(session(1, 1.07), session(2, 1.2), session(3, 1.07))) == []
    job = Job(slow_rule())
    job.come(session(1, 1.2), session(2, 1.2))
    assert told(job.come(*(session(n, 1.07) for n in range(3, 9)))) == []
    assert told(job.come(session(9, 1.0), session(10, 1.0))) == ["resolved"]


def test_it_resolves_after_as_many_clear_sessions_as_the_rule_says() -> None:
    job = Job(slow_rule(clear_sessions=3))
    job.come(session(1, 1.2), session(2, 1.2))
    changes = job.come(session(3, 1.0), session(4, 1.0), session(5, 1.2), session(6, 1.0))
    assert told(changes) == []
    assert told(job.come(session(7, 1.0), session(8, 1.0))) == ["resolved"]


def test_no_verdict_is_never_good_news() -> None:
    job = Job(slow_rule())
    job.come(session(1, 1.2), session(2, 1.2))
    assert told(job.come(*(session(n, None) for n in range(3, 9)))) == []
    assert job.only().state is IncidentState.FIRING


def test_two_rules_that_blame_the_same_make_one_incident() -> None:
    job = Job(slow_rule(), sure_rule())
    assert told(job.come(session(1, 1.2, SLOW_NODE), session(2, 1.2, SLOW_NODE))) == ["fired"]
    assert set(job.only().rules) == {slow_rule().id, sure_rule().id}


def test_it_lasts_until_every_rule_that_held_it_is_clear() -> None:
    job = Job(slow_rule(), sure_rule())
    job.come(session(1, 1.2, SLOW_NODE), session(2, 1.2, SLOW_NODE))
    unsure = replace(SLOW_NODE, confidence=0.1)
    job.come(*(session(n, 1.2, unsure) for n in range(3, 6)))
    assert job.only().state is IncidentState.FIRING
    assert told(job.come(session(6, 1.0), session(7, 1.0))) == ["resolved"]


def test_another_place_is_another_incident_and_the_first_one_ends() -> None:
    job = Job(slow_rule())
    job.come(session(1, 1.2, SLOW_NODE), session(2, 1.2, SLOW_NODE))
    assert told(job.come(session(3, 1.2, OTHER_NODE))) == ["fired"]
    assert told(job.come(session(4, 1.2, OTHER_NODE))) == ["resolved"]
    assert job.states() == [
        ("slow_worker", "node-7", "resolved"),
        ("slow_worker", "node-9", "firing"),
    ]


def test_of_several_slow_hosts_the_order_does_not_matter() -> None:
    both = SuspectedCause("slow_worker", ("node-7", "node-9"))
    turned = SuspectedCause("slow_worker", ("node-9", "node-7"))
    job = Job(slow_rule())
    job.come(session(1, 1.2, both), session(2, 1.2, turned), session(3, 1.2, both))
    assert job.states() == [("slow_worker", "node-7", "firing")]


def test_a_session_without_a_cause_keeps_the_known_one() -> None:
    job = Job(slow_rule())
    job.come(session(1, 1.2, SLOW_NODE), session(2, 1.2, SLOW_NODE))
    assert told(job.come(session(3, 1.2), session(4, 1.2))) == []
    assert job.states() == [("slow_worker", "node-7", "firing")]


def test_slow_sessions_fire_even_if_each_blames_something_else() -> None:
    job = Job(slow_rule())
    assert told(job.come(session(1, 1.2, SLOW_NODE), session(2, 1.2, STAGE))) == ["fired"]
    assert ("stage_imbalance", "stage 3", "firing") in job.states()


def test_a_sure_cause_fires_at_once_and_one_without_confidence_never() -> None:
    job = Job(sure_rule())
    assert told(job.come(session(1, 1.2, replace(SLOW_NODE, confidence=None)))) == []
    assert told(job.come(session(2, 1.2, replace(SLOW_NODE, confidence=0.89)))) == []
    assert told(job.come(session(3, 1.2, SLOW_NODE))) == ["fired"]


def test_a_cause_rule_may_be_about_some_causes_only() -> None:
    job = Job(sure_rule(condition=CauseFound(0.9, 0.8, causes=("slow_worker",))))
    assert told(job.come(session(1, 1.2, replace(STAGE, confidence=0.99)))) == []


@pytest.mark.parametrize(
    ("kind", "at_least"), [("waste", 0.15), ("gpu_hours_lost", 1.9), ("slowdown", 1.2)]
)
def test_each_number_of_a_verdict_has_rules(kind: str, at_least: float) -> None:
    condition = Threshold(kind, at_least, at_least)  # type: ignore[arg-type]  # one of the kinds
    job = Job(slow_rule(condition=condition, consecutive=1))
    assert told(job.come(session(1, 1.15))) == []
    assert told(job.come(session(2, 1.25))) == ["fired"]


def test_low_trace_quality_is_reported_for_sessions_without_a_verdict() -> None:
    rule = slow_rule(condition=Threshold("discrepancy", 0.06, 0.05))
    job = Job(rule)
    bad = [session(n, None, discrepancy=0.2) for n in (1, 2)]
    assert told(job.come(*bad)) == ["fired"]
    assert job.only().cause == "low_trace_quality"
    assert told(job.come(session(3), session(4))) == ["resolved"]


def test_what_causes_cost_without_a_verdict_fires_by_its_size_with_cause_and_fix() -> None:
    job = Job(*(rule for rule in DEFAULT_RULES if rule.name in ("Slow job", "Low trace quality")))
    loading = SuspectedCause("data_loading", confidence=0.99)
    lost = replace(session(1, None, loading, discrepancy=0.2), withheld=KnownLoss(0.2, 3.0))
    job.come(lost, replace(lost, number=2, received_at=lost.received_at + EVERY))
    fired = job.only(IncidentState.FIRING)
    assert (fired.cause, fired.severity, fired.value) == ("data_loading", "warning", 1.25)
    assert job.states() == [("data_loading", "", "firing")]
    # A lower bound of the loss does not show that the job has recovered.
    little = replace(lost, withheld=KnownLoss(0.01, 0.1), causes=())
    for number in range(3, 7):
        at = lost.received_at + number * EVERY
        job.come(replace(little, number=number, received_at=at))
    assert job.only().state is IncidentState.FIRING


def test_a_regression_is_measured_against_the_jobs_own_baseline() -> None:
    job = Job(regression_rule())
    usual = [session(n, 1.0, step_time_s=10.0 + n % 2 / 10) for n in range(1, 6)]
    assert told(job.come(*usual)) == []
    slower = [session(n, 1.0, step_time_s=10.8) for n in range(6, 8)]
    assert told(job.come(*slower)) == ["fired"]
    assert job.only().cause == "regression"


def test_a_regression_does_not_become_its_own_baseline() -> None:
    job = Job(regression_rule())
    job.come(*(session(n, step_time_s=10.0) for n in range(1, 6)))
    job.come(*(session(n, step_time_s=11.0) for n in range(6, 60)))
    assert job.only().state is IncidentState.FIRING
    assert told(job.come(session(60, step_time_s=10.0), session(61, step_time_s=10.0))) == [
        "resolved"
    ]


def test_a_regression_lasts_longer_than_the_history_that_is_looked_at() -> None:
    job = Job(regression_rule())
    job.come(*(session(n, step_time_s=10.0) for n in range(1, 6)))
    slower = [session(n, step_time_s=11.0) for n in range(6, 2 * HISTORY_SESSIONS)]
    assert told(job.come(*slower)) == ["fired"]
    assert job.only().state is IncidentState.FIRING
    repaired = [session(2 * HISTORY_SESSIONS + n, step_time_s=10.0) for n in range(2)]
    assert told(job.come(*repaired)) == ["resolved"]


def test_a_regression_of_a_job_that_was_resized_is_not_measured_against_the_old_size() -> None:
    job = Job(slow_rule(), regression_rule())
    job.come(*(session(n, 1.0, step_time_s=10.0) for n in range(1, 6)))
    job.come(*(session(n, 1.2, SLOW_NODE, step_time_s=11.0) for n in range(6, 9)))
    larger = [
        session(n, 1.2, SLOW_NODE, step_time_s=20.0, layout="dp=4 pp=2") for n in range(9, 12)
    ]
    job.come(*larger)
    assert job.only().facts == larger[-1], "what is shown is the latest session"
    good = [session(n, 1.0, step_time_s=20.0, layout="dp=4 pp=2") for n in range(12, 14)]
    assert told(job.come(*good)) == ["resolved"]


def test_a_job_of_another_size_has_another_baseline() -> None:
    job = Job(regression_rule())
    job.come(*(session(n, step_time_s=10.0) for n in range(1, 6)))
    larger = [session(n, step_time_s=20.0, layout="dp=4 pp=2") for n in range(6, 12)]
    assert told(job.come(*larger)) == []


def test_who_says_that_a_regression_is_over_makes_it_the_new_baseline() -> None:
    job = Job(regression_rule())
    job.come(*(session(n, step_time_s=10.0) for n in range(1, 6)))
    job.come(*(session(n, step_time_s=11.0) for n in range(6, 8)))
    now = job.history[-1].received_at
    job.update(clear(job.only(), now, "longer sequences", by="ann"))
    job.since[regression_rule().id] = now
    assert told(job.come(*(session(n, step_time_s=11.0) for n in range(8, 20)))) == []


def test_a_clock_that_runs_backwards_changes_nothing() -> None:
    job = Job(silent_rule(), slow_rule(escalation=Escalation(after_minutes=1)))
    job.come(session(1, 1.2), session(2, 1.2), session(3, 1.2))
    job.look(START + 3 * EVERY)
    before = dict(job.incidents)
    assert job.look(START - timedelta(days=30)) == []
    assert job.incidents == before


def test_high_values_escalate_once_and_take_the_acknowledgement_back() -> None:
    job = Job(slow_rule(escalation=Escalation(at_least=1.5)))
    job.come(session(1, 1.2), session(2, 1.2))
    job.update(acknowledge(job.only(), "ann"))
    assert told(job.come(session(3, 1.6))) == ["escalated"]
    assert (job.only().state, job.only().severity) == (IncidentState.FIRING, "critical")
    job.update(acknowledge(job.only(), "ann"))
    assert told(job.come(session(4, 1.7), session(5, 1.2), session(6, 1.7))) == []
    assert job.only().severity == "critical"


def test_a_large_loss_per_hour_escalates_however_small_its_share() -> None:
    job = Job(slow_rule(escalation=Escalation(at_least=1.5, gpu_hours_per_hour=100)))
    large = replace(session(2, 1.2), gpus=600)
    assert large.lost_each_hour == pytest.approx(100)
    job.come(session(1, 1.2), replace(session(2, 1.2), gpus=590))
    assert job.only().severity == "warning"
    assert told(job.come(replace(session(3, 1.2), gpus=601))) == ["escalated"]
    assert job.only().severity == "critical"


def test_an_unacknowledged_incident_escalates_with_time() -> None:
    job = Job(slow_rule(escalation=Escalation(after_minutes=20)))
    job.come(session(1, 1.2), session(2, 1.2))
    fired = job.history[-1].received_at
    assert told(job.look(fired + timedelta(minutes=19))) == []
    assert told(job.look(fired + timedelta(minutes=20))) == ["escalated"]
    assert told(job.look(fired + timedelta(minutes=90))) == []


def test_an_incident_acknowledged_in_time_does_not_escalate_with_time() -> None:
    job = Job(slow_rule(escalation=Escalation(after_minutes=20)))
    job.come(session(1, 1.2), session(2, 1.2))
    job.update(acknowledge(job.only(), "ann"))
    assert told(job.look(job.history[-1].received_at + timedelta(hours=9))) == []


def test_an_incident_that_outlasts_its_silence_fires_again() -> None:
    job = Job(slow_rule())
    job.come(session(1, 1.2), session(2, 1.2))
    until = job.history[-1].received_at + timedelta(hours=2)
    job.update(silence(job.only(), Silence(until, "maintenance", "ann")))
    assert told(job.come(session(3, 1.3))) == []
    assert told(job.look(until - timedelta(seconds=1))) == []
    assert told(job.look(until)) == ["unsilenced"]
    assert job.only().state is IncidentState.FIRING


def test_an_incident_that_recurs_during_its_silence_stays_silent() -> None:
    job = Job(slow_rule())
    job.come(session(1, 1.2), session(2, 1.2))
    until = START + 100 * EVERY
    job.update(silence(job.only(), Silence(until, "maintenance", "ann")))
    job.come(session(3, 1.0), session(4, 1.0), session(5, 1.2), session(6, 1.2))
    assert job.only(IncidentState.SILENCED).fired_at == session(6).received_at
    assert job.only(IncidentState.SILENCED).id != job.only(IncidentState.RESOLVED).id


def test_a_resolved_condition_must_hold_anew_before_it_fires() -> None:
    job = Job(slow_rule())
    job.come(session(1, 1.2), session(2, 1.2))
    now = job.history[-1].received_at
    job.update(clear(job.only(), now, "host replaced", by="ann"))
    job.since[slow_rule().id] = now
    assert job.look(now + timedelta(minutes=1)) == []
    assert told(job.come(session(3, 1.2))) == []
    assert told(job.come(session(4, 1.2))) == ["fired"]


@pytest.mark.parametrize(
    "edited",
    [
        None,
        slow_rule(enabled=False),
        slow_rule(selector=Selector(jobs=("other-*",))),
    ],
    ids=["deleted", "disabled", "no longer selects"],
)
def test_an_incident_ends_with_its_last_rule(edited: object) -> None:
    job = Job(slow_rule())
    job.come(session(1, 1.2), session(2, 1.2))
    job.rules = [] if edited is None else [edited]  # type: ignore[list-item]  # a Rule
    changes = job.look(job.history[-1].received_at)
    assert told(changes) == ["resolved"]
    assert changes[0].incident.why_resolved == RULE_GONE


def test_an_edited_rule_counts_what_was_before() -> None:
    job = Job(slow_rule())
    job.come(session(1, 1.08), session(2, 1.08))
    assert job.incidents == {}
    job.rules = [slow_rule(condition=Threshold("slowdown", 1.06, 1.05))]
    assert told(job.look(job.history[-1].received_at)) == ["fired"]


def test_rules_select_jobs_by_name_label_and_importance() -> None:
    selector = Selector(jobs=("llm*",), labels={"project": "p"}, importance=("high", "normal"))
    assert selector.selects("llm-1", {"project": "p"})
    assert not selector.selects("cv-1", {"project": "p"})
    assert not selector.selects("llm-1", {})
    assert not selector.selects("llm-1", {"project": "p", "importance": "low"})
    others = Selector(except_labels={"demo": "true", "kind": "eval"})
    assert others.selects("llm-1", {"demo": "false"})
    assert not others.selects("llm-1", {"kind": "eval", "project": "p"})


@pytest.mark.parametrize("order", list(itertools.permutations(range(1, 5))))
def test_sessions_come_to_the_same_end_in_whatever_order_they_are_analyzed(
    order: tuple[int, ...],
) -> None:
    job = Job(slow_rule(), sure_rule())
    sessions = {n: session(n, slow, SLOW_NODE) for n, slow in zip(order, (1.2,) * 4, strict=True)}
    changes = job.come(*(sessions[n] for n in order))
    assert told(changes) == ["fired"]
    assert job.states() == [("slow_worker", "node-7", "firing")]


def test_looking_twice_is_looking_once() -> None:
    job = Job(slow_rule(), sure_rule(), silent_rule(), regression_rule())
    for facts in (session(1, 1.2, SLOW_NODE), session(2, 1.2, SLOW_NODE), session(3)):
        job.come(facts)
        assert job.look(facts.received_at) == []
