"""The audit log: every change is recorded with its actor, and entries are permanent."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import delete, select, text, update
from sqlalchemy.exc import DatabaseError

from app.access.audit import (
    ACTOR_CHARACTERS,
    DETAIL_CHARACTERS,
    SUBJECT_CHARACTERS,
    Action,
    list_entries,
    prune_entries,
    record,
)
from app.access.models import AuditEntry
from app.access.people import create_person, person_id_of
from app.access.rights import NEEDS
from app.actions.models import ActionState
from app.incidents.models.tables import AlertDelivery, AlertGroup
from app.jobs.models import Job
from app.platform.identity import INSTALLATION, ActorKind, Principal, Right, Role
from app.platform.tasks.execute import execute
from app.platform.tasks.runs import LeaseKeeper
from app.pulse.models import PulseState
from tests.support import plans
from tests.support.acting import Acting, machine_action
from tests.support.alerting import Alerting
from tests.support.sessions import small_trace, store
from tests.support.tensor import TrainingJob

if TYPE_CHECKING:
    from app.platform.container import Container
    from tests.integration.access.conftest import Company

RULE = {
    "name": "Slow",
    "condition": {"kind": "slowdown", "at_least": 1.2, "clears_below": 1.1},
}


def _said(container: Container) -> list[tuple[str, str, str, str | None]]:
    with container.everywhere().reading() as tx:
        return [
            (entry.actor, entry.action, entry.subject, entry.project)
            for entry in list_entries(tx, 100)
            if entry.actor_kind is ActorKind.TOKEN
        ]


def test_acts_of_a_token_are_in_the_audit_log(company: Company) -> None:
    token = company.token(Right.OPERATE, name="bot")
    channel = {"name": "hook", "kind": "webhook", "config": {"url": "https://hooks.example/secret"}}
    with company.client(token) as client:
        rule = client.post("/api/v1/alert-rules", json=RULE).json()["id"]
        client.put(f"/api/v1/alert-rules/{rule}", json=RULE)
        client.delete(f"/api/v1/alert-rules/{rule}")
        made = client.post("/api/v1/channels", json=channel).json()["id"]
        client.patch(f"/api/v1/channels/{made}", json={"config": channel["config"]})
        client.delete(f"/api/v1/channels/{made}")
    assert _said(company.container) == [
        ("bot", "deleted", "channel hook", "default"),
        ("bot", "changed", "channel hook", "default"),
        ("bot", "created", "channel hook", "default"),
        ("bot", "deleted", "rule Slow", "default"),
        ("bot", "changed", "rule Slow", "default"),
        ("bot", "created", "rule Slow", "default"),
    ]
    with company.client(company.token(Right.ADMIN, project=None)) as client:
        assert "secret" not in client.get("/api/v1/audit").text


# Routes that are not logged: requests of training jobs, and requests that only read.
NO_ACT = {
    # A pressed button is logged as the action that it triggers: tests/integration/incidents/slack.
    "POST /api/v1/slack/interactions",
    "POST /api/v1/jobs/{job}/sessions",
    "POST /api/v1/jobs/{job}/hangs",
    "POST /api/v1/jobs/{job}/attempts/{attempt}/pulse",
    "PUT /api/v1/jobs/{job}/attempts/{attempt}/sessions/{session}/chunks/{producer}/{n}",
    "POST /api/v1/jobs/{job}/attempts/{attempt}/sessions/{session}/chunks",
    "POST /api/v1/jobs/{job}/attempts/{attempt}/sessions/{session}/seal",
    # the upload of a folder, file by file
    "POST /api/v1/folders",
    "PUT /api/v1/jobs/{job}/folders/{folder}/file",
    "POST /api/v1/jobs/{job}/folders/{folder}/seal",
    "POST /api/v1/jobs/{job}/attempts",
    "POST /api/v1/jobs/{job}/finish",
    "POST /api/v1/jobs/{job}/tp/{group}/timings",
    "POST /api/v1/jobs/{job}/tp/{group}/plan/{version}/ack",
    "POST /api/v1/sessions/{session}/what-if",
    "POST /api/v1/plans",
    "POST /api/v1/plans/of-session/{session}",
    "POST /api/v1/mitigation/plan",
    # the probe that a node sends of itself
    "POST /api/v1/hosts/{host}/probes",
    # tools of assistants, which call the routes above
    "POST /mcp",
    "POST /api/v1/alert-rules/preview",
    "POST /api/v1/retention/preview",
    # saved views of a user
    "POST /api/v1/views",
    "PATCH /api/v1/views/{view}",
    "DELETE /api/v1/views/{view}",
    "POST /sign-in",
    "POST /sign-out",
}
CHANNEL = {"name": "hook", "kind": "webhook", "config": {"url": "https://hooks.example/x"}}
SILENCE = {"reason": "known", "until": "2100-01-01T00:00:00Z"}
TOKEN = {"name": "ci", "scopes": ["read"], "project": "default", "expires_days": 7}
# The body of each logged request, in an order in which every request succeeds.
ACTS: dict[str, object] = {
    "POST /api/v1/alert-rules": RULE,
    "PUT /api/v1/alert-rules/{rule}": RULE,
    "DELETE /api/v1/alert-rules/{rule}": None,
    "POST /api/v1/channels": CHANNEL,
    "PATCH /api/v1/channels/{channel}": {"name": "hooked"},
    "POST /api/v1/channels/reseal": None,
    "POST /api/v1/channels/{channel}/test": None,
    "POST /api/v1/deliveries/{delivery}/replay": None,
    "DELETE /api/v1/channels/{channel}": None,
    "POST /api/v1/sessions/{session}/fixes": {"action": "replace_worker"},
    "DELETE /api/v1/sessions/{session}/fixes/{action}": None,
    "PUT /api/v1/sessions/{session}/pin": None,
    "DELETE /api/v1/sessions/{session}/pin": None,
    "POST /api/v1/sessions/{session}/analyze": None,
    "POST /api/v1/sessions/analyze": {"states": ["analyzed"]},
    "DELETE /api/v1/sessions/{session}": None,
    "POST /api/v1/hosts/{host}/repairs": {"what": "replaced GPU 5"},
    "PUT /api/v1/action-policies": {
        "kind": "event",
        "mode": "ask",
        "config": {"url": "https://hooks.example/x"},
    },
    "POST /api/v1/actions/{machine_action}/allow": None,
    "POST /api/v1/actions/{machine_action}/decline": None,
    "POST /api/v1/actions/{machine_action}/release": None,
    "PUT /api/v1/action-switch": {"stopped": True},
    "POST /api/v1/jobs/{job}/notes": {"text": "new image", "kind": "deployment"},
    "DELETE /api/v1/jobs/{job}/notes/{note}": None,
    "POST /api/v1/jobs/{job}/recordings": {},
    "PUT /api/v1/retention": {"traces": {"days": 30, "bytes": None}},
    "PUT /api/v1/pulse": {"on": False},
    "PATCH /api/v1/jobs/{job}": {"archived": True},
    "PUT /api/v1/incidents/{incident}/assignee": {"to": "me"},
    "POST /api/v1/incidents/{incident}/comments": {"words": "mine"},
    "POST /api/v1/incidents/orders": None,
    "POST /api/v1/incidents/{incident}/ack": {},
    "DELETE /api/v1/incidents/{incident}/ack": None,
    "POST /api/v1/incidents/{incident}/silence": SILENCE,
    "DELETE /api/v1/incidents/{incident}/silence": None,
    "POST /api/v1/incidents/{incident}/resolve": {},
    "POST /api/v1/incidents/{incident}/reopen": {},
    "POST /api/v1/plans/{plan}/cancel": None,
    "PUT /api/v1/jobs/{job}/tp/mode": {"mode": "apply", "max_gamma": None},
    "POST /api/v1/tokens": TOKEN,
    "POST /api/v1/tokens/{name}/renew": {"expires_days": 30},
    "DELETE /api/v1/tokens/{name}": None,
    "PATCH /api/v1/people/{person}": {"disabled": True},
    "PUT /api/v1/people/{person}/role": {"role": "reader", "project": "default"},
    "DELETE /api/v1/people/{person}": None,
    "POST /api/v1/projects": {"name": "third"},
    "POST /api/v1/jobs/{job}/move": {"project": "other"},
    "DELETE /api/v1/jobs/{job}": None,
    "DELETE /api/v1/projects/{project}": None,
}


def test_every_act_over_http_is_in_the_audit_log(company: Company) -> None:
    """Each route either has an entry in the name of its actor, or is listed as not logged."""
    unsafe = {key for key in NEEDS if not key.startswith("GET")}
    walked = {key.replace("{project}", "{name}") for key in ACTS}
    assert unsafe - NO_ACT == walked

    things = _things(company)
    unsaid = {}
    with company.client(company.token(Right.ADMIN, project=None, name="bot")) as client:
        for key, body in ACTS.items():
            method, _, path = key.partition(" ")
            before = len(_said(company.container))
            sent = body
            if "machine_action" in key:
                things["machine_action"] = _leave_an_action(company, things, key)
            if key == "POST /api/v1/incidents/orders":
                sent = {"order": "assign", "to": "you", "incidents": [things["incident"]]}
            answer = client.request(method, path.format_map(things), json=sent)
            assert answer.is_success, (key, answer.text)
            if key in {"POST /api/v1/alert-rules", "POST /api/v1/channels"}:
                thing = "rule" if "rules" in key else "channel"
                things[thing] = answer.json()["id"]
            if key == "POST /api/v1/jobs/{job}/notes":
                things["note"] = str(answer.json()["id"])
            if key == "POST /api/v1/jobs/{job}/move":
                things["job"] = "trained"
            if key == "POST /api/v1/channels":
                _leave_a_delivery(company, things)
            said = _said(company.container)
            if len(said) == before or said[0][0] != "bot":
                unsaid[key] = said[:1]
    assert unsaid == {}


def _things(company: Company) -> dict[str, str]:
    """Return the values of address parameters for objects of the project `default`."""
    acting = Acting(company.ours)
    acting.blame()
    incident = acting.alerting.incident().id
    stored = [store(company.ours, small_trace(), job="trained") for _ in range(2)]
    for one in stored:
        assert execute(company.container, LeaseKeeper(company.container), one.run)
    with company.client(company.token(Right.INGEST, name="job")) as client:
        assert TrainingJob(client).send(1.0, 1.0, 1.0, 1.0).status_code == 202
    create_person(company.container, "ada", "correct horse battery", Role.READER, "default")
    with company.container.reading() as tx:
        person = person_id_of(tx, "ada")
    with company.ours.uow() as tx:
        job = tx.session.execute(select(Job.id).where(Job.name == "llm")).scalar_one()
        tx.session.add(PulseState(job_id=job, attempt=1, advanced_at=tx.now))
    return {
        "incident": str(incident),
        "plan": str(plans.ask(company.ours, plans.small_spec()).plan),
        "job": "llm",
        "session": str(stored[0].session),
        "action": "replace_worker",
        "host": next(iter(small_trace().meta.hosts.values())),
        "name": "ci",
        "person": str(person),
        "project": "third",
        "delivery": str(uuid.uuid4()),
    }


def _leave_an_action(company: Company, things: dict[str, str], key: str) -> str:
    """Store an action that can be allowed, declined or taken back."""
    host = {"allow": "node-7", "decline": "node-8", "release": "node-9"}[key.rpartition("/")[2]]
    with company.ours.uow() as tx:
        row = machine_action(uuid.UUID(things["incident"]), host, tx.now)
        row.state = ActionState.DONE if key.endswith("release") else ActionState.ASKED
        tx.session.add(row)
        return str(row.id)


def _leave_a_delivery(company: Company, things: dict[str, str]) -> None:
    """Store a failed delivery, which can be sent again by hand."""
    with company.ours.uow() as tx:
        group = tx.session.execute(select(AlertGroup.id)).scalars().first()
        tx.session.add(
            AlertDelivery(
                id=uuid.UUID(things["delivery"]),
                group_id=group,
                channel_id=uuid.UUID(things["channel"]),
                number=99,
                generation=0,
                state="failed",
                attempt=1,
                next_attempt_at=tx.now,
                finished_at=tx.now,
            )
        )


def test_an_incident_is_acknowledged_in_the_name_of_who_signed_in(company: Company) -> None:
    alerting = Alerting(company.ours)
    alerting.slow()
    incident = alerting.incident()
    with company.client(company.token(Right.OPERATE, name="bot")) as client:
        answer = client.post(f"/api/v1/incidents/{incident.id}/ack", json={"by": "another user"})
    assert answer.status_code == 200
    assert alerting.incident().acknowledged_by == "bot"
    assert _said(company.container)[0][:2] == ("bot", "acknowledged")


def test_refused_acts_are_not_in_the_audit_log(company: Company) -> None:
    with company.client(company.token(Right.OPERATE, name="bot")) as client:
        assert client.post("/api/v1/alert-rules", json=RULE).status_code == 201
        assert client.post("/api/v1/alert-rules", json=RULE).status_code == 409
    assert len(_said(company.container)) == 1


def test_entries_stay_as_they_are(company: Company) -> None:
    company.token(Right.READ)
    for statement in (
        update(AuditEntry).values(actor="unknown"),
        delete(AuditEntry),
        text("TRUNCATE audit_entry"),
    ):
        with pytest.raises(DatabaseError, match="stay as they are"), company.container.uow() as tx:
            tx.session.execute(statement)


def test_text_from_outside_is_bounded_in_an_entry(company: Company) -> None:
    person = Principal(ActorKind.PERSON, "x" * 10_000)
    with company.container.uow() as tx:
        record(tx, person, Action.CHANGED, "y\n" * 10_000, detail="z" * 10_000)
    with company.container.reading() as tx:
        [entry] = list_entries(tx, 1)
    assert len(entry.actor) == ACTOR_CHARACTERS
    assert len(entry.subject) == SUBJECT_CHARACTERS
    assert entry.subject.isprintable()
    assert entry.detail is not None
    assert len(entry.detail) == DETAIL_CHARACTERS


def test_pages_of_the_log_and_its_export_hold_every_entry_once(company: Company) -> None:
    admin = company.token(Right.ADMIN, project=None)
    with company.container.uow() as tx:
        for number in range(450):
            record(tx, INSTALLATION, Action.CHANGED, f"rule {number}")
    with company.client(admin) as client:
        seen: list[int] = []
        before: int | None = None
        while found := client.get(
            "/api/v1/audit", params={"limit": 200} | ({} if before is None else {"before": before})
        ).json()["entries"]:
            seen += [entry["id"] for entry in found]
            before = found[-1]["id"]
        export = client.get("/access/audit.csv").text.splitlines()[1:]
        # 450 entries, and those of the project and the token of this test.
        assert len(seen) == len(set(seen)) == len(export) == 452
        assert [int(line.partition(",")[0]) for line in export] == seen
        first = client.get("/access/audit").text
        assert "rule 449" in first
        assert f"/access/audit?before={seen[199]}" in first
        assert "rule 449" not in client.get(f"/access/audit?before={seen[199]}").text


def test_entries_older_than_two_years_go(company: Company) -> None:
    company.token(Right.READ)
    with company.container.uow() as tx:
        tx.session.connection().execute(
            text(
                "INSERT INTO audit_entry (at, actor_kind, actor, action, subject)"
                " VALUES (now() - interval '731 days', 'system', 'x', 'created', 'y')"
            )
        )
        before = len(list_entries(tx, 100))
        assert prune_entries(tx) == 1
        assert len(list_entries(tx, 100)) == before - 1
