"""Retention: the page of a project's rules, and the buttons on pages of sessions and jobs."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from playwright.sync_api import expect
from sqlalchemy import update

from app.platform.container import TaskError
from app.platform.tasks.execute import execute
from app.platform.tasks.runs import LeaseKeeper, claim, fail
from app.retention.kinds import KINDS
from app.retention.models import Keep, RetentionRules
from app.retention.rules import keep_to_rules, pin_session, set_rules
from app.sessions.models.tables import Session
from tests.e2e.destroying import destroy
from tests.e2e.expecting import expect_well_made, in_every_look
from tests.e2e.looking import keep, wait_for_plots
from tests.support.sessions import session_row, small_trace, store

if TYPE_CHECKING:
    from app.platform.container import Container
    from tests.e2e.visiting import Look, Visitor
    from tests.support.sessions import Stored


def _analyzed(container: Container) -> Stored:
    stored = store(container, small_trace())
    assert execute(container, LeaseKeeper(container), stored.run)
    return stored


@in_every_look
def test_retention_rules_are_changed_on_their_page(
    site: str, visitor: Visitor, container: Container, look: Look
) -> None:
    stored = _analyzed(container)
    page = visitor.open(f"{site}/retention", look)
    expect(page.locator("h1")).to_have_text("Sessions are kept without limit")
    expect(page.locator("tbody tr")).to_have_count(len(KINDS))
    page.get_by_label("Operations: days").fill("30")
    page.get_by_label("Operations: GiB").fill("0.5")
    page.get_by_role("button", name="Save").click()
    expect(page.locator("h1")).to_have_text("Old sessions lose operations")
    expect(page.get_by_label("Operations: GiB")).to_have_value("0.5")
    keep(page, f"retention-{look.name}")
    expect_well_made(page, site, look)

    # Rules that would delete existing data show these first.
    page.get_by_label("Operations: GiB").fill("0")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("dialog")).to_contain_text("operations: 1.")
    page.get_by_role("button", name="Cancel").click()
    assert session_row(container, stored).trace_blob is not None
    destroy(page, page.get_by_role("button", name="Save"), "Save and delete", typed="default")
    expect(page.get_by_label("Operations: GiB")).to_have_value("0")


@in_every_look
def test_a_failed_session_is_analyzed_again_from_its_page(
    site: str, visitor: Visitor, container: Container, look: Look
) -> None:
    stored = store(container, small_trace())
    held = claim(container, stored.run)
    assert held is not None
    fail(container, held, TaskError("task.worker_killed", "The worker was killed."))
    page = visitor.open(f"{site}/sessions/{stored.session}", look)
    keep(page, f"failed-{look.name}")
    page.get_by_role("button", name="Analyze again").click()
    expect(page.locator("h1")).to_contain_text("waits to be analyzed")
    assert session_row(container, stored).state == "queued"


@in_every_look
def test_a_session_whose_trace_is_gone_says_so_and_is_deleted(
    site: str, visitor: Visitor, container: Container, look: Look
) -> None:
    stored, kept = _analyzed(container), _analyzed(container)
    with container.uow() as tx:
        tx.session.execute(
            update(Session)
            .where(Session.id.in_([stored.session, kept.session]))
            .values(received_at=tx.now - timedelta(days=40))
        )
    set_rules(container, RetentionRules(traces=Keep(days=30)))
    assert keep_to_rules(container) == 2
    page = visitor.open(f"{site}/sessions/{kept.session}", look)
    expect(page.locator("main")).to_contain_text("The report stays; timelines, questions")
    expect(page.locator("#op-read")).to_have_text(
        "The operations were deleted: there is nothing to draw"
    )
    expect(page.locator("#what-if")).to_contain_text("this session can answer no questions")
    expect(page.locator("#ask")).to_be_hidden()
    for link in ("#perfetto", "#perfetto-file", "#perfetto-whole"):
        expect(page.locator(link)).to_be_hidden()
    keep(page, f"trace-gone-{look.name}")
    expect_well_made(page, site, look)

    # Heatmaps of single steps are deleted too: the page requests none, whatever its address names.
    set_rules(container, RetentionRules(traces=Keep(days=30), heatmaps=Keep(days=30)))
    assert keep_to_rules(container) == 2
    page.goto(f"{site}/sessions/{kept.session}?step=5")
    wait_for_plots(page)
    expect(page.locator("main")).to_contain_text("The map is the mean of the steps")
    expect(page.locator("#mode-step")).to_be_disabled()
    expect(page.locator("#map-title")).not_to_contain_text("Step 5")
    keep(page, f"heatmaps-gone-{look.name}")
    expect_well_made(page, site, look)

    pin_session(container, kept.session, pinned=True)
    set_rules(container, RetentionRules(reports=Keep(days=30)))
    assert keep_to_rules(container) == 1
    page.goto(f"{site}/sessions/{stored.session}")
    expect(page.locator("main")).to_contain_text("Deleted: its operations since")
    expect(page.get_by_role("button", name="Analyze again")).to_have_count(0)
    page.get_by_role("button", name="Pin").click()
    expect(page.get_by_role("button", name="Unpin")).to_be_enabled()
    keep(page, f"not-kept-{look.name}")
    expect_well_made(page, site, look)
    destroy(page, page.get_by_role("button", name="Delete session 1"), "Delete session")
    expect(page).to_have_url(f"{site}/jobs/llm")
    expect(page.locator("[aria-label=Sessions] tbody tr")).to_have_count(1)
    page.get_by_label("Name", exact=True).fill("llm-70b")
    page.get_by_role("button", name="Rename").click()
    expect(page).to_have_url(f"{site}/jobs/llm-70b")
    page.get_by_role("button", name="Archive").click()
    expect(page.get_by_role("button", name="Restore from the archive")).to_be_enabled()
    wait_for_plots(page)
    keep(page, f"job-keep-{look.name}")
    expect_well_made(page, site, look)
