"""A refusal is a page for a browser, and a problem document for other clients."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from app.web.guards import SECURITY_HEADERS
from tests.integration.api.outage import away

if TYPE_CHECKING:
    import httpx

    from tests.integration.api.conftest import Installation

BROWSER = {
    "Accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8",
    # Uncompressed, because the length of answers is checked.
    "Accept-Encoding": "identity",
}
PAGES = [
    ("GET", "/nowhere", 404, "There is nothing at this address"),
    ("GET", "/p/nowhere/", 404, "There is no such project"),
    ("GET", "/plans/4711/x", 422, "The request is not valid"),
    ("GET", "/sessions/00000000-0000-0000-0000-000000000000/workers.csv", 404, "Not found"),
    ("GET", "/sign-out", 405, "The method is not allowed here"),
    ("GET", "/caf%e9", 400, "The address is malformed"),
]


@pytest.mark.parametrize(("method", "path", "status", "title"), PAGES)
def test_a_browser_gets_a_page_and_a_program_a_document(
    client: httpx.Client, method: str, path: str, status: int, title: str
) -> None:
    page = client.request(method, path, headers=BROWSER)
    assert page.status_code == status
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert page.headers["cache-control"] == "no-store"
    assert int(page.headers["content-length"]) == len(page.content)
    assert f"<h1>{title}</h1>" in page.text
    assert {name: page.headers.get(name) for name in SECURITY_HEADERS} == SECURITY_HEADERS
    for accepted in ("*/*", "application/json", "text/csv"):
        document = client.request(method, path, headers={"Accept": accepted})
        assert document.status_code == status
        assert document.headers["content-type"] == "application/problem+json"
        assert document.json()["code"] in page.text


@pytest.mark.parametrize("host", ["rebound.example", "10.0.0.1"])
def test_a_refusal_of_a_guard_is_a_page_too(client: httpx.Client, host: str) -> None:
    page = client.get("/", headers=BROWSER | {"Host": host})
    assert page.status_code == 421
    assert "<h1>This host name is not served</h1>" in page.text
    crossed = client.post("/sign-in", headers=BROWSER | {"Sec-Fetch-Site": "cross-site"})
    assert (crossed.status_code, "<code>csrf.cross_site</code>" in crossed.text) == (403, True)


@pytest.mark.parametrize("path", ["/api/v1/nowhere", "/api/v1/sessions/x", "/static/nowhere.css"])
def test_addresses_of_programs_have_no_pages(client: httpx.Client, path: str) -> None:
    assert not client.get(path, headers=BROWSER).headers["content-type"].startswith("text/html")


def test_the_requested_address_is_text_in_the_page(client: httpx.Client) -> None:
    page = client.get("/p/<script>alert(1)</script>/", headers=BROWSER).text
    assert not re.search(r"<script>alert", page)


def test_headers_of_a_refusal_stay(installation: Installation) -> None:
    with away(installation.container.engine):
        page = installation.client.get("/plans", headers=BROWSER)
    assert page.status_code == 503
    assert int(page.headers["retry-after"]) > 0
    assert "<h1>The database does not answer</h1>" in page.text


def test_a_head_has_no_page(client: httpx.Client) -> None:
    answer = client.head("/nowhere", headers=BROWSER)
    assert (answer.status_code, answer.content) == (404, b"")
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
