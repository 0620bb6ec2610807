"""The documentation over HTTP: its addresses, its caching, and the links to it."""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING

import httpx
import pytest

from app.web.guards import CONTENT_SECURITY_POLICY
from tests.support.served import client_of_served

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from app.platform.container import Container


@pytest.fixture
def documented(
    container: Container, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[httpx.Client]:
    """Yield a client of a server whose site has two pages."""
    for name in ("index.html", "alerts/index.html"):
        (tmp_path / "site" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "site" / name).write_text("<h1>Alerts</h1>" * 100)
    monkeypatch.setattr("app.installation.documentation.SITE_DIR", tmp_path / "site")
    with client_of_served(container) as client:
        yield client


def test_pages_have_the_policy_of_all_pages_and_are_compressed(documented: httpx.Client) -> None:
    page = documented.get("/docs/alerts/", headers={"Accept-Encoding": "gzip"})
    assert page.status_code == 200
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert page.headers["content-encoding"] == "gzip"
    assert page.headers["content-security-policy"] == CONTENT_SECURITY_POLICY


@pytest.mark.parametrize(
    ("asked", "sent"), [("/docs", "/docs/"), ("/docs/alerts", "/docs/alerts/")]
)
def test_pages_without_their_slash_are_sent_to_it(
    documented: httpx.Client, asked: str, sent: str
) -> None:
    answer = documented.get(asked)
    assert answer.status_code == 308
    assert answer.headers["location"] == sent


def test_a_page_that_a_browser_has_is_not_sent_again(documented: httpx.Client) -> None:
    tag = documented.get("/docs/").headers["etag"]
    again = documented.get("/docs/", headers={"If-None-Match": tag})
    assert again.status_code == 304
    assert again.content == b""
    assert again.headers["etag"] == tag
    assert documented.get("/docs/", headers={"If-None-Match": 'W/"other"'}).status_code == 200


def test_there_is_nothing_but_the_pages(documented: httpx.Client) -> None:
    for path in ("/docs/none/", "/docs/none.html", "/docs/%2e%2e/pyproject.toml"):
        answer = documented.get(path)
        assert answer.status_code == 404, path
        assert answer.json()["code"] == "not_found"


def test_pages_of_projects_lead_to_the_one_documentation(client: httpx.Client) -> None:
    assert 'href="/docs/"' in client.get("/p/default/").text


def test_jobs_install_the_client_from_the_server(documented: httpx.Client) -> None:
    assert documented.get("/client").headers["location"] == "/client/"
    page = documented.get("/client/")
    assert page.status_code == 200
    [address] = re.findall(r'href="(paceline_client-[^"#]+\.whl)#sha256=[0-9a-f]{64}"', page.text)
    wheel = documented.get(f"/client/{address}")
    assert wheel.headers["content-type"] == "application/zip"
    assert hashlib.sha256(wheel.content).hexdigest() in page.text
    assert documented.get("/client/other-1.0-py3-none-any.whl").status_code == 404
