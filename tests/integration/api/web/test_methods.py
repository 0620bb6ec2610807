"""HEAD for every GET route, and 405 with the allowed methods for every other method."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from tests.integration.api.web.test_body_limits import ANY_ID

if TYPE_CHECKING:
    import httpx

    from tests.integration.api.conftest import Install, Installation

METHODS = {"GET", "POST", "PUT", "PATCH", "DELETE"}
PAGES = ("/", "/plans", "/incidents", "/channels", "/channels/new", "/rules", "/api/docs")


def documented(client: httpx.Client) -> dict[str, set[str]]:
    paths: dict[str, dict[str, Any]] = client.get("/api/openapi.json").json()["paths"]
    return {path: {method.upper() for method in methods} for path, methods in paths.items()}


def test_a_wrong_method_is_405_with_those_that_are_allowed(client: httpx.Client) -> None:
    addresses = documented(client) | {page: {"GET"} for page in PAGES}
    assert len(addresses) > 30
    for path, allowed in addresses.items():
        # With any parameters: a wrong method is answered before a malformed parameter.
        for filled in ("x", "1", ANY_ID):
            address = re.sub(r"{[^}]*}", filled, path)
            for method in METHODS - allowed:
                answer = client.request(method, address)
                assert answer.status_code == 405, (method, address, answer.text)
                assert answer.json()["code"] == "http.method_not_allowed"
                said = set(answer.headers["allow"].split(", "))
                assert said == (allowed | {"HEAD"} if "GET" in allowed else allowed), address


def test_every_page_answers_head_as_it_answers_get(client: httpx.Client) -> None:
    for page in (*PAGES, "/jobs/none", "/sessions/none", "/api/v1/sessions", "/healthz"):
        got, head = client.get(page), client.head(page)
        assert head.status_code == got.status_code, page
        assert head.content == b""
        for header in ("content-type", "content-security-policy", "cache-control"):
            assert head.headers.get(header) == got.headers.get(header), page


def test_a_slash_too_many_leads_nowhere_else(install: Install) -> None:
    """A redirect keeps the host, the scheme and the project of the request."""
    with install(require_sign_in=True, external_url="https://paceline.example") as installed:
        for path in ("/plans/", "/p/default/plans/", "/sign-in/", "/healthz/", "/api/v1/sessions/"):
            answer = installed.client.get(path, headers={"Host": "elsewhere.example"})
            assert answer.status_code == 404, path
            assert "location" not in answer.headers


def test_head_of_a_stream_ends(installation: Installation) -> None:
    answer = installation.client.head("/api/v1/events")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert installation.metric("paceline_event_streams") == 0


def test_head_is_counted_as_head(installation: Installation) -> None:
    installation.client.head("/jobs/none")
    counted = {"method": "HEAD", "route": "/jobs/{job}", "status": "404"}
    assert installation.metric("paceline_http_requests_total", **counted) == 1


def test_unknown_methods_share_one_label(installation: Installation) -> None:
    for number in range(20):
        assert installation.client.request(f"MADEUP{number}", "/plans").status_code == 405
    text = installation.client.get("/metrics").text
    assert "MADEUP" not in text
    counted = {"method": "other", "route": "unmatched", "status": "405"}
    assert installation.metric("paceline_http_requests_total", **counted) == 20
