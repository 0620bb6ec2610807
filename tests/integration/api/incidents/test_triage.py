"""Many incidents in one request, their assignees and their comments."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from app.access.audit import list_entries
from app.incidents.models.tables import AlertAssignee
from tests.integration.api.conftest import Installation
from tests.integration.api.incidents.asking import API, PERSON
from tests.support.alerting import Alerting

ORDERS = f"{API}/incidents/orders"
LATER = (datetime.now(UTC) + timedelta(hours=2)).isoformat()


def ids_by_job(alerting: Alerting) -> dict[str, str]:
    return {one.facts.job: str(one.id) for one in alerting.incidents() if one.facts}


def listed(served: Installation, **query: Any) -> list[dict[str, Any]]:  # noqa: ANN401 - of an address
    answer = served.client.get(f"{API}/incidents", params=query)
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["incidents"]
    return found


@pytest.mark.parametrize(
    ("order", "state", "action"),
    [
        ({"order": "acknowledge", "note": "on it"}, "acknowledged", "acknowledged"),
        ({"order": "silence", "reason": "maintenance", "until": LATER}, "silenced", "silenced"),
        ({"order": "resolve", "note": "replaced"}, "resolved", "resolved"),
    ],
)
def test_an_order_for_many_changes_each_that_it_applies_to(
    served: Installation, alerting: Alerting, order: dict[str, str], state: str, action: str
) -> None:
    for job in ("a", "b", "over"):
        alerting.slow(job)
    alerting.fast("over")
    ids = ids_by_job(alerting)
    answer = served.client.post(ORDERS, json=PERSON | order | {"incidents": list(ids.values())})
    assert answer.status_code == 200, answer.text
    done = answer.json()
    assert set(done["changed"]) == {ids["a"], ids["b"]}
    [left] = done["left"]
    assert (left["id"], left["state"]) == (ids["over"], "resolved")
    assert left["why"].startswith("The incident is resolved; ")
    assert {one["job"]: one["state"] for one in listed(served)} == {
        "a": state,
        "b": state,
        "over": "resolved",
    }
    with alerting.container.reading() as tx:
        entries = list_entries(tx, 10)
    assert [(e.actor, e.action) for e in entries] == [("ann", action)] * 2
    assert {entry.subject for entry in entries} == {
        "incident slow_worker node-of-a of a",
        "incident slow_worker node-of-b of b",
    }


def test_an_order_with_one_that_is_not_there_changes_none(
    served: Installation, alerting: Alerting
) -> None:
    alerting.slow("a")
    for order in (
        {"order": "acknowledge"},
        {"order": "assign", "to": "kim"},
        {"order": "resolve"},
    ):
        body = order | {"incidents": [*ids_by_job(alerting).values(), str(uuid.uuid4())]}
        assert served.client.post(ORDERS, json=body).status_code == 404
    late = {"order": "silence", "reason": "x", "until": "2020-01-01T00:00:00Z"}
    body = late | {"incidents": list(ids_by_job(alerting).values())}
    assert served.client.post(ORDERS, json=body).json()["code"] == "incident.silence_over"
    [only] = listed(served)
    assert (only["state"], only["assignee"]) == ("firing", None)


def test_an_order_is_refused_for_none_for_too_many_and_without_what_it_needs(
    served: Installation,
) -> None:
    one = [str(uuid.uuid4())]
    many = [str(uuid.uuid4()) for _ in range(501)]
    for body in (
        {"order": "acknowledge", "incidents": []},
        {"order": "acknowledge", "incidents": many},
        {"order": "silence", "incidents": one},
        {"order": "assign", "incidents": one},
        {"order": "delete", "incidents": one},
        {"incidents": one},
    ):
        assert served.client.post(ORDERS, json=body).status_code == 422


def test_an_incident_is_assigned_and_taken_back(served: Installation, alerting: Alerting) -> None:
    alerting.slow("a")
    path = f"{API}/incidents/{ids_by_job(alerting)['a']}"
    given = served.client.put(f"{path}/assignee", json=PERSON | {"to": "kim"}).json()
    assert given["assignee"] == "kim"
    same = served.client.put(f"{path}/assignee", json=PERSON | {"to": "kim"}).json()
    assert same["events"] == given["events"], "what is so already is no event"
    assert [one["job"] for one in listed(served, assignee="kim")] == ["a"]
    assert listed(served, assignee="-") == []
    back = served.client.put(f"{path}/assignee", json=PERSON | {"to": None}).json()
    assert back["assignee"] is None
    told = [(e["event"], e["actor"], e["note"]) for e in back["events"][-2:]]
    assert told == [("assigned", "ann", "kim"), ("assigned", "ann", None)]
    with alerting.container.reading() as tx:
        assert tx.session.query(AlertAssignee).all() == []
        assert [e.detail for e in list_entries(tx, 2)] == ["to no one", "to kim"]


def test_comments_are_kept_in_order_also_on_resolved_incidents(
    served: Installation, alerting: Alerting
) -> None:
    alerting.slow("a")
    path = f"{API}/incidents/{ids_by_job(alerting)['a']}"
    first = served.client.post(f"{path}/comments", json=PERSON | {"words": "Rack 7 was updated."})
    assert first.status_code == 201
    alerting.fast("a")
    served.client.post(f"{path}/comments", json={"by": "kim", "words": "It\nhelped: <b>"})
    comments = served.client.get(path).json()["comments"]
    assert [(c["author"], c["words"]) for c in comments] == [
        ("ann", "Rack 7 was updated."),
        ("kim", "It\nhelped: <b>"),
    ]
    for words in ("", "  \n ", "x" * 2001):
        assert served.client.post(f"{path}/comments", json={"words": words}).status_code == 422
    missing = f"{API}/incidents/{uuid.uuid4()}/comments"
    assert served.client.post(missing, json={"words": "x"}).status_code == 404
    with alerting.container.reading() as tx:
        entry = list_entries(tx, 1)[0]
    assert (entry.action, entry.detail) == ("commented on", "It?helped: <b>")


def test_the_list_takes_words_an_order_and_an_offset(
    served: Installation, alerting: Alerting
) -> None:
    for job in ("a", "b", "c"):
        alerting.slow(job)
    assert [one["job"] for one in listed(served, sort="-job")] == ["c", "b", "a"]
    assert [one["job"] for one in listed(served, sort="job", limit=1, offset=1)] == ["b"]
    assert [one["job"] for one in listed(served, q="node-of-b", host="node-of-b", job="b")] == ["b"]
    assert listed(served, severity="info") == []
    for wrong in ({"sort": "rules"}, {"severity": "high"}, {"q": "x" * 201}, {"offset": -1}):
        assert served.client.get(f"{API}/incidents", params=wrong).status_code == 422
