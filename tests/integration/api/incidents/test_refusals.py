"""Requests that the routes of channels, rules and incidents refuse."""

from __future__ import annotations

import uuid

import pytest

from tests.integration.api.conftest import Installation
from tests.integration.api.incidents.asking import API, PERSON, add_channel
from tests.support.receiver import Receiver


def test_names_of_channels_and_rules_are_taken_once(
    served: Installation, receiver: Receiver
) -> None:
    add_channel(served, receiver)
    body = {"name": "hook", "kind": "slack", "config": {"url": "https://example.com"}}
    assert served.client.post(f"{API}/channels", json=body).json()["code"] == "channel.name_taken"
    condition = {"kind": "waste", "at_least": 0.2, "clears_below": 0.1}
    rule = {"name": "Slow job", "condition": condition}
    assert served.client.post(f"{API}/alert-rules", json=rule).json()["code"] == "rule.name_taken"


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "channels/{id}"),
        ("PATCH", "channels/{id}"),
        ("DELETE", "channels/{id}"),
        ("POST", "channels/{id}/test"),
        ("GET", "incidents/{id}"),
        ("POST", "incidents/{id}/ack"),
        ("POST", "incidents/{id}/resolve"),
        ("DELETE", "incidents/{id}/silence?by=ann"),
        ("GET", "alert-rules/{id}"),
        ("DELETE", "alert-rules/{id}"),
    ],
)
def test_unknown_ids_are_not_found(method: str, path: str, served: Installation) -> None:
    answer = served.client.request(
        method, f"{API}/{path.format(id=uuid.uuid4())}", json=None if method == "GET" else PERSON
    )
    assert (answer.status_code, answer.json()["code"]) == (404, "not_found")


def test_silences_that_no_page_could_read_are_refused(served: Installation) -> None:
    body = {"reason": "for good", "until": "9999-12-31T23:59:59-14:00"}
    answer = served.client.post(f"{API}/incidents/{uuid.uuid4()}/silence", json=body)
    assert answer.status_code == 422
    assert answer.json()["faults"][0]["code"] == "bad_time"
