"""The routes of alerts on a real server: rules, channels, incidents, deliveries."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from cryptography.fernet import Fernet
from sqlalchemy import select, text

from app.analysis.synthesis.injections import SlowWorker
from app.analysis.synthesis.job import JobModel
from app.analysis.synthesis.synthesize import synthesize
from app.analysis.trace.encode import to_parquet
from app.analysis.trace.model import Sizes
from app.cli_alerts import AlertsCommandError, reseal, send_test
from app.db.alert_models import AlertChannel, AlertFacts
from app.errors import SecretKeyError
from app.services.alert_channels import list_channels
from app.services.alert_incidents import silence_incident
from app.services.alert_secrets import seal, unseal
from app.settings import Settings
from tests.integration.api.conftest import Install, Installation
from tests.support.alerting import LOOPBACK, Alerting
from tests.support.receiver import Receiver, Reply

API = "/api/v1"
SECRET = "whsec_" + "QUJD" * 10
PERSON = {"by": "ann"}


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as running:
        yield running


@pytest.fixture
def served(install: Install) -> Iterator[Installation]:
    with install(alert_allowed_networks=LOOPBACK, alert_attempt_limit_s=5.0) as installed:
        yield installed


@pytest.fixture
def alerting(served: Installation) -> Alerting:
    return Alerting(served.container)


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


def test_two_slow_sessions_that_are_sent_and_analyzed_reach_the_channel_with_their_cause(
    served: Installation, alerting: Alerting, receiver: Receiver
) -> None:
    add_channel(served, receiver)
    sizes = {"dp": 2, "pp": 2, "tp": 1, "cp": 1, "vpp": 1, "world": 4}
    for seed in (1, 2):
        job = JobModel(Sizes(dp=2, pp=2), microbatches=4, steps=12)
        session = synthesize(job, [SlowWorker((1, 1), 1.8)], seed=seed)
        answer = served.client.post(
            f"{API}/jobs/llm/sessions", content=to_parquet(session.trace), params=sizes
        )
        assert answer.status_code == 202, answer.text
        served.analyze_all()
    alerting.pass_and_work(timedelta(minutes=1))
    [got] = receiver.got
    [alert] = [a for a in got.json["alerts"] if a["labels"]["cause"] == "slow_worker"]
    assert alert["labels"]["job"] == "llm"
    assert alert["labels"]["where"] == "worker (1, 1)"
    for words in ("Slowdown S: 1.", "GPU-hours lost", "Worst workers: (DP 1, PP 1)", "Best fix"):
        assert words in alert["annotations"]["description"], words
    page = alert["annotations"]["dashboard"].removeprefix("http://127.0.0.1:8765")
    assert served.client.get(page).status_code == 200


def test_a_picture_of_the_session_is_in_the_message(
    served: Installation, alerting: Alerting, receiver: Receiver
) -> None:
    add_channel(served, receiver, kind="discord", config={"url": receiver.url})
    rules = served.client.get(f"{API}/alert-rules").json()["rules"]
    [slow] = [rule for rule in rules if rule["name"] == "Slow job"]
    served.client.put(f"{API}/alert-rules/{slow['id']}", json=slow | {"consecutive": 1})
    job = JobModel(Sizes(dp=2, pp=2), microbatches=4, steps=12)
    session = synthesize(job, [SlowWorker((1, 1), 1.8)], seed=1)
    served.client.post(
        f"{API}/jobs/llm/sessions", content=to_parquet(session.trace), params={"dp": 2, "pp": 2}
    )
    served.analyze_all()
    alerting.pass_and_work(timedelta(minutes=1))
    assert b"\x89PNG\r\n\x1a\n" in receiver.got[0].body


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


def test_names_of_channels_and_rules_are_taken_once(
    served: Installation, receiver: Receiver
) -> None:
    add_channel(served, receiver)
    body = {"name": "hook", "kind": "slack", "config": {"url": "https://example.com"}}
    assert served.client.post(f"{API}/channels", json=body).json()["code"] == "channel.name_taken"
    condition = {"kind": "waste", "at_least": 0.2, "clears_below": 0.1}
    rule = {"name": "Slow job", "condition": condition}
    assert served.client.post(f"{API}/alert-rules", json=rule).json()["code"] == "rule.name_taken"


def test_the_test_button_shows_what_the_receiver_said(
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
    with install() as served:
        added = add_channel(served, receiver)
        result = served.client.post(f"{API}/channels/{added['id']}/test").json()
    assert (result["delivered"], result["code"]) == (False, "address.refused")
    assert receiver.got == []


def test_the_command_prints_the_receivers_answer(
    served: Installation, receiver: Receiver, capsys: pytest.CaptureFixture[str]
) -> None:
    add_channel(served, receiver)
    receiver.answer = lambda _: Reply(200, b"thanks")
    send_test("hook", server=served.url)
    assert capsys.readouterr().out == "delivered: 200 thanks\n"
    receiver.answer = lambda _: Reply(500, b"no")
    with pytest.raises(AlertsCommandError, match=r"answered 500\. It said: 500 no") as failed:
        send_test("hook", server=served.url)
    assert failed.value.stable_code == "http.status"
    with pytest.raises(AlertsCommandError, match="no channel nobody"):
        send_test("nobody", server=served.url)
    reseal(server=served.url)
    assert capsys.readouterr().out == "channels encrypted with the newest key: 1\n"


def test_incidents_are_acknowledged_silenced_and_resolved(
    served: Installation, alerting: Alerting
) -> None:
    alerting.slow("a")
    alerting.slow("b")
    first, second = served.client.get(f"{API}/incidents").json()["incidents"]
    assert {first["job"], second["job"]} == {"a", "b"}
    assert first["rules"]
    assert first["facts"]["slowdown"] == 1.3
    path = f"{API}/incidents/{first['id']}"

    acknowledged = served.client.post(f"{path}/ack", json=PERSON | {"note": "on it"}).json()
    assert (acknowledged["state"], acknowledged["acknowledged_by"]) == ("acknowledged", "ann")
    assert served.client.post(f"{path}/ack", json=PERSON).status_code == 200

    until = (datetime.now(UTC) + timedelta(hours=2)).isoformat()
    order = PERSON | {"until": until, "reason": "maintenance"}
    silenced = served.client.post(f"{path}/silence", json=order).json()
    assert (silenced["state"], silenced["silence_reason"]) == ("silenced", "maintenance")
    woken = served.client.delete(f"{path}/silence", params=PERSON).json()
    assert woken["state"] == "firing"

    resolved = served.client.post(f"{path}/resolve", json=PERSON | {"note": "replaced"}).json()
    assert (resolved["state"], resolved["resolved_by"]) == ("resolved", "ann")
    events = [(event["event"], event["actor"], event["note"]) for event in resolved["events"]]
    assert events[-4:] == [
        ("acknowledged", "ann", "on it"),
        ("silenced", "ann", "maintenance"),
        ("unsilenced", "ann", None),
        ("resolved", "ann", "replaced"),
    ]
    again = served.client.post(f"{path}/ack", json=PERSON)
    assert (again.status_code, again.json()["code"]) == (409, "incident.wrong_state")
    listed = served.client.get(f"{API}/incidents").json()["incidents"]
    assert [row["state"] for row in listed] == ["firing", "resolved"]
    only = served.client.get(f"{API}/incidents", params={"state": "firing"}).json()["incidents"]
    assert [row["job"] for row in only] == [second["job"]]


def test_a_silence_ends_in_the_future_and_has_a_reason(
    served: Installation, alerting: Alerting
) -> None:
    alerting.slow()
    path = f"{API}/incidents/{alerting.incident().id}/silence"
    past = PERSON | {"until": "2020-01-01T00:00:00Z", "reason": "x"}
    assert served.client.post(path, json=past).json()["code"] == "incident.silence_over"
    for wrong in ({"reason": ""}, {"until": "2030-01-01T00:00:00"}, {"by": ""}):
        body = PERSON | {"until": "2030-01-01T00:00:00Z", "reason": "x"} | wrong
        assert served.client.post(path, json=body).status_code == 422


def test_a_silence_that_is_over_fires_again_by_itself(alerting: Alerting) -> None:
    alerting.slow()
    with alerting.container.uow() as tx:
        until = tx.now + timedelta(hours=1)
    silence_incident(alerting.container, alerting.incident().id, until=until, reason="x", by="ann")
    alerting.work()
    assert alerting.incident().state == "silenced"
    with alerting.container.engine.begin() as connection:
        connection.execute(
            text(
                "UPDATE alert_incident SET document = jsonb_set(document, '{silence,until}',"
                " to_jsonb(now() - interval '1 s'))"
            )
        )
    alerting.pass_and_work()
    assert alerting.incident().state == "firing"


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


def test_a_preview_says_what_would_have_fired_and_tells_nobody(
    served: Installation, alerting: Alerting, receiver: Receiver
) -> None:
    add_channel(served, receiver)
    for rule in served.client.get(f"{API}/alert-rules").json()["rules"]:
        served.client.delete(f"{API}/alert-rules/{rule['id']}")
    alerting.slow("a")
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


def test_deliveries_are_listed_and_sent_again(
    served: Installation, alerting: Alerting, receiver: Receiver
) -> None:
    receiver.answer = lambda _: Reply(400 if len(receiver.got) == 1 else 200)
    added = add_channel(served, receiver)
    alerting.slow()
    alerting.pass_and_work(timedelta(minutes=1))
    [failed] = served.client.get(f"{API}/deliveries").json()["deliveries"]
    assert (failed["state"], failed["answer_status"], failed["channel"]) == ("failed", 400, "hook")
    assert failed["title"] == "[FIRING] llm: Slow worker: node-7"
    health = served.client.get(f"{API}/channels/{added['id']}").json()
    assert (health["failures"], health["last_error"]) == (1, "The receiver answered 400.")
    path = f"{API}/deliveries/{failed['id']}/replay"
    assert served.client.post(path).status_code == 204
    alerting.work()
    [sent] = served.client.get(f"{API}/deliveries", params={"state": "delivered"}).json()[
        "deliveries"
    ]
    assert sent["id"] == failed["id"]
    assert served.client.get(f"{API}/channels/{added['id']}").json()["last_error"] is None
    assert served.client.post(path).json()["code"] == "delivery.wrong_state"
    assert served.client.post(f"{API}/deliveries/{uuid.uuid4()}/replay").status_code == 404


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
def test_what_is_not_there_is_not_found(method: str, path: str, served: Installation) -> None:
    answer = served.client.request(
        method, f"{API}/{path.format(id=uuid.uuid4())}", json=None if method == "GET" else PERSON
    )
    assert (answer.status_code, answer.json()["code"]) == (404, "not_found")


def test_a_deleted_session_takes_its_facts_with_it(
    served: Installation, alerting: Alerting
) -> None:
    alerting.session()
    with served.container.engine.begin() as connection:
        connection.execute(text("DELETE FROM session"))
    with served.container.uow() as tx:
        assert tx.session.execute(select(AlertFacts)).all() == []


def test_keys_rotate(settings: Settings) -> None:
    old, new, other = (Fernet.generate_key().decode() for _ in range(3))

    def with_keys(*keys: str) -> Settings:
        return settings.model_copy(update={"secret_keys": keys})

    sealed = seal(with_keys(old), {"url": "x"})
    assert unseal(with_keys(new, old), sealed) == {"url": "x"}
    again = seal(with_keys(new, old), unseal(with_keys(new, old), sealed))
    assert unseal(with_keys(new), again) == {"url": "x"}
    with pytest.raises(SecretKeyError, match="another key"):
        unseal(with_keys(other), again)
    with pytest.raises(SecretKeyError, match="32 bytes"):
        seal(with_keys("short"), {})
    assert old not in repr(with_keys(old))


def test_the_key_file_is_made_once_and_for_its_owner_only(settings: Settings) -> None:
    sealed = seal(settings, {"url": "x"})
    path = settings.data_dir / "secret.key"
    assert path.stat().st_mode & 0o777 == 0o600
    before = path.read_text()
    seal(settings, {})
    assert path.read_text() == before
    assert unseal(settings, sealed) == {"url": "x"}
    assert list(settings.data_dir.glob(".secret*")) == []
    elsewhere = settings.model_copy(update={"secret_key_file": settings.data_dir / "missing"})
    with pytest.raises(SecretKeyError, match="no secret key"):
        seal(elsewhere, {})


def test_channels_whose_key_is_lost_are_listed_and_wait(
    served: Installation, alerting: Alerting, receiver: Receiver
) -> None:
    add_channel(served, receiver)
    (served.container.settings.data_dir / "secret.key").unlink()
    [view] = list_channels(served.container)
    assert not view.readable
    alerting.slow()
    alerting.pass_and_work(timedelta(minutes=1))
    [delivery] = alerting.deliveries()
    assert (delivery.state, delivery.error_code) == ("waiting", "secrets.unreadable")
    with served.container.uow() as tx:
        row = tx.session.execute(select(AlertChannel)).scalar_one()
        assert row.enabled
