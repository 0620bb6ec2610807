"""Channels: added, changed and tested, without revealing their secrets."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import select, text

from app.cli.access import AlertsCommandError, reseal, send_test
from app.incidents.channel_reads import list_channels
from app.incidents.models.tables import AlertChannel
from benchmarks.support.receiver import Reply
from tests.integration.api.conftest import Install, Installation
from tests.integration.api.incidents.asking import API, SECRET, add_channel
from tests.support.alerting import LOOPBACK, Alerting
from tests.support.reads import read
from tests.support.receiver import Receiver


def test_secrets_go_in_and_never_come_out(served: Installation, receiver: Receiver) -> None:
    added = add_channel(served, receiver)
    channel = f"{API}/channels/{added['id']}"
    shown = [
        served.client.get(channel).text,
        served.client.get(f"{API}/channels").text,
        served.client.patch(channel, json={"name": "renamed"}).text,
    ]
    for text_ in shown:
        assert "whsec_" not in text_
        assert receiver.url not in text_
    assert added["secrets"] == {"url": "127.0.0.1", "signing_secrets": None}
    with served.container.engine.connect() as connection:
        row = connection.execute(text("SELECT config::text, secrets FROM alert_channel")).one()
    assert row.config == "{}"
    assert b"whsec_" not in bytes(row.secrets)


def test_a_patched_channel_keeps_the_secrets_that_are_left_out(
    served: Installation, receiver: Receiver
) -> None:
    added = add_channel(served, receiver)
    channel = f"{API}/channels/{added['id']}"
    served.client.patch(channel, json={"config": {"signing_secrets": None}})
    assert served.client.get(channel).json()["secrets"] == {"url": "127.0.0.1"}
    assert served.client.post(f"{channel}/test").json()["delivered"]
    assert "webhook-signature" not in receiver.got[-1].headers


def test_a_stored_secret_is_sent_to_no_other_address(
    served: Installation, receiver: Receiver
) -> None:
    added = add_channel(served, receiver)
    channel = f"{API}/channels/{added['id']}"
    moved = {"url": receiver.url + "/elsewhere"}
    refused = served.client.patch(channel, json={"config": moved, "name": "moved"})
    assert (refused.status_code, refused.json()["code"]) == (422, "channel.invalid")
    [fault] = refused.json()["faults"]
    assert (fault["code"], fault["column"]) == ("secret_needed_again", "config.signing_secrets")
    assert served.client.get(channel).json()["name"] == added["name"]
    served.client.post(f"{channel}/test")
    assert not receiver.got[-1].path.endswith("/elsewhere")
    again = {"config": {**moved, "signing_secrets": [SECRET]}}
    assert served.client.patch(channel, json=again).status_code == 200
    assert served.client.post(f"{channel}/test").json()["delivered"]
    assert receiver.got[-1].path.endswith("/elsewhere")


@pytest.mark.parametrize(
    ("body", "column"),
    [
        ({"kind": "carrier-pigeon"}, "kind"),
        ({"config": {}}, "config.url"),
        ({"config": {"url": "ftp://example.com/SECRET"}}, "config.url"),
        ({"config": {"url": "https://example.com", "SECRET": 1}}, "config.SECRET"),
        (
            {"config": {"url": "https://example.com", "signing_secrets": ["SECRET"]}},
            "config",
        ),
    ],
)
def test_a_wrong_configuration_says_where_but_not_what(
    body: dict[str, Any], column: str, served: Installation
) -> None:
    values = {"name": "x", "kind": "webhook", "config": {"url": "https://example.com"}} | body
    answer = served.client.post(f"{API}/channels", json=values)
    assert answer.status_code == 422
    problem = answer.json()
    assert problem["code"] == "channel.invalid"
    assert [fault["column"] for fault in problem["faults"]] == [column]
    assert "SECRET" not in answer.text.replace("config.SECRET", "")


def test_the_test_button_shows_the_receiver_s_answer(
    served: Installation, receiver: Receiver
) -> None:
    added = add_channel(served, receiver)
    receiver.answer = lambda _: Reply(403, b"wrong workspace")
    result = served.client.post(f"{API}/channels/{added['id']}/test").json()
    assert result == {
        "delivered": False,
        "code": "http.status",
        "error": "The receiver answered 403.",
        "status": 403,
        "answer": "wrong workspace",
    }
    assert receiver.got[0].headers["paceline-test"] == "true"
    assert receiver.got[0].json["alerts"][0]["labels"]["test"] == "true"


def test_private_addresses_are_refused_where_the_operator_allows_none(
    install: Install, receiver: Receiver
) -> None:
    with install(alert_allowed_networks=LOOPBACK) as served:
        added = add_channel(served, receiver)
    with install() as served:
        result = served.client.post(f"{API}/channels/{added['id']}/test").json()
    assert (result["delivered"], result["code"]) == (False, "address.refused")
    assert receiver.got == []


def test_a_private_address_is_refused_when_it_is_saved(
    install: Install, receiver: Receiver
) -> None:
    channel = {"name": "hook", "kind": "webhook", "config": {"url": receiver.url}}
    with install() as served:
        refused = served.client.post(f"{API}/channels", json=channel)
        public = channel | {"config": {"url": "https://192.0.0.9.invalid/x"}}
        added = served.client.post(f"{API}/channels", json=public).json()["id"]
        changed = served.client.patch(
            f"{API}/channels/{added}", json={"config": {"url": receiver.url}}
        )
    for answer in (refused, changed):
        assert (answer.status_code, answer.json()["code"]) == (422, "channel.invalid")
        [fault] = answer.json()["faults"]
        assert (fault["code"], fault["column"]) == ("address_refused", "config.url")
        assert "PACELINE_ALERT_ALLOWED_NETWORKS" in fault["message"]


def test_the_command_prints_the_receivers_answer(
    served: Installation, receiver: Receiver, capsys: pytest.CaptureFixture[str]
) -> None:
    add_channel(served, receiver)
    receiver.answer = lambda _: Reply(200, b"thanks")
    send_test("hook", server=served.url)
    assert capsys.readouterr().out == "delivered: 200 thanks\n"
    receiver.answer = lambda _: Reply(500, b"no")
    with pytest.raises(AlertsCommandError, match=r"answered 500\. Its answer: 500 no") as failed:
        send_test("hook", server=served.url)
    assert failed.value.stable_code == "http.status"
    with pytest.raises(AlertsCommandError, match="no channel unknown"):
        send_test("unknown", server=served.url)
    reseal(server=served.url)
    assert capsys.readouterr().out == "channels encrypted with the newest key: 1\n"


def test_channels_whose_key_is_lost_are_listed_and_wait(
    served: Installation, alerting: Alerting, receiver: Receiver
) -> None:
    add_channel(served, receiver)
    (served.container.settings.data_dir / "secret.key").unlink()
    alerting.slow()
    alerting.pass_and_work(timedelta(minutes=1))
    [view] = read(served.container, list_channels)
    assert (view.readable, view.secrets) == (False, {})
    [delivery] = alerting.deliveries()
    assert (delivery.state, delivery.error_code) == ("waiting", "secrets.unreadable")
    with served.container.uow() as tx:
        row = tx.session.execute(select(AlertChannel)).scalar_one()
        assert row.enabled


def test_a_channel_gets_no_name_that_looks_like_another(served: Installation) -> None:
    channel = {"name": "p\u0430ger", "kind": "webhook", "config": {"url": "https://x.example/"}}
    answer = served.client.post("/api/v1/channels", json=channel)
    assert (answer.status_code, answer.json()["code"]) == (422, "channel.invalid")
    assert [fault["column"] for fault in answer.json()["faults"]] == ["name"]
