"""The page of an empty fleet names what prevents a first job's sender from sending."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from app.access.sign_ins import write_refusals
from app.platform.identity import Right
from app.sessions.arriving import count_refused_body
from tests.integration.api import bodies
from tests.support.html import Element, parse

if TYPE_CHECKING:
    from tests.integration.access.conftest import Company

SESSIONS = "/api/v1/jobs/llama-70b/sessions"


@pytest.fixture(autouse=True)
def _written_by_the_test_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.access.guard.FIRST_S", 3600.0)


def _looked_at(company: Company, token: str, project: str = "default") -> tuple[Element, list[str]]:
    with company.client(token, **{"Paceline-Project": project}) as client:
        page = parse(client.get("/").text)
    return page, [row.text for row in page.one("ul", "check").all("li")]


def test_a_token_that_is_missing_and_a_sender_that_is_refused_are_said(company: Company) -> None:
    reader = company.token(Right.READ)
    page, rows = _looked_at(company, reader)
    assert rows[2].startswith("No token has the scope ingest")
    assert "paceline token create --project default --scope ingest --job JOB NAME" in rows[2]
    assert "project default" in page.text
    assert page.one("aside").one("a", href="/ingest").text == "Ingest health"

    company.token(Right.INGEST)
    with company.client("plc_unknown") as client:
        assert client.post(SESSIONS, content=b"{}").status_code == 401
        assert client.get("/api/v1/sessions").status_code == 401
    write_refusals(company.container)
    page, rows = _looked_at(company, reader)
    assert rows[2].startswith("Token created, scope ingest")
    assert rows[3].startswith("A sender was refused 401, token unknown. Set PACELINE_TOKEN")
    # The refused job's name is hidden: without a token, its project is unknown.
    assert "llama-70b" not in page.text


def test_only_tokens_that_send_count_and_only_of_this_project(company: Company) -> None:
    reader = company.token(Right.READ, project="other")
    company.token(Right.INGEST, project="default")
    with company.client("plc_unknown") as client:
        client.get("/api/v1/sessions")
    write_refusals(company.container)
    count_refused_body(company.ours, "llama-70b", 12, "trace.bad_json")
    _, rows = _looked_at(company, reader, "other")
    assert rows[2].startswith("No token has the scope ingest")
    assert not any("refused" in row for row in rows)

    _, rows = _looked_at(company, company.token(Right.READ, name="ours"))
    assert rows[3].startswith("A body was refused trace.bad_json")


def test_no_answer_repeats_a_foreign_host(company: Company) -> None:
    """A sender would store the address, and send its token to that host."""
    with company.client(company.token(Right.INGEST), Host="elsewhere.example") as sender:
        sent = sender.post(
            "/api/v1/jobs/job/sessions", content=bodies.parquet(), params=bodies.SIZES
        )

    assert sent.status_code == 202
    assert sent.json()["url"].startswith(f"{company.url}/sessions/")
