"""Buttons in messages of Slack: their effects, and the refusal of forged requests."""

from __future__ import annotations

import json
import threading
import time
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import pytest

from app.access.audit import list_entries
from app.access.projects import create_project
from app.incidents.channel_writes import create_channel, update_channel
from app.incidents.channels.slack import MAX_APPROVALS, slack_body
from app.incidents.message import PendingAction
from app.incidents.models.tables import IncidentState
from app.incidents.reads import get_incident
from app.incidents.slack import MAX_BODY_BYTES
from tests.integration.incidents.messages import NASTY, incident, message
from tests.integration.incidents.services import fits
from tests.support.slack import ADDRESS, MEMBER, SIGNING_SECRET, buttons
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from tests.integration.incidents.slack.conftest import Workspace

OTHER = "f00000000000000000000000000000f0"


def told(workspace: Workspace) -> dict[str, dict[str, Any]]:
    """Send an incident with a pending action to Slack; return the message's buttons by id."""
    workspace.acting.blame()
    workspace.acting.look()
    workspace.acting.alerting.pass_and_work()
    sent = workspace.slack.receiver.got[-1].json
    assert fits("slack", sent) is None
    return {one["action_id"]: one for one in buttons(sent)}


def said(workspace: Workspace, number: int = 1) -> list[dict[str, Any]]:
    """Return the messages that the server has posted after buttons were pressed."""

    def found() -> list[dict[str, Any]]:
        got = [one.json for one in workspace.slack.receiver.got if one.path.startswith("/actions/")]
        return got if len(got) >= number else []

    return wait_for(found, "an answer in Slack")


def test_a_button_acknowledges_in_the_name_of_the_member(workspace: Workspace) -> None:
    button = told(workspace)["paceline.acknowledge"]
    answer = workspace.slack.press(button)
    assert (answer.status_code, answer.content) == (200, b"")
    found = workspace.acting.alerting.incident()
    assert found.state is IncidentState.ACKNOWLEDGED
    assert found.acknowledged_by == f"ann (Slack {MEMBER})"
    assert said(workspace) == [
        {
            "response_type": "in_channel",
            "replace_original": False,
            "text": f"Acknowledged by <@{MEMBER}>.",
        }
    ]
    with workspace.acting.container.reading() as tx:
        entry = list_entries(tx, 1)[0]
    assert (entry.actor, entry.action) == (f"ann (Slack {MEMBER})", "acknowledged")


def test_a_button_silences_for_four_hours(workspace: Workspace) -> None:
    assert workspace.slack.press(told(workspace)["paceline.silence"]).status_code == 200
    found = workspace.acting.alerting.incident()
    assert found.state is IncidentState.SILENCED
    assert found.silence is not None
    assert found.silence.reason == "silenced in Slack for 4 h"


def test_the_message_says_exactly_what_is_run_and_one_click_approves_it(
    workspace: Workspace,
) -> None:
    button = told(workspace)["paceline.approve"]
    blocks = workspace.slack.receiver.got[-1].json["blocks"]
    [block] = [one for one in blocks if "accessory" in one]
    command = workspace.acting.action().command
    assert command in block["text"]["text"]
    assert workspace.slack.press(button).status_code == 200
    workspace.acting.work()
    action = workspace.acting.action()
    assert (str(action.state), action.ordered_by) == ("done", f"ann (Slack {MEMBER})")
    assert [got.json["subject"] for got in workspace.hardware.got] == ["node-7"]
    assert command in said(workspace)[0]["text"]


def test_only_the_member_learns_that_an_action_was_done_already(workspace: Workspace) -> None:
    button = told(workspace)["paceline.approve"]
    assert workspace.slack.press(button).status_code == 200
    # A second click on the button, in another signed request.
    again = workspace.slack.payload(button, trigger_id="another")
    answer = workspace.slack.send(again)
    assert (answer.status_code, answer.json()["code"]) == (409, "action.wrong_state")
    # Both answers are posted independently, in any order.
    told_to = sorted(one["response_type"] for one in said(workspace, 2))
    assert told_to == ["ephemeral", "in_channel"]


def test_a_request_that_is_replayed_acts_once(workspace: Workspace) -> None:
    payload = workspace.slack.payload(told(workspace)["paceline.silence"])
    now, together = int(time.time()), threading.Barrier(4)
    codes: list[str] = []

    def send() -> None:
        together.wait(30)
        answer = workspace.slack.send(payload, at=now)
        codes.append(answer.json()["code"] if answer.content else "done")

    threads = [threading.Thread(target=send) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(codes) == ["done", *["slack.replayed"] * 3]
    with workspace.acting.container.reading() as tx:
        events = get_incident(tx, workspace.acting.alerting.incident().id).events
    assert [one.event for one in events].count("silenced") == 1


def refused(workspace: Workspace, answer: Any, status: int, code: str) -> None:  # noqa: ANN401 - of httpx
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert workspace.acting.alerting.incident().state is IncidentState.FIRING
    assert str(workspace.acting.action().state) == "asked"


def test_a_request_that_slack_did_not_sign_is_refused(workspace: Workspace) -> None:
    button = told(workspace)["paceline.approve"]
    payload = workspace.slack.payload(button)
    send = workspace.slack.send
    for answer in (
        send(payload, secret=OTHER),
        send(payload, headers={"X-Slack-Signature": ""}),
        send(payload, headers={"X-Slack-Signature": "v0=" + "0" * 64}),
        send(payload, headers={"X-Slack-Signature": "v1=" + "0" * 64}),
        send(payload, headers={"X-Slack-Request-Timestamp": "1"}),
        send(payload, headers={"X-Slack-Request-Timestamp": ""}),
        send(payload, headers={"X-Slack-Request-Timestamp": "9" * 400}),
    ):
        refused(workspace, answer, 401, "slack.signature")
    now = int(time.time())
    for at in (now - 310, now + 310, 0, 10**11):
        refused(workspace, send(payload, at=at), 401, "slack.old")
    assert workspace.hardware.got == []
    # Nothing was posted to the address in the forged request.
    assert len(workspace.slack.receiver.got) == 1


def test_a_member_who_is_no_operator_is_refused(workspace: Workspace) -> None:
    button = told(workspace)["paceline.acknowledge"]
    answer = workspace.slack.press(button, member="U999ZZZ99")
    refused(workspace, answer, 403, "slack.unknown_user")
    assert said(workspace)[0]["response_type"] == "ephemeral"


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"action_id": "paceline.reboot"}, "slack.unknown_action"),
        ({"value": "x"}, "slack.unknown_action"),
        ({"value": "-" * 36 + ":" + "-" * 36}, "slack.unknown_action"),
        ({"value": "x" * 2001}, "slack.invalid"),
    ],
)
def test_a_button_that_is_none_of_ours_is_refused(
    workspace: Workspace, change: dict[str, str], code: str
) -> None:
    button = told(workspace)["paceline.approve"] | change
    refused(workspace, workspace.slack.press(button), 422, code)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"payload",
        b"payload=",
        b"payload=%7B%7D",
        b"payload=" + b"%5B" * 20_000,
        b"payload=%FF%FE",
        b"payload=%7B%7D&payload=%7B%7D",
        b"\xff\xfe",
        urlencode({"payload": json.dumps({"type": "view_submission"})}).encode(),
        urlencode(
            {"payload": json.dumps({"type": "block_actions", "user": {"id": 7}, "actions": []})}
        ).encode(),
    ],
)
def test_a_body_that_is_no_payload_is_refused(workspace: Workspace, body: bytes) -> None:
    answer = workspace.slack.client.post(ADDRESS, content=body)
    assert (answer.status_code, answer.json()["code"]) == (422, "slack.invalid")


def test_a_body_that_is_too_large_is_refused(workspace: Workspace) -> None:
    body = b"payload=" + b"x" * MAX_BODY_BYTES
    answer = workspace.slack.send(body)
    assert (answer.status_code, answer.json()["code"]) == (413, "body.too_large")


def test_another_project_s_incident_is_not_there(workspace: Workspace) -> None:
    """The signing secret of one project's channel gives no access to another project."""
    mine = told(workspace)
    container = workspace.acting.container
    other = container.within(create_project(container.everywhere(), "other").id)
    config = {
        "url": workspace.slack.receiver.url,
        "signing_secret": OTHER,
        "operators": [MEMBER],
    }
    theirs = create_channel(other, name="theirs", kind="slack", config=config).id
    for button in mine.values():
        about = button["value"].partition(":")[2]
        payload = workspace.slack.payload(button | {"value": f"{theirs}:{about}"})
        refused(workspace, workspace.slack.send(payload, secret=OTHER), 404, "not_found")
    # The foreign channel's button, signed with the own secret, is refused as well.
    forged = workspace.slack.payload(mine["paceline.approve"])
    refused(workspace, workspace.slack.send(forged, secret=OTHER), 401, "slack.signature")


def test_a_channel_that_is_gone_disabled_or_without_a_secret_obeys_no_button(
    workspace: Workspace,
) -> None:
    button = told(workspace)["paceline.approve"]
    about = button["value"].partition(":")[2]
    elsewhere = workspace.slack.payload(button | {"value": f"{uuid.uuid4()}:{about}"})
    refused(workspace, workspace.slack.send(elsewhere), 401, "slack.signature")
    container = workspace.acting.container
    update_channel(container, workspace.channel, enabled=False)
    refused(workspace, workspace.slack.press(button), 403, "slack.disabled")
    update_channel(container, workspace.channel, enabled=True, config={"signing_secret": None})
    refused(workspace, workspace.slack.press(button), 401, "slack.signature")


def test_without_a_secret_a_message_links_to_the_incident_itself(workspace: Workspace) -> None:
    update_channel(workspace.acting.container, workspace.channel, config={"signing_secret": None})
    assert told(workspace) == {}
    links = [
        one["url"]
        for block in workspace.slack.receiver.got[-1].json["blocks"]
        if block["type"] == "actions"
        for one in block["elements"]
    ]
    found = workspace.acting.alerting.incident()
    assert links[-1].endswith(f"/incidents/{found.id}")


def test_replies_go_to_no_other_host(workspace: Workspace) -> None:
    button = told(workspace)["paceline.acknowledge"]
    payload = workspace.slack.payload(button, response_url=workspace.hardware.url)
    assert workspace.slack.send(payload).status_code == 200
    assert workspace.hardware.got == []


def test_secrets_are_not_shown(workspace: Workspace) -> None:
    shown = workspace.slack.client.get(f"/api/v1/channels/{workspace.channel}").text
    assert SIGNING_SECRET not in shown
    assert MEMBER in shown


def test_a_message_of_many_incidents_and_actions_is_one_that_slack_takes() -> None:
    found = message(*(incident(number) for number in range(30)), job="j" * 200)
    asks = tuple(
        PendingAction(uuid.uuid4(), "Slurm", "node-7", f"scontrol `{NASTY}` {'x' * 4000}")
        for _ in range(3)
    )
    full = replace(
        found,
        channel=uuid.uuid4(),
        alerts=tuple(replace(alert, asks=asks) for alert in found.alerts),
    )
    body = slack_body(full, buttons=True)
    assert fits("slack", body) is None
    approve = [one for one in buttons(body) if one["action_id"] == "paceline.approve"]
    assert len(approve) == MAX_APPROVALS
    assert buttons(slack_body(full)) == []
    assert buttons(slack_body(replace(full, test=True), buttons=True)) == []
