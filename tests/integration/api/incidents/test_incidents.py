"""Incidents: acknowledged, silenced, resolved."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from sqlalchemy import select, text

from app.incidents.evaluate import silence_incident
from app.sessions.models.tables import StoredVerdict
from tests.integration.api.conftest import Installation
from tests.integration.api.incidents.asking import API, PERSON
from tests.support.alerting import Alerting


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


def test_an_acknowledgement_and_an_end_are_taken_back(
    served: Installation, alerting: Alerting
) -> None:
    alerting.slow("a")
    [found] = served.client.get(f"{API}/incidents").json()["incidents"]
    path = f"{API}/incidents/{found['id']}"
    served.client.post(f"{path}/ack", json=PERSON)
    unacked = served.client.delete(f"{path}/ack", params=PERSON).json()
    assert (unacked["state"], unacked["acknowledged_by"]) == ("firing", None)
    assert served.client.delete(f"{path}/ack", params=PERSON).status_code == 200

    served.client.post(f"{path}/resolve", json=PERSON)
    reopened = served.client.post(f"{path}/reopen", json=PERSON | {"note": "not yet"}).json()
    assert (reopened["state"], reopened["resolved_by"]) == ("firing", None)
    events = [(event["event"], event["note"]) for event in reopened["events"]]
    assert [name for name, _ in events[-4:]] == [
        "acknowledged", "unacknowledged", "resolved", "reopened",
    ]  # fmt: skip
    assert events[-1][1] == "not yet"

    # A later problem of the same kind is another incident, and the first one stays resolved.
    served.client.post(f"{path}/resolve", json=PERSON)
    alerting.slow("a")
    refused = served.client.post(f"{path}/reopen", json=PERSON)
    assert (refused.status_code, refused.json()["code"]) == (409, "incident.open_again")
    order = {"order": "reopen", "incidents": [found["id"]], **PERSON}
    done = served.client.post(f"{API}/incidents/orders", json=order).json()
    assert (done["changed"], [one["id"] for one in done["left"]]) == ([], [found["id"]])


def test_a_silence_ends_in_the_future_and_needs_no_reason(
    served: Installation, alerting: Alerting
) -> None:
    alerting.slow()
    path = f"{API}/incidents/{alerting.incident().id}/silence"
    past = PERSON | {"until": "2020-01-01T00:00:00Z", "reason": "x"}
    assert served.client.post(path, json=past).json()["code"] == "incident.silence_over"
    for wrong in ({"reason": "x" * 2001}, {"until": "2030-01-01T00:00:00"}, {"by": ""}):
        body = PERSON | {"until": "2030-01-01T00:00:00Z", "reason": "x"} | wrong
        assert served.client.post(path, json=body).status_code == 422
    silenced = served.client.post(path, json=PERSON | {"until": "2030-01-01T00:00:00Z"}).json()
    assert (silenced["state"], silenced["silence_reason"]) == ("silenced", "")
    assert " by ann<" in served.client.get(f"/incidents/{silenced['id']}").text


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


def test_a_deleted_session_takes_its_verdict_with_it(
    served: Installation, alerting: Alerting
) -> None:
    alerting.session()
    with served.container.engine.begin() as connection:
        connection.execute(text("DELETE FROM session"))
    with served.container.uow() as tx:
        assert tx.session.execute(select(StoredVerdict)).all() == []
