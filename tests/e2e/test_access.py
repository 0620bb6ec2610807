"""Somebody signs in, makes a token and a project, and finds the project's pages."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

from app import bootstrap
from app.access.principals import Role
from app.run.http import HttpServer, address_of, listen
from app.services.access.people import create_person
from app.web import create_app
from tests.e2e.looking import keep
from tests.e2e.test_pages import expect_well_made, in_every_look

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser

    from app.settings import Settings
    from tests.e2e.visiting import Look, Visitor

PASSWORD = "correct horse battery"  # noqa: S105 - of a test


@pytest.fixture
def company(browser: Browser, settings: Settings) -> Iterator[str]:
    del browser
    container = bootstrap.build(settings.model_copy(update={"require_sign_in": True}))
    create_person(container.everywhere(), "ada", PASSWORD, Role.ADMINISTRATOR, None)
    listener = listen(settings.model_copy(update={"port": 0}))
    server = HttpServer(create_app(container), listener)
    server.start(lambda: False)
    yield address_of(listener).rstrip("/")
    server.stop()
    container.close()


@in_every_look
def test_an_administrator_signs_in_and_hands_out_access(
    company: str, visitor: Visitor, look: Look
) -> None:
    page = visitor.open(f"{company}/access", look)
    expect(page.locator("h1")).to_have_text("Sign in to Paceline")
    keep(page, f"sign-in-{look.name}")
    page.get_by_label("Name").fill("ada")
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Sign in").click()
    expect(page.locator("h1")).to_have_text("No token is valid")

    form = page.get_by_role("form", name="New token")
    form.get_by_label("Name").fill("ci")
    form.get_by_label("ingest").check()
    form.get_by_role("button").click()
    expect(page.locator("#made-secret")).to_contain_text("plc_")
    expect(page.locator("h1")).to_have_text("1 valid token")
    page.get_by_role("form", name="New project").get_by_label("New project").fill("research")
    page.get_by_role("button", name="Make the project").click()
    expect(page.locator("#projects tbody tr")).to_have_count(2)
    expect_well_made(page, company, look)
    keep(page, f"access-{look.name}")

    page.get_by_role("button", name="Revoke ci").click()
    expect(page.locator("h1")).to_have_text("No token is valid")
    page.get_by_role("link", name="research").click()
    expect(page).to_have_url(f"{company}/p/research/")
    page.get_by_role("link", name="Rules").click()
    expect(page).to_have_url(f"{company}/p/research/rules")
    page.get_by_role("button", name="Sign out").click()
    page.goto(f"{company}/p/research/")
    expect(page.locator("h1")).to_have_text("Sign in to Paceline")
