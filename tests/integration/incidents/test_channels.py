"""Each channel, sent to a server that behaves like its service, errors included."""

from __future__ import annotations

import base64
import ipaddress
import json
from collections.abc import Iterator
from itertools import cycle, islice
from typing import Any

import numpy as np
import pytest
from standardwebhooks import Webhook, WebhookVerificationError

from app.incidents.channels.kind import OutgoingMessage
from app.incidents.channels.registry import KINDS
from app.incidents.message import Message
from app.incidents.models.tables import IncidentState
from app.incidents.picture import heatmap_png
from app.incidents.text import plain_text
from app.platform.outbound import (
    MAX_RETRY_AFTER_S,
    AddressGuard,
    DeliveryError,
    Outbound,
    ReceiverAnswer,
)
from benchmarks.support.receiver import Reply
from tests.integration.incidents.messages import NASTY, incident, message, messages, notes
from tests.integration.incidents.services import SERVICES, WEBHOOK_SECRETS, config_of
from tests.support.alerting import LOOPBACK
from tests.support.receiver import Receiver

GUARD = AddressGuard(tuple(ipaddress.ip_network(text) for text in LOOPBACK))
MESSAGES = dict(messages())


@pytest.fixture(scope="module")
def picture() -> bytes:
    slowdowns = np.ones((8, 4), dtype=np.float32)
    slowdowns[3, 1] = 1.4
    slowdowns[0, 0] = np.nan
    return heatmap_png(slowdowns, "llm, session 1")


@pytest.fixture
def server() -> Iterator[Receiver]:
    with Receiver() as running:
        yield running


def send(
    kind: str,
    server: Receiver,
    sent: Message,
    picture: bytes | None = None,
    **changes: Any,  # noqa: ANN401 - of the configuration
) -> ReceiverAnswer:
    known = KINDS[kind]
    config = known.config.validate_python(config_of(kind, server.url) | changes)
    shown = picture if known.pictures else None
    with Outbound(GUARD, 30.0) as outbound:
        return known.send(config, OutgoingMessage(sent, shown, outbound))


@pytest.mark.parametrize("name", list(MESSAGES))
@pytest.mark.parametrize("kind", list(SERVICES))
def test_every_message_is_taken(kind: str, name: str, server: Receiver, picture: bytes) -> None:
    server.answer = SERVICES[kind]
    answer = send(kind, server, MESSAGES[name], picture)
    assert answer.status in (200, 202, 204)
    assert server.got


@pytest.mark.parametrize("kind", list(SERVICES))
def test_the_words_say_what_to_do(kind: str, server: Receiver) -> None:
    server.answer = SERVICES[kind]
    send(kind, server, MESSAGES["one"])
    said = json.dumps(server.got[0].json, ensure_ascii=False)
    for words in (
        "llm",
        "1.31",
        "GPU-hours",
        "Slow worker",
        "node-7",
        "predicted gain 20.0\N{NO-BREAK SPACE}%",
        "https://paceline.example/sessions/00000000-0000-0000-0000-000000000001?step=7&dp=0&pp=1",
        "https://paceline.example/incidents/00000000-0000-0000-0000-000000000001",
    ):
        assert words in said, words


def each_once(statuses: list[int]) -> list[tuple[str, int]]:
    """Return pairs of channel and status in which each channel and each status occurs.

    All pairs would be too many: `Outbound` treats statuses alike for all channels.
    """
    pairs = max(len(SERVICES), len(statuses))
    return list(islice(zip(cycle(SERVICES), cycle(statuses), strict=True), pairs))


@pytest.mark.parametrize(("kind", "status"), each_once([500, 502, 503, 408]))
def test_faults_of_a_service_pass(kind: str, status: int, server: Receiver) -> None:
    server.answer = lambda _: Reply(status, b"down")
    with pytest.raises(DeliveryError) as failed:
        send(kind, server, MESSAGES["one"])
    assert not failed.value.permanent
    assert failed.value.answer == ReceiverAnswer(status, "down")


@pytest.mark.parametrize(("kind", "status"), each_once([400, 401, 403, 413, 404, 422]))
def test_refusals_are_for_good_but_leave_the_channel(
    kind: str, status: int, server: Receiver
) -> None:
    server.answer = lambda _: Reply(status)
    with pytest.raises(DeliveryError) as failed:
        send(kind, server, MESSAGES["one"])
    assert failed.value.permanent
    assert not failed.value.disable


@pytest.mark.parametrize("kind", list(SERVICES))
def test_redirects_are_not_followed(kind: str, server: Receiver) -> None:
    server.answer = lambda _: Reply(307, headers={"Location": f"{server.url}/elsewhere"})
    with pytest.raises(DeliveryError) as failed:
        send(kind, server, MESSAGES["one"])
    assert failed.value.permanent
    assert len(server.got) == 1


@pytest.mark.parametrize(
    ("kind", "reply"),
    [
        ("webhook", Reply(410)),
        ("slack", Reply(404, b"no_service")),
        ("slack", Reply(404, b"no_team")),
        ("slack", Reply(404, b"channel_not_found")),
        ("slack", Reply(410, b"channel_is_archived")),
        ("discord", Reply(404, b'{"message": "Unknown Webhook", "code": 10015}')),
        ("discord", Reply(401, b'{"message": "Invalid Webhook Token", "code": 50027}')),
        ("teams", Reply(410)),
        ("feishu", Reply(200, b'{"code": 19001, "msg": "param invalid: access token invalid"}')),
    ],
)
def test_a_receiver_that_is_gone_disables_the_channel(
    kind: str, reply: Reply, server: Receiver
) -> None:
    server.answer = lambda _: reply
    with pytest.raises(DeliveryError) as failed:
        send(kind, server, MESSAGES["one"])
    assert failed.value.disable


@pytest.mark.parametrize(
    ("kind", "reply", "wait_s"),
    [
        ("webhook", Reply(429, headers={"Retry-After": "17"}), 17.0),
        ("webhook", Reply(503, headers={"Retry-After": "17"}), 17.0),
        ("webhook", Reply(429, headers={"Retry-After": "1000000"}), MAX_RETRY_AFTER_S),
        ("webhook", Reply(429, headers={"Retry-After": "soon"}), None),
        (
            "webhook",
            Reply(429, headers={"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"}),
            0.0,
        ),
        ("slack", Reply(429, b"rate_limited", {"Retry-After": "30"}), 30.0),
        ("discord", Reply(429, b'{"message": "limited", "retry_after": 64.57}'), 64.57),
        ("teams", Reply(429, headers={"Retry-After": "5"}), 5.0),
        ("pagerduty", Reply(429), None),
        ("feishu", Reply(200, b'{"code": 11232, "msg": "frequency limited"}'), None),
    ],
)
def test_who_asks_for_patience_gets_it(
    kind: str, reply: Reply, wait_s: float | None, server: Receiver
) -> None:
    server.answer = lambda _: reply
    with pytest.raises(DeliveryError) as failed:
        send(kind, server, MESSAGES["one"])
    assert not failed.value.permanent
    assert failed.value.retry_after_s == wait_s


@pytest.mark.parametrize("code", [19021, 19024, 9499])
def test_errors_of_feishu_within_a_good_status_are_errors(code: int, server: Receiver) -> None:
    server.answer = lambda _: Reply(200, json.dumps({"code": code, "msg": "no"}).encode())
    with pytest.raises(DeliveryError, match=str(code)) as failed:
        send("feishu", server, MESSAGES["one"])
    assert failed.value.permanent
    assert not failed.value.disable


def test_a_wrong_secret_of_feishu_is_refused_by_its_service(server: Receiver) -> None:
    server.answer = SERVICES["feishu"]
    with pytest.raises(DeliveryError, match="19021"):
        send("feishu", server, MESSAGES["one"], signing_secret="another")  # noqa: S106 - wrong on purpose


def test_during_a_rotation_both_secrets_verify_and_others_do_not(server: Receiver) -> None:
    send("webhook", server, MESSAGES["one"])
    [got] = server.got
    for secret in WEBHOOK_SECRETS:
        Webhook(secret).verify(got.body, dict(got.headers))
    other = f"whsec_{base64.b64encode(bytes(32)).decode()}"
    with pytest.raises(WebhookVerificationError):
        Webhook(other).verify(got.body, dict(got.headers))
    with pytest.raises(WebhookVerificationError):
        Webhook(WEBHOOK_SECRETS[0]).verify(got.body + b" ", dict(got.headers))


@pytest.mark.parametrize("secret", ["secret", "whsec_", "whsec_!!", "whsec_c2hvcnQ="])
def test_a_secret_that_is_none_is_refused_without_being_repeated(secret: str) -> None:
    with pytest.raises(ValueError, match="signing secret") as refused:
        KINDS["webhook"].config.validate_python(
            {"url": "https://example.com", "signing_secrets": [secret]}
        )
    assert "c2hvcnQ" not in str(refused.value.errors(include_input=False))  # type: ignore[attr-defined]  # of pydantic


def test_pagerduty_gets_each_incident_under_its_own_key(server: Receiver) -> None:
    server.answer = SERVICES["pagerduty"]
    send(
        "pagerduty",
        server,
        message(
            incident(1),
            incident(2, IncidentState.ACKNOWLEDGED),
            incident(3, IncidentState.RESOLVED),
        ),
    )
    heard = {got.json["dedup_key"]: got.json["event_action"] for got in server.got}
    assert sorted(heard.values()) == ["acknowledge", "resolve", "trigger"]
    before = list(heard)
    server.got.clear()
    send("pagerduty", server, message(incident(1, IncidentState.RESOLVED)))
    assert server.got[0].json["dedup_key"] in before


def test_pictures_travel_where_a_channel_can_show_them(server: Receiver, picture: bytes) -> None:
    server.answer = SERVICES["discord"]
    send("discord", server, MESSAGES["one"], picture)
    assert picture in server.got[-1].body
    server.answer = SERVICES["teams"]
    send("teams", server, MESSAGES["one"], picture)
    assert base64.b64encode(picture) in server.got[-1].body
    send("teams", server, MESSAGES["many"], picture * 20)
    assert base64.b64encode(picture) not in server.got[-1].body


def test_names_that_look_like_markup_stay_text(server: Receiver) -> None:
    sent = message(incident(1, text=NASTY), job=NASTY)
    server.answer = SERVICES["slack"]
    send("slack", server, sent)
    assert server.got[-1].json["text"].count("&lt;!channel&gt;") == 2
    server.answer = SERVICES["discord"]
    send("discord", server, sent)
    assert server.got[-1].json["allowed_mentions"] == {"parse": []}


def test_a_test_is_marked_as_one(server: Receiver) -> None:
    sent = message(incident(1))
    marked = type(sent)(
        **{name: getattr(sent, name) for name in type(sent).__slots__} | {"test": True}
    )
    for kind in SERVICES:
        server.got.clear()
        send(kind, server, marked)
        assert "test" in json.dumps(server.got[0].json).lower(), kind


def test_plain_text_names_everything() -> None:
    text = plain_text(MESSAGES["mixed"])
    assert "over after 2 h" in text
    assert text.count("Acknowledge: https://") == 2
    assert text.count("Incident: https://") == 1
    assert "And 50 more" in plain_text(MESSAGES["many"])


# Webhooks distinguish notes from alerts by `kind`; pagers get no notes.
TOLD = {**SERVICES, "webhook": lambda _: Reply(204)}
NOTES = dict(notes())


def tell(kind: str, server: Receiver, name: str) -> list[Any]:
    known = KINDS[kind]
    assert known.tell is not None
    server.answer = TOLD[kind]
    config = known.config.validate_python(config_of(kind, server.url))
    with Outbound(GUARD, 30.0) as outbound:
        answer = known.tell(config, NOTES[name], outbound)
    assert answer.status in (200, 202, 204), answer.text
    return [got.json for got in server.got]


@pytest.mark.parametrize("name", list(NOTES))
@pytest.mark.parametrize("kind", [kind for kind in SERVICES if KINDS[kind].tell])
def test_every_note_is_taken(kind: str, name: str, server: Receiver) -> None:
    [body] = tell(kind, server, name)
    said = json.dumps(body, ensure_ascii=False)
    assert NOTES[name].link in said
    if name == "week":
        for words in (NOTES[name].title, "Jobs that lost most", "llm: 120 GPU-hours"):
            assert words in said, words


def test_a_note_over_a_webhook_is_signed_and_has_its_kind(server: Receiver) -> None:
    [body] = tell("webhook", server, "week")
    [got] = server.got
    Webhook(WEBHOOK_SECRETS[0]).verify(got.body, dict(got.headers))
    assert body["kind"] == "note"
    assert got.headers["webhook-id"] == "msg_00000000000000000000000000000006"
    assert body["sections"][0]["lines"] == list(NOTES["week"].sections[0].lines)


def test_pagers_take_no_notes() -> None:
    silent = {kind for kind in KINDS if KINDS[kind].tell is None}
    assert silent == {"pagerduty", "alertmanager"}
