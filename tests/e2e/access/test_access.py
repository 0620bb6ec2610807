"""A user signs in, makes a token and a project, and finds the project's pages."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect
from sqlalchemy import select

from app import bootstrap
from app.access.people import create_person
from app.incidents.models.tables import AlertIncident
from app.platform.identity import Role
from tests.e2e.destroying import destroy
from tests.e2e.expecting import expect_well_made, in_every_look
from tests.e2e.looking import keep
from tests.e2e.recorded import analyzed, job_trace
from tests.e2e.visiting import listen_again
from tests.support.project import build
from tests.support.served import served

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser, Page

    from app.platform.settings import Settings
    from tests.e2e.visiting import Look, Visitor

PASSWORD = "correct horse battery"  # noqa: S105 - of a test


@pytest.fixture
def company(browser: Browser, settings: Settings) -> Iterator[str]:
    del browser
    container = bootstrap.build(settings.model_copy(update={"require_sign_in": True}))
    create_person(container.everywhere(), "ada", PASSWORD, Role.ADMINISTRATOR, None)
    create_person(container.everywhere(), "bob", PASSWORD, Role.READER, "default")
    with served(container, listen_again(settings)) as address:
        yield address
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
    # The button is disabled until the script runs; before, the page may still move under a click.
    expect(form.get_by_role("button", name="Create token")).to_be_enabled()
    form.get_by_label("Name").fill("ci")
    form.get_by_label("ingest").check()
    form.get_by_role("button").click()
    expect(page.locator("#made-secret")).to_contain_text("plc_")
    expect(page.locator("h1")).to_have_text("1 valid token")
    page.get_by_role("form", name="New project").get_by_label("New project").fill("research")
    page.get_by_role("button", name="Create project").click()
    expect(page.locator("#projects tbody tr")).to_have_count(2)
    expect_well_made(page, company, look)
    keep(page, f"access-{look.name}")

    page.get_by_role("button", name="Renew ci for 90 days").click()
    expect(page.locator(".audit tbody tr").first).to_contain_text("renewed")

    _manage_people(page)
    destroy(page, page.get_by_role("button", name="Revoke ci"), "Revoke token")
    expect(page.locator("h1")).to_have_text("No token is valid")
    page.get_by_role("link", name="Incidents of all projects").click()
    expect(page.locator("h1")).to_have_text("No incident is open in any project")
    expect_well_made(page, company, look)
    page.get_by_role("link", name="Access").first.click()
    page.get_by_role("link", name="quotas of research").click()
    expect(page).to_have_url(f"{company}/p/research/quotas")
    page.goto(f"{company}/access")
    page.get_by_role("link", name="research", exact=True).click()
    expect(page).to_have_url(f"{company}/p/research/")
    page.get_by_role("link", name="Rules").click()
    expect(page).to_have_url(f"{company}/p/research/rules")
    page.get_by_role("button", name="Sign out").click()
    # Otherwise the next address might be requested before this page has loaded.
    expect(page).to_have_url(re.compile("/sign-in"))
    page.goto(f"{company}/p/research/")
    expect(page.locator("h1")).to_have_text("Sign in to Paceline")


def _manage_people(page: Page) -> None:
    people = page.locator("#people tbody tr")
    expect(people).to_have_count(2)
    role = page.get_by_role("form", name="Role")
    role.get_by_label("Person").select_option("bob")
    role.get_by_label("Role", exact=True).select_option("operator")
    role.get_by_label("Project of the role").select_option("research")
    role.get_by_role("button", name="Grant role").click()
    expect(people.nth(1)).to_contain_text("operator of research")
    destroy(page, page.get_by_role("button", name="Disable bob"), "Disable user")
    expect(page.get_by_role("button", name="Enable bob")).to_be_enabled()
    expect(page.locator("#people h2")).to_contain_text("1 disabled")
    # No user can disable themselves.
    expect(people.first).to_contain_text("you")
    expect(page.get_by_role("button", name="Disable ada")).to_have_count(0)
    expect(page.get_by_role("button", name="Delete ada")).to_have_count(0)
    destroy(page, page.get_by_role("button", name="Delete bob"), "Delete user")
    expect(people).to_have_count(1)


@in_every_look
def test_the_sign_in_page_names_the_fault_at_its_field_and_whom_to_ask(
    company: str, visitor: Visitor, look: Look
) -> None:
    page = visitor.open(f"{company}/sign-in", look)
    name, password = page.get_by_label("User name"), page.get_by_label("Password", exact=True)
    expect(page.get_by_role("main")).to_contain_text(company.partition("//")[2])
    expect(name).to_be_focused()
    expect(name).to_have_attribute("autocomplete", "username")
    expect(password).to_have_attribute("autocomplete", "current-password")
    expect_well_made(page, company, look)
    name.fill("bob")
    password.fill("not his password")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert")).to_be_visible()
    expect(name).to_have_value("bob")
    expect(password).to_be_focused()
    expect(password).to_have_accessible_description(re.compile("password"))
    expect_well_made(page, company, look)
    keep(page, f"sign-in-refused-{look.name}")
    visitor.expects("401")
    page.goto(f"{company}/sign-in")
    # The page keeps the name, but not the password.
    expect(name).to_have_value("bob")
    expect(password).to_have_value("")
    expect(password).to_be_focused()
    for link in ("Docs", "creates users and sets passwords", "a token"):
        expect(page.get_by_role("link", name=link)).to_have_attribute("href", re.compile("^/docs/"))


@in_every_look
def test_an_address_that_is_unknown_is_a_page(company: str, visitor: Visitor, look: Look) -> None:
    page = visitor.open(f"{company}/sign-in", look)
    page.get_by_label("Name").fill("bob")
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Sign in").click()
    expect(page).to_have_url(f"{company}/")
    for path, heading in (
        ("/nowhere", "There is nothing at this address"),
        ("/p/secret/", "There is no such project"),
        ("/access", "The user may not do this"),
    ):
        page.goto(f"{company}{path}")
        expect(page.locator("h1")).to_have_text(heading)
        expect_well_made(page, company, look)
        keep(page, f"problem-{path.strip('/').replace('/', '-')}-{look.name}")
    page.get_by_role("link", name="All jobs").click()
    expect(page).to_have_url(f"{company}/")
    visitor.expects("404", "403")


# Buttons that readers may use: they read, copy, ask and preview.
READS = re.compile(
    r"Copy|Find|Sign out|theme|Search|Own…|Preview|Ask|Remove|Add a change|Compare|Step|Mean|"
    r"All \d|Worker|Host|Rank|Forward|Backward|Sw|stage|Show|Reset|Connecting|Live|"
    r"times are|Save this view|Labels|Last at|Waited for",
    re.IGNORECASE,
)


def test_a_reader_sees_no_button_that_only_an_operator_may_press(
    company: str, settings: Settings, visitor: Visitor
) -> None:
    container = build(settings)
    stored = analyzed(container, job_trace(), "dense-34b")
    analyzed(container, job_trace(), "dense-34b")
    with container.reading() as tx:
        incident = tx.session.execute(select(AlertIncident.id).limit(1)).scalar_one()
    container.close()
    page = visitor.open(f"{company}/sign-in")
    page.get_by_label("Name").fill("bob")
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Sign in").click()
    for path in (
        *("/", "/jobs/dense-34b", f"/sessions/{stored.session}", f"/incidents/{incident}"),
        *("/incidents", "/rules", "/channels", "/plans", "/hosts"),
        *("/retention", "/quotas", "/report", "/ingest"),
    ):
        page.goto(f"{company}{path}")
        expect(page.locator("h1")).to_be_visible()
        named = [
            (button.get_attribute("aria-label") or button.inner_text()).strip()
            for button in page.get_by_role("button").all()
            if button.is_visible()
        ]
        assert [name for name in named if name and not READS.search(name)] == [], path
        assert page.locator("input[data-pick]:visible, [data-destroys]:visible").count() == 0, path
