"""Requests to the routes of alerts that several tests send."""

from __future__ import annotations

from typing import Any

from tests.integration.api.conftest import Installation
from tests.support.receiver import Receiver

API = "/api/v1"
SECRET = "whsec_" + "QUJD" * 10
PERSON = {"by": "ann"}


def add_channel(served: Installation, receiver: Receiver, **changes: Any) -> dict[str, Any]:  # noqa: ANN401 - of a channel
    body = {
        "name": "hook",
        "kind": "webhook",
        "config": {"url": receiver.url, "signing_secrets": [SECRET]},
    } | changes
    answer = served.client.post(f"{API}/channels", json=body)
    assert answer.status_code == 201, answer.text
    document: dict[str, Any] = answer.json()
    return document
