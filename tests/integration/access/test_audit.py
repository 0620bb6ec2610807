"""The audit log: what is done stands in it, in whose name, and stays."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from sqlalchemy import delete, text, update
from sqlalchemy.exc import DatabaseError

from app.access.principals import INSTALLATION, ActorKind, Principal, Right
from app.db.models.access import AuditEntry
from app.services.access.audit import (
    ACTOR_CHARACTERS,
    DETAIL_CHARACTERS,
    SUBJECT_CHARACTERS,
    Action,
    list_entries,
    prune_entries,
    record,
)
from tests.support.alerting import Alerting

if TYPE_CHECKING:
    from app.bootstrap import Container
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


def test_what_a_token_does_stands_in_the_log(company: Company) -> None:
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


def test_an_incident_is_acknowledged_in_the_name_of_who_signed_in(company: Company) -> None:
    alerting = Alerting(company.ours)
    alerting.slow()
    incident = alerting.incident()
    with company.client(company.token(Right.OPERATE, name="bot")) as client:
        answer = client.post(f"/api/v1/incidents/{incident.id}/ack", json={"by": "somebody else"})
    assert answer.status_code == 200
    assert alerting.incident().acknowledged_by == "bot"
    assert _said(company.container)[0][:2] == ("bot", "acknowledged")


def test_what_is_refused_stands_nowhere(company: Company) -> None:
    with company.client(company.token(Right.OPERATE, name="bot")) as client:
        assert client.post("/api/v1/alert-rules", json=RULE).status_code == 201
        assert client.post("/api/v1/alert-rules", json=RULE).status_code == 409
    assert len(_said(company.container)) == 1


def test_entries_stay_as_they_are(company: Company) -> None:
    company.token(Right.READ)
    for statement in (
        update(AuditEntry).values(actor="nobody"),
        delete(AuditEntry),
        text("TRUNCATE audit_entry"),
    ):
        with pytest.raises(DatabaseError, match="stay as they are"), company.container.uow() as tx:
            tx.session.execute(statement)


def test_what_comes_from_outside_is_bounded_in_an_entry(company: Company) -> None:
    somebody = Principal(ActorKind.PERSON, "x" * 10_000)
    with company.container.uow() as tx:
        record(tx, somebody, Action.CHANGED, "y\n" * 10_000, detail="z" * 10_000)
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
        # With the project and the token of this test.
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
