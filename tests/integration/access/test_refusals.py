"""Refused requests are counted in the audit log, so that they cannot fill it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from sqlalchemy.exc import OperationalError

from app.access.audit import Entry, list_entries
from app.access.people import create_person
from app.access.sign_ins import write_refusals
from app.platform.identity import LINES, ActorKind, Refusal, Right, Role
from tests.integration.access.conftest import Company, serving
from tests.integration.api.outage import away

if TYPE_CHECKING:
    from app.platform.settings import Settings

PASSWORD = "correct horse battery"  # noqa: S105 - of a test


@pytest.fixture(autouse=True)
def _written_by_the_test_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.access.guard.FIRST_S", 3600.0)


def _refused(company: Company) -> list[Entry]:
    """Write the counted refusals to the log; return its entries, highest count first."""
    write_refusals(company.container)
    with company.container.reading() as tx:
        found = [entry for entry in list_entries(tx, 1000) if entry.action == "refused"]
    return sorted(found, key=lambda entry: -entry.count)


def test_refusals_of_an_unknown_peer_are_one_line_with_their_number(company: Company) -> None:
    with company.client("plc_unknown") as client:
        for _ in range(21):
            assert client.get("/api/v1/sessions").status_code == 401
    [entry] = _refused(company)
    assert (entry.actor_kind, entry.actor, entry.subject, entry.detail, entry.count) == (
        ActorKind.PEER,
        "127.0.0.1",
        "GET /api/v1/sessions",
        "access.unauthenticated",
        21,
    )
    with company.client(company.token(Right.ADMIN, project=None)) as client:
        page = client.get("/access").text
        assert "21\u00a0refused requests came from 127.0.0.1" in page
        assert "unknown peer 127.0.0.1" in page
        assert "refused, 21 times" in page
        assert "access.unauthenticated,21" in client.get("/access/audit.csv").text


def test_a_user_without_the_right_is_named(company: Company) -> None:
    with company.client(company.token(Right.READ, name="grafana")) as client:
        assert client.post("/api/v1/plans", json={}).status_code == 403
        assert client.get("/api/v1/tokens").status_code == 403
        assert client.get("/metrics").status_code == 403
        foreign = {"Paceline-Project": "other"}
        assert client.get("/api/v1/sessions", headers=foreign).status_code == 404
    said = {(entry.actor, entry.subject, entry.detail) for entry in _refused(company)}
    assert said == {
        ("grafana", "POST /api/v1/plans", "access.forbidden"),
        ("grafana", "GET /api/v1/tokens", "access.forbidden"),
        ("grafana", "GET /metrics", "access.forbidden"),
        ("grafana", "GET /api/v1/sessions", "project.not_found"),
    }


def test_failed_sign_ins_name_only_who_is_there(company: Company) -> None:
    create_person(company.container, "ada", PASSWORD, Role.READER, None)
    with company.client(Origin=company.url) as client:
        for name in ("ada", "ada", "hunter2-typed-into-the-wrong-field"):
            form = {"name": name, "password": "wrong"}
            assert client.post("/sign-in", data=form).status_code == 401
        # A redirect to the sign-in is not counted as a refusal.
        assert client.get("/plans").status_code == 303
    assert [(entry.subject, entry.count) for entry in _refused(company)] == [
        ("a sign-in as ada", 2),
        ("a sign-in", 1),
    ]


def test_many_peers_are_a_few_lines_and_hide_no_known_user(company: Company) -> None:
    peers = company.container.refusals
    for number in range(5000):
        peer = Refusal(ActorKind.PEER, f"2001:db8:0:{number:x}::/64", "GET /", "x")
        peers.note(peer)
    with company.client(company.token(Right.READ, name="grafana")) as client:
        client.get("/api/v1/tokens")
    lines = _refused(company)
    assert len(lines) == LINES + 2
    assert lines[0].actor == "several others"
    assert sum(entry.count for entry in lines) == 5001
    assert [entry.actor for entry in lines if entry.actor_kind is ActorKind.TOKEN] == ["grafana"]


def test_without_the_database_they_are_kept(company: Company) -> None:
    company.container.refusals.note(Refusal(ActorKind.PEER, "192.0.2.7", "GET /", "x"), 3)
    with away(company.container.engine), pytest.raises(OperationalError):
        write_refusals(company.container)
    assert [entry.count for entry in _refused(company)] == [3]


def test_a_server_writes_them_when_it_stops(settings: Settings) -> None:
    """It also writes them at intervals: see `app.access.guard`."""
    with serving(settings) as company, company.client("plc_unknown") as client:
        client.get("/api/v1/sessions")
    with company.container.reading() as tx:
        assert [entry.action for entry in list_entries(tx, 1)] == ["refused"]
    company.container.engine.dispose()
