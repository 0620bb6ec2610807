"""A token of one project learns nothing of another one, whatever route it takes.

The routes are those of the application itself: one that is added is walked as well.
"""

from __future__ import annotations

import re
import uuid
from typing import TYPE_CHECKING

import pytest
from fastapi.routing import iter_route_contexts

from app.access.principals import Right
from app.alerts.rules import Rule
from app.db.models.alerts import AlertDelivery, AlertGroup
from app.db.unit_of_work import UnitOfWork
from app.door.rights import NEEDS
from app.services.alerts.channels.write import create_channel
from app.services.alerts.store import load_rules
from app.services.tasks.execute import execute
from app.services.tasks.leases import LeaseKeeper
from app.web import create_app
from tests.support import plans
from tests.support.alerting import Alerting
from tests.support.sessions import small_trace, store

if TYPE_CHECKING:
    from collections.abc import Mapping

    import httpx

    from tests.integration.access.conftest import Company

SECRET = "secret-job"  # noqa: S105 - a name

# Bodies that would be taken of the project's own, so that it is not they that are refused.
BODIES: dict[str, object] = {
    "POST /api/v1/sessions/{session}/what-if": {
        "base": "recorded",
        "changes": [{"select": {"steps": [1]}, "duration": "ideal"}],
    },
    "PUT /api/v1/alert-rules/{rule}": {
        "name": "Mine",
        "condition": {"kind": "slowdown", "at_least": 1.2, "clears_below": 1.1},
    },
    "PATCH /api/v1/channels/{channel}": {"name": "mine"},
    "POST /api/v1/incidents/{incident}/ack": {},
    "POST /api/v1/incidents/{incident}/silence": {
        "reason": "x",
        "until": "2100-01-01T00:00:00Z",
    },
    "POST /api/v1/incidents/{incident}/resolve": {},
    "POST /api/v1/jobs/{job}/tp/{group}/plan/{version}/ack": {
        "attempt": 0,
        "ranks": [0],
        "applied": True,
        "step": 1,
    },
    "PUT /api/v1/jobs/{job}/tp/mode": {"mode": "advise"},
}
QUERIES: dict[str, str] = {
    "GET /api/v1/sessions/{session}/timeline": "?step=1",
    "GET /plans": "?of={plan}",
    "GET /api/v1/jobs/{job}/tp/{group}/plan": "?attempt=0&wait_s=0",
}
# Routes that make a job of their own where they find none.
MAKING = {
    "POST /api/v1/jobs/{job}/sessions",
    "POST /api/v1/jobs/{job}/attempts",
    "POST /api/v1/jobs/{job}/tp/{group}/timings",
    "PUT /api/v1/jobs/{job}/attempts/{attempt}/sessions/{session}/chunks/{producer}/{n}",
}


@pytest.fixture
def theirs(company: Company) -> Mapping[str, str]:
    """Return what stands in addresses of things of the other project."""
    alerting = Alerting(company.theirs)
    channel = create_channel(
        company.theirs,
        name="their-channel",
        kind="webhook",
        config={"url": "https://hooks.example/x"},
        enabled=False,
    )
    stored = store(company.theirs, small_trace(), job=SECRET)
    keeper = LeaseKeeper(company.container)
    assert execute(company.container, keeper, stored.run)
    plan = plans.ask(company.theirs, plans.small_spec())
    assert execute(company.container, keeper, plan.run)
    alerting.slow(SECRET)
    delivery = uuid.uuid4()
    with company.theirs.uow() as tx:
        rule: Rule = load_rules(tx)[0]
        _deliver(tx, delivery, channel.id)
    return {
        "session": str(stored.session),
        "job": SECRET,
        "plan": str(plan.plan),
        "rule": str(rule.id),
        "channel": str(channel.id),
        "incident": str(alerting.incidents()[0].id),
        "delivery": str(delivery),
        "attempt": "1",
        "producer": "rank-0",
        "n": "0",
        "name": "template.csv",
        "group": "tp-0",
        "version": "1",
    }


def _deliver(tx: UnitOfWork, delivery: uuid.UUID, channel: uuid.UUID) -> None:
    group = tx.session.query(AlertGroup.id).first()
    assert group is not None
    tx.session.add(
        AlertDelivery(
            id=delivery,
            group_id=group.id,
            channel_id=channel,
            number=99,
            generation=0,
            state="failed",
            attempt=1,
            next_attempt_at=tx.now,
        )
    )


def _routes(company: Company) -> list[str]:
    app = create_app(company.container)
    found = {
        f"{method} {context.path}"
        for context in iter_route_contexts(app.routes)
        for method in context.methods or ()
    }
    return sorted(key for key in found if isinstance(NEEDS.get(key), Right))


def _ask(client: httpx.Client, key: str, things: Mapping[str, str]) -> httpx.Response:
    method, _, path = key.partition(" ")
    if key.endswith("/seal"):
        things = {**things, "session": "1"}
    address = (path + QUERIES.get(key, "")).format_map(things)
    return client.request(method, address, json=BODIES.get(key))


def test_every_route_of_a_thing_answers_a_foreign_token_as_if_it_were_not_there(
    company: Company, theirs: Mapping[str, str]
) -> None:
    wrong = {}
    with company.client(company.token(Right.OPERATE, Right.INGEST)) as client:
        for key in _routes(company):
            if "{" not in key + QUERIES.get(key, "") or key in MAKING:
                continue
            answer = _ask(client, key, theirs)
            if answer.status_code != 404:
                wrong[key] = answer.status_code, answer.text[:200]
    assert wrong == {}


def test_the_same_routes_answer_a_token_of_the_project(
    company: Company, theirs: Mapping[str, str]
) -> None:
    """Without this, a walk along addresses that are wrong would find everything hidden."""
    missing = {}
    with company.client(company.token(Right.OPERATE, Right.INGEST, project="other")) as client:
        for key in _routes(company):
            if "{" not in key + QUERIES.get(key, "") or key in MAKING:
                continue
            if not key.startswith("GET") or key.endswith("/events"):
                continue
            if "/tensor" in key:
                continue
            things = {**theirs, "name": "workers"} if "/{name}.csv" in key else theirs
            answer = _ask(client, key.replace("?step=1", "?step=2"), things)
            if answer.status_code == 404 and not key.endswith(("/timeline", "/plan")):
                missing[key] = answer.text[:200]
    assert missing == {}


def test_no_list_and_no_page_holds_a_name_or_an_id_of_another_project(
    company: Company, theirs: Mapping[str, str]
) -> None:
    hidden = [SECRET, "their-channel", "node-7"]
    hidden += [theirs[name] for name in ("session", "plan", "channel", "incident", "delivery")]
    told = {}
    with company.client(company.token(Right.READ)) as client:
        for key in _routes(company):
            if not key.startswith("GET") or "{" in key or key.endswith("/events"):
                continue
            answer = client.get(key.partition(" ")[2])
            assert answer.status_code in {200, 403}, key
            found = [name for name in hidden if name in answer.text]
            if found:
                told[key] = found
    assert told == {}


def test_names_of_another_project_are_free(company: Company, theirs: Mapping[str, str]) -> None:
    assert theirs
    with company.client(company.token(Right.OPERATE)) as client:
        channel = {
            "name": "their-channel",
            "kind": "webhook",
            "config": {"url": "https://x.example"},
        }
        assert client.post("/api/v1/channels", json=channel).status_code == 201
        asked = client.post("/api/v1/plans", json={"spec": plans.small_spec()})
        # Asked for in the other project already: here it is new.
        assert asked.status_code == 202
        assert asked.json()["plan"] != theirs["plan"]


def test_metrics_name_projects_and_nothing_of_theirs(
    company: Company, theirs: Mapping[str, str]
) -> None:
    with company.client("metrics-of-this-test") as client:
        text = client.get("/metrics").text
    assert "paceline_sessions" in text
    assert not [
        value for value in (SECRET, "their-channel", theirs["session"]) if re.search(value, text)
    ]
