"""Tools for assistants over HTTP: a token gives the same rights as in other routes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from app.platform.identity import Right
from tests.integration.api import bodies
from tests.support.loops import in_a_loop

if TYPE_CHECKING:
    from tests.integration.access.conftest import Company

PROJECTS = pytest.mark.parametrize("path", ["/mcp", "/p/default/mcp"])
OURS = "our-secret-job"


def called(
    url: str,
    token: str,
    tool: str,
    project: str | None = None,
    **arguments: object,
) -> tuple[bool, str]:
    """Return whether a tool refuses an assistant with this token, and the text of its answer."""

    async def run() -> tuple[bool, str]:
        headers = {"Authorization": f"Bearer {token}"}
        if project is not None:
            headers["Paceline-Project"] = project
        async with (
            httpx2.AsyncClient(headers=headers, trust_env=False) as http,
            Client(streamable_http_client(url, http_client=http)) as client,
        ):
            result = await client.call_tool(tool, arguments)
        [content] = result.content
        assert content.type == "text"
        return bool(result.is_error), content.text

    return in_a_loop(run)


def sent(company: Company) -> str:
    """Send a session of our project and return its id."""
    with company.client(company.token(Right.INGEST)) as client:
        answer = client.post(
            f"/api/v1/jobs/{OURS}/sessions", content=bodies.parquet(), params=bodies.SIZES
        )
    assert answer.status_code == 202, answer.text
    session: str = answer.json()["session"]
    return session


@PROJECTS
def test_a_token_reads_its_project(company: Company, path: str) -> None:
    session = sent(company)
    refuses, text = called(company.url + path, company.token(Right.READ), "list_jobs")
    document: dict[str, Any] = json.loads(text)
    assert not refuses
    assert [(job["job"], job["session"]) for job in document["rows"]] == [(OURS, session)]
    assert document["link"].startswith(company.url)


@PROJECTS
def test_a_foreign_token_sees_nothing(company: Company, path: str) -> None:
    session = sent(company)
    theirs = company.token(Right.READ, project="other")
    if path != "/mcp":
        with company.client(theirs) as client:
            assert client.post(path, json={}).status_code == 404
        return
    url = company.url + path
    assert OURS not in called(url, theirs, "list_jobs")[1]
    for tool, arguments in (
        ("get_session", {"session": session}),
        ("explain_verdict", {"session": session}),
        ("compare", {"before": session, "after": session}),
        ("get_job", {"job": OURS}),
    ):
        refuses, text = called(url, theirs, tool, **arguments)
        assert refuses
        assert "[not_found]" in text


def test_the_path_names_the_project_of_every_tool(company: Company) -> None:
    """Also where a token has both projects, and the header of the request names the same one."""
    sent(company)
    both = company.token(Right.READ, project=None)
    for path, header, seen in (
        ("/mcp", "default", True),
        ("/mcp", "other", False),
        ("/p/default/mcp", "default", True),
        ("/p/other/mcp", "other", False),
    ):
        answer = called(company.url + path, both, "list_jobs", project=header)[1]
        assert (OURS in answer) is seen, (path, header)
    hello = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
    with company.client(both) as client:
        answered = client.post("/p/other/mcp", json=hello, headers={"Paceline-Project": "default"})
    assert (answered.status_code, answered.json()["code"]) == (400, "project.ambiguous")


def test_without_a_token_that_reads_there_is_nothing(company: Company) -> None:
    hello = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
    with company.client() as client:
        assert client.post("/mcp", json=hello).status_code == 401
    with company.client(company.token(Right.INGEST)) as client:
        assert client.post("/mcp", json=hello).status_code == 403


def test_a_body_that_is_no_call_is_refused(company: Company) -> None:
    with company.client(company.token(Right.READ)) as client:
        assert client.post("/mcp", content=b"\xff{").status_code in range(400, 500)
        assert client.post("/mcp", json=[1] * 1000).status_code in range(400, 500)
        assert client.post("/mcp", content=b"x" * (2 << 20)).status_code == 413
        assert client.get("/mcp").status_code == 405


def test_nothing_is_acknowledged_over_http(company: Company) -> None:
    refuses, text = called(
        company.url + "/mcp",
        company.token(Right.OPERATE, Right.READ),
        "acknowledge",
        incident="00000000-0000-0000-0000-000000000000",
    )
    assert refuses
    assert "Unknown tool" in text
