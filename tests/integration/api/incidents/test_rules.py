"""Rules: added, changed, deleted, previewed."""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration.api.conftest import Installation
from tests.integration.api.incidents.asking import API, add_channel
from tests.support.alerting import Alerting
from tests.support.receiver import Receiver


def test_rules_are_added_edited_and_deleted_and_their_incidents_follow(
    served: Installation, alerting: Alerting
) -> None:
    for rule in served.client.get(f"{API}/alert-rules").json()["rules"]:
        assert served.client.delete(f"{API}/alert-rules/{rule['id']}").status_code == 204
    condition = {"kind": "slowdown", "at_least": 1.2, "clears_below": 1.1}
    body = {"name": "Mine", "condition": condition, "consecutive": 1}
    added = served.client.post(f"{API}/alert-rules", json=body)
    assert added.status_code == 201
    alerting.session(1.15)
    assert alerting.incidents() == []
    path = f"{API}/alert-rules/{added.json()['id']}"
    lower = body | {"condition": condition | {"at_least": 1.12}}
    assert served.client.put(path, json=lower).json()["condition"]["at_least"] == 1.12
    alerting.pass_and_work()
    assert alerting.incident().state == "firing"
    served.client.delete(path)
    alerting.pass_and_work()
    assert alerting.incident().state == "resolved"
    assert served.client.get(path).status_code == 404


@pytest.mark.parametrize(
    "condition",
    [
        {"kind": "slowdown", "at_least": 1.1, "clears_below": 1.2},
        {"kind": "slowdown", "at_least": -1, "clears_below": -2},
        {"kind": "cause", "confidence": 1.5, "clears_below": 0.1},
        {"kind": "no_data"},
        {"kind": "phase of the moon"},
        {},
    ],
)
def test_a_rule_that_makes_no_sense_is_refused(
    condition: dict[str, Any], served: Installation
) -> None:
    answer = served.client.post(f"{API}/alert-rules", json={"name": "x", "condition": condition})
    assert (answer.status_code, answer.json()["code"]) == (422, "request.invalid")


def test_a_cause_that_no_report_has_is_refused_with_its_place(served: Installation) -> None:
    condition = {
        "kind": "cause",
        "confidence": 0.9,
        "clears_below": 0.8,
        "causes": ["slow_worker", "slow_wroker", "unknown"],
    }
    body = {"name": "Typo", "condition": condition}
    for path in ("alert-rules", "alert-rules/preview"):
        answer = served.client.post(f"{API}/{path}", json=body)
        problem = answer.json()
        assert (answer.status_code, problem["code"]) == (422, "rule.unknown_cause")
        assert "slow_wroker" in problem["detail"]
        assert [fault["column"] for fault in problem["faults"]] == [
            "condition.causes[1]",
            "condition.causes[2]",
        ]


def test_a_preview_says_what_would_have_fired_and_sends_nothing(
    served: Installation, alerting: Alerting, receiver: Receiver
) -> None:
    add_channel(served, receiver)
    for rule in served.client.get(f"{API}/alert-rules").json()["rules"]:
        served.client.delete(f"{API}/alert-rules/{rule['id']}")
    alerting.slow("a", host="node-7")
    alerting.fast("a")
    alerting.fast("b")
    condition = {"kind": "slowdown", "at_least": 1.1, "clears_below": 1.05}
    body = {"name": "Slow", "condition": condition}
    found = served.client.post(f"{API}/alert-rules/preview", json=body).json()
    assert (found["jobs"], found["sessions"], found["complete"]) == (2, 6, True)
    [incident] = found["incidents"]
    assert (incident["job"], incident["cause"], incident["where"]) == (
        "a",
        "slow_worker",
        "node-7",
    )
    assert incident["resolved_at"] is not None
    alerting.pass_and_work()
    assert alerting.incidents() == []
    assert receiver.got == []
