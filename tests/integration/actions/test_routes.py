"""Actions over HTTP."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest

from app.actions.kinds.event import EventType
from app.actions.kinds.kind import SENTENCES
from tests.support.served import client_of_served

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.acting import Acting
    from tests.support.receiver import Receiver


@pytest.fixture
def client(acting: Acting) -> Iterator[httpx.Client]:
    with client_of_served(acting.container, below="/api/v1") as client:
        yield client


def test_a_policy_an_action_and_its_end(
    acting: Acting, receiver: Receiver, client: httpx.Client
) -> None:
    [event] = [p for p in client.get("/action-policies").json()["policies"] if p["kind"] == "event"]
    assert event["mode"] == "off"
    policy = {"kind": "event", "config": {"url": receiver.url}}
    assert client.put("/action-policies", json=policy).json()["mode"] == "dry_run"
    answer = client.put("/action-policies", json={"kind": "event", "mode": "ask"})
    assert answer.json()["mode"] == "ask"
    assert receiver.url not in answer.text
    acting.blame()
    acting.work()
    [action] = client.get("/actions", params={"state": "asked"}).json()["actions"]
    assert client.get("/actions", params={"host": "node-8"}).json()["actions"] == []
    assert client.get(f"/actions/{action['id']}").json() == action
    allowed = client.post(f"/actions/{action['id']}/allow")
    assert (allowed.status_code, allowed.json()["state"]) == (200, "waiting")
    acting.work()
    assert client.get(f"/actions/{action['id']}").json()["state"] == "done"
    assert client.post(f"/actions/{action['id']}/release").json()["state"] == "releasing"
    acting.work()
    assert client.get(f"/actions/{action['id']}").json()["state"] == "released"
    again = client.post(f"/actions/{action['id']}/release")
    assert (again.status_code, again.json()["code"]) == (409, "action.wrong_state")


def test_a_token_of_a_cluster_is_sent_to_no_other_server(client: httpx.Client) -> None:
    def put(**config: str | None) -> httpx.Response:
        return client.put("/action-policies", json={"kind": "kubernetes", "config": config})

    assert put(server="http://127.0.0.1:6443", token="secret").status_code == 200  # noqa: S106
    for change in ({"server": "http://127.0.0.1:6444"}, {"server": "http://localhost:6443"}):
        refused = put(**change)
        assert (refused.status_code, refused.json()["code"]) == (422, "action.invalid")
        [fault] = refused.json()["faults"]
        assert (fault["code"], fault["column"]) == ("secret_needed_again", "config.token")
        assert put(**change, token="secret").status_code == 200  # noqa: S106
    split = put(token="secret\r\nX-Header: 1")  # noqa: S106
    assert (split.status_code, split.json()["faults"][0]["column"]) == (422, "config.token")


def test_the_switch_stops_and_says_who(client: httpx.Client) -> None:
    assert client.get("/action-switch").json()["stopped"] is False
    stopped = client.put("/action-switch", json={"stopped": True, "reason": "storm"}).json()
    assert (stopped["stopped"], stopped["reason"]) == (True, "storm")
    assert stopped["stopped_by"]
    assert client.put("/action-switch", json={"stopped": False}).json()["stopped"] is False


@pytest.mark.parametrize(
    "body",
    [
        {"kind": "shell", "config": {}},
        {"kind": "event", "config": {}},
        {"kind": "event", "config": {"url": "https://10.0.0.1/x"}},
        {"kind": "event", "config": {"url": "https://hooks.example/x", "command": "reboot"}},
        {"kind": "event", "mode": "always"},
        {"kind": "event", "config": {"url": "https://hooks.example/x"}, "extra": 1},
    ],
)
def test_an_invalid_policy_is_refused(client: httpx.Client, body: dict[str, object]) -> None:
    answer = client.put("/action-policies", json=body)
    assert answer.status_code in {404, 422}
    assert answer.json()["code"] in {"action.invalid", "request.invalid", "not_found"}


def test_unknown_actions_are_not_there(client: httpx.Client) -> None:
    for order in ("allow", "decline", "release"):
        assert client.post(f"/actions/{uuid.uuid4()}/{order}").status_code == 404


@pytest.mark.parametrize("kind", EventType)
def test_schemas_of_events_are_published(client: httpx.Client, kind: EventType) -> None:
    schema = client.get("/event-schemas", params={"type": kind.value}).json()
    assert schema["properties"]["type"] == {"const": kind}
    assert schema["$schema"].startswith("https://json-schema.org/")


def test_every_limit_that_is_shown_as_a_code_is_documented() -> None:
    page = (Path(__file__).parents[3] / "docs" / "actions.md").read_text()
    assert [limit for limit in SENTENCES if f"`{limit}`" not in page] == []
