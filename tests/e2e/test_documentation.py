"""The documentation in a browser: with the content security policy, from this server alone."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

from app.web.terms import glossary
from tests.conftest import skip_or_fail
from tests.e2e.expecting import in_every_look
from tests.e2e.looking import barriers, check, keep
from tests.e2e.visiting import NARROW, REPOSITORY, listen_again
from tests.support.served import served

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from app.platform.container import Container
    from tests.e2e.visiting import Look, Visitor


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the site, built as by `make docs`, which fails at a broken link."""
    if importlib.util.find_spec("mkdocs") is None:
        skip_or_fail("there is no mkdocs")
    directory: Path = tmp_path_factory.mktemp("documentation") / "site"
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(directory)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)  # noqa: S603
    assert done.returncode == 0, done.stderr
    return directory


@pytest.fixture
def documented(built: Path, container: Container, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr("app.installation.documentation.SITE_DIR", built)
    with served(container, listen_again(container.settings)) as address:
        yield address


@in_every_look
def test_every_page_is_readable_whole_and_from_this_server(
    documented: str, built: Path, visitor: Visitor, look: Look
) -> None:
    page = visitor.open(f"{documented}/docs", look)
    expect(page).to_have_url(f"{documented}/docs/")
    pages = sorted(path.parent.relative_to(built).as_posix() for path in built.rglob("index.html"))
    assert len(pages) > 20
    for name in pages:
        page.goto(f"{documented}/docs/{'' if name == '.' else f'{name}/'}")
        assert page.title().endswith("· Paceline")
        assert page.locator("h1").count() == 1, name
        assert check(page, "overflow") <= 0, name
        assert check(page, "lowContrast") == [], name
        if name in (".", "verdict", "http-api", "causes"):
            assert barriers(page) == [], name
            keep(page, f"docs-{name.replace('.', 'index')}-{look.name}")
    # Pages load everything from this server; only links lead elsewhere.
    assert {url for url in visitor.requested if not url.startswith(documented)} == set()


def test_the_search_finds_sections_and_the_keyboard_reaches_them(
    documented: str, visitor: Visitor
) -> None:
    page = visitor.open(f"{documented}/docs/alerts/")
    page.keyboard.press("/")
    expect(page.get_by_role("searchbox")).to_be_focused()
    page.keyboard.type("thermal airflow")
    expect(page.locator("#found-count")).to_contain_text("sections found")
    expect(page.locator("#found a").first).to_contain_text("Thermal throttling")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(page).to_have_url(f"{documented}/docs/causes/#thermal-throttling")
    page.get_by_role("searchbox").fill("zzzyx")
    expect(page.locator("#found-count")).to_have_text("Nothing found")
    page.keyboard.press("Escape")
    expect(page.locator("#found")).to_be_hidden()


def test_each_term_has_a_place_in_the_glossary(documented: str, visitor: Visitor) -> None:
    page = visitor.open(f"{documented}/docs/glossary/")
    places = page.locator("td[id]").evaluate_all("rows => rows.map((row) => row.id)")
    assert set(places) == {term.anchor for term in glossary().values()}


def test_on_a_narrow_window_all_pages_are_a_choice_away(documented: str, visitor: Visitor) -> None:
    page = visitor.open(f"{documented}/docs/")
    page.set_viewport_size({"width": NARROW[0], "height": NARROW[1]})
    link = page.get_by_label("All pages").get_by_role("link", name="Alerts")
    expect(link).to_be_hidden()
    page.get_by_text("All pages", exact=True).click()
    link.click()
    expect(page.locator("h1")).to_contain_text("Alerts")


def test_an_address_without_a_page_is_not_found(documented: str, visitor: Visitor) -> None:
    page = visitor.open(f"{documented}/docs/causes")
    expect(page).to_have_url(f"{documented}/docs/causes/")
    page.goto(f"{documented}/docs/nothing/")
    expect(page.locator("h1")).to_have_text("Not found")
    visitor.expects("404")


@in_every_look
def test_where_nothing_was_built_the_page_says_how(
    container: Container,
    visitor: Visitor,
    look: Look,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("app.installation.documentation.SITE_DIR", tmp_path / "none")
    with served(container, listen_again(container.settings)) as address:
        page = visitor.open(f"{address}/docs/", look)
        expect(page.locator("h1")).to_contain_text("not part of this installation")
        expect(page.locator(".why")).to_contain_text("make docs")
        assert check(page, "overflow") <= 0
        assert barriers(page) == []


def test_the_page_of_the_api_is_no_wider_than_a_narrow_window(site: str, visitor: Visitor) -> None:
    page = visitor.open(f"{site}/api/docs")
    page.set_viewport_size({"width": NARROW[0], "height": NARROW[1]})
    expect(page.locator("h3")).not_to_have_count(0)
    assert check(page, "overflow") <= 0
    keep(page, "api-narrow")
