"""Every error is a problem document with a stable code."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from app.web.problems import PROBLEMS
from tests.integration.api.outage import away

if TYPE_CHECKING:
    import httpx

    from tests.integration.api.conftest import Installation

UNKNOWN = "00000000-0000-4000-8000-000000000000"


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nowhere", 404, "http.not_found"),
        ("GET", "/api/v1/nowhere", 404, "http.not_found"),
        ("DELETE", "/api/v1/sessions", 405, "http.method_not_allowed"),
        ("GET", "/api/v1/jobs/a/sessions", 405, "http.method_not_allowed"),
        ("GET", "/api/v1/sessions/7", 422, "request.invalid"),
        ("GET", "/api/v1/sessions?limit=0", 422, "request.invalid"),
        ("GET", "/api/v1/sessions?state=happy", 422, "request.invalid"),
        ("GET", "/api/v1/sessions?job=%00", 422, "request.invalid"),
        ("GET", f"/api/v1/sessions/{UNKNOWN}", 404, "not_found"),
        ("GET", f"/api/v1/sessions/{UNKNOWN}/report", 404, "not_found"),
        ("GET", f"/api/v1/sessions/{UNKNOWN}/heatmaps", 404, "not_found"),
        ("GET", f"/api/v1/sessions/{UNKNOWN}/timeline?step=1", 404, "not_found"),
        ("GET", f"/api/v1/sessions/{UNKNOWN}/timeline", 422, "request.invalid"),
        ("GET", f"/api/v1/sessions/{UNKNOWN}/events", 404, "not_found"),
    ],
)
def test_an_error_is_a_problem_document(
    client: httpx.Client, method: str, path: str, status: int, code: str
) -> None:
    answer = client.request(method, path)
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"
    problem = answer.json()
    assert problem.keys() == {"type", "title", "status", "detail", "code", "faults"}
    assert (problem["status"], problem["code"]) == (status, code)


def test_a_wrong_method_names_the_right_ones(client: httpx.Client) -> None:
    assert client.delete("/api/v1/sessions").headers["allow"] == "GET, HEAD"


def test_an_invalid_request_names_its_parameters(client: httpx.Client) -> None:
    faults = client.get("/api/v1/sessions?limit=x&state=happy").json()["faults"]
    assert {fault["column"] for fault in faults} == {"limit", "state"}
    assert all(fault["message"] for fault in faults)


def test_a_database_that_is_away_is_no_crash(installation: Installation) -> None:
    client = installation.client
    assert client.get("/api/v1/sessions").status_code == 200
    with away(installation.container.engine):
        answer = client.get("/api/v1/sessions")
        assert answer.status_code == 503
        assert answer.json()["code"] == "database.unavailable"
        assert client.get("/healthz").status_code == 200
        assert installation.metric("paceline_database_up") == 0
    assert client.get("/api/v1/sessions").status_code == 200


def test_an_unexpected_error_is_a_problem_too(
    installation: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_arguments: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("app.sessions.api.read.list_sessions", broken)
    answer = installation.client.get("/api/v1/sessions")
    assert answer.status_code == 500
    assert answer.json()["code"] == "internal"
    assert "ZeroDivisionError" not in answer.text
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_the_documentation_explains_every_problem_and_loads_nothing_foreign(
    client: httpx.Client,
) -> None:
    page = client.get("/api/docs").text
    for code in PROBLEMS:
        assert f'id="problem-{code}"' in page
    for address in re.findall(r'(?:href|src)="([^"]*)"', page):
        assert address.startswith("/")
        assert client.get(address).status_code == 200
    assert "http://" not in page
    assert "https://" not in page


def test_the_openapi_document_names_the_routes_of_sessions(client: httpx.Client) -> None:
    paths = client.get("/api/openapi.json").json()["paths"]
    assert paths.keys() >= {
        "/api/v1/jobs/{job}/sessions",
        "/api/v1/sessions",
        "/api/v1/sessions/{session}",
        "/api/v1/sessions/{session}/report",
        "/api/v1/sessions/{session}/heatmaps",
        "/api/v1/sessions/{session}/timeline",
        "/api/v1/sessions/{session}/what-if",
        "/api/v1/sessions/{session}/events",
        "/api/v1/events",
        "/healthz",
        "/readyz",
        "/metrics",
    }
    sent = paths["/api/v1/jobs/{job}/sessions"]["post"]
    assert {"200", "202", "413", "415", "422", "429"} <= sent["responses"].keys()
