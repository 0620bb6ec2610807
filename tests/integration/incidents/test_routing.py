"""Recipients of alerts: on call, the owner of a job, listed channels, and escalation."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from app.analysis.report.session_verdict import SuspectedCause
from app.incidents.channel_writes import create_channel
from app.incidents.evaluate import acknowledge_incident
from app.incidents.models.rules import Escalation, Rule, Selector, Threshold
from app.incidents.rule_store import delete_rule, save_rule, with_new_id
from app.incidents.store import load_rules
from tests.support.alerting import SLOW_NODE, Alerting
from tests.support.reads import read
from tests.support.receiver import Receiver

MINUTE = timedelta(minutes=1)
IMBALANCE = SuspectedCause("stage_imbalance", ("stage 1",), confidence=0.5)
SLOW = Rule(
    id=uuid.UUID(int=0),
    name="Only one",
    condition=Threshold("slowdown", at_least=1.1, clears_below=1.05),
    consecutive=1,
)

Add = Callable[..., tuple[uuid.UUID, Receiver]]


@pytest.fixture
def add(alerting: Alerting) -> Iterator[Add]:
    """Return a function that adds a channel with its own receiver."""
    with ExitStack() as stack:

        def added(name: str, **changes: Any) -> tuple[uuid.UUID, Receiver]:  # noqa: ANN401 - of a channel
            receiver = stack.enter_context(Receiver())
            config = {"url": receiver.url}
            view = create_channel(
                alerting.container, name=name, kind="webhook", config=config, **changes
            )
            return view.id, receiver

        yield added


def only(alerting: Alerting, rule: Rule) -> None:
    """Delete all other rules."""
    for known in read(alerting.container, load_rules):
        delete_rule(alerting.container, known.id)
    save_rule(alerting.container, with_new_id(rule), new=True)


def firing(receiver: Receiver) -> list[str]:
    return [
        alert["labels"]["severity"]
        for got in receiver.got
        for alert in got.json["alerts"]
        if alert["status"] == "firing"
    ]


def test_owners_get_low_trace_quality_and_on_call_gets_slow_jobs(
    alerting: Alerting, add: Add
) -> None:
    rules = read(alerting.container, load_rules)
    [quality] = [rule for rule in rules if rule.name == "Low trace quality"]
    condition = Threshold("discrepancy", at_least=0.005, clears_below=0.005)
    save_rule(alerting.container, replace(quality, condition=condition), new=False)
    (_, on_call), (_, owner) = add("on call"), add("owner", audience="owner")
    alerting.slow()
    alerting.pass_and_work(MINUTE)
    [told] = owner.got
    assert [alert["labels"]["cause"] for alert in told.json["alerts"]] == ["low_trace_quality"]
    [told] = on_call.got
    assert [alert["labels"]["cause"] for alert in told.json["alerts"]] == ["slow_worker"]


def test_a_rule_with_channels_of_its_own_tells_exactly_those(alerting: Alerting, add: Add) -> None:
    (_, on_call), (special, receiver) = add("on call"), add("special", audience="owner")
    only(alerting, replace(SLOW, channels=(special,)))
    alerting.session(1.3)
    alerting.pass_and_work(MINUTE)
    assert (firing(on_call), firing(receiver)) == ([], ["warning"])


def test_a_channel_with_a_selector_gets_its_jobs_only(alerting: Alerting, add: Add) -> None:
    only(alerting, SLOW)
    _, receiver = add("vision", selector=Selector(jobs=("vision-*",)))
    alerting.session(1.3, job="llm")
    alerting.session(1.3, replace(SLOW_NODE, where=("node-8",)), job="vision-1")
    alerting.pass_and_work(MINUTE)
    assert [got.json["groupLabels"]["job"] for got in receiver.got] == ["vision-1"]


def test_an_unacknowledged_incident_reaches_more_people_in_time(
    alerting: Alerting, add: Add
) -> None:
    (_, on_call), (lead, receiver) = add("on call"), add("lead", selector=Selector(jobs=("none",)))
    only(alerting, replace(SLOW, escalation=Escalation(after_minutes=30, channels=(lead,))))
    alerting.session(1.3)
    alerting.pass_and_work(MINUTE)
    assert (firing(on_call), firing(receiver)) == (["warning"], [])
    alerting.grow_older(31 * MINUTE)
    alerting.pass_and_work(31 * MINUTE)
    alerting.pass_and_work(MINUTE)
    assert (firing(on_call), firing(receiver)) == (["warning", "critical"], ["critical"])


def test_a_worse_number_ends_an_acknowledgement_and_reaches_more_people(
    alerting: Alerting, add: Add
) -> None:
    (_, on_call), (lead, receiver) = add("on call"), add("lead", selector=Selector(jobs=("none",)))
    only(alerting, replace(SLOW, escalation=Escalation(at_least=1.5, channels=(lead,))))
    alerting.session(1.3, IMBALANCE)
    alerting.pass_and_work(MINUTE)
    acknowledge_incident(alerting.container, alerting.incident().id, by="ann", note=None)
    alerting.session(1.6, IMBALANCE)
    alerting.pass_and_work(10 * MINUTE)
    assert (firing(on_call), firing(receiver)) == (["warning", "critical"], ["critical"])
    assert alerting.incident().acknowledged_by is None
