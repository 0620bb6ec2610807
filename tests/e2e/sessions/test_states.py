"""Every state of a session is explained, and changes on the page without a reload."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from playwright.sync_api import expect

from app.analysis.synthesis.scenarios import SCENARIOS
from app.platform.container import Claim, TaskError
from app.platform.tasks.runs import claim, fail, give_back
from app.sessions.analyze import analyze_session
from tests.e2e.looking import barriers, check, keep, wait_for_figures, wait_for_plots
from tests.support.sessions import Stored, refused_trace, small_trace, store

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from app.platform.container import Container
    from tests.e2e.visiting import Visitor


def taken(container: Container, stored: Stored) -> Claim:
    """Claim the session's analysis as a worker does."""
    held = claim(container, stored.run)
    assert held is not None
    return held


def visit(visitor: Visitor, site: str, stored: Stored) -> Page:
    """Open a session's page and mark it, so that a reload can be detected."""
    page = visitor.open(f"{site}/sessions/{stored.session}")
    expect(page.locator("#live")).to_have_text("Live")
    page.evaluate("window.marked = true")
    return page


def expect_status(page: Page, status: str) -> None:
    """Check that the page shows another state, and was not reloaded."""
    expect(page.locator("main")).to_have_attribute("data-status", status)
    assert page.evaluate("window.marked === true")


def test_a_session_that_waits_is_analyzed_and_becomes_its_report_on_the_same_page(
    container: Container, site: str, visitor: Visitor
) -> None:
    stored = store(container, small_trace())
    page = visit(visitor, site, stored)
    expect(page.locator("h1")).to_have_text("Session 1 has arrived and waits to be analyzed")
    expect(page.locator(".verdict")).to_contain_text("next in line")
    expect(page).to_have_title(re.compile("^llm, session 1: waiting"))
    assert page.locator(".ghost.missing").count() == 2, "what is not known yet is hatched"
    assert page.locator("#heatmap").count() == 0
    assert barriers(page) == []
    keep(page, "state-waiting")

    held = taken(container, stored)
    expect_status(page, "analyzing")
    expect(page.locator("h1")).to_contain_text("Session 1 is being analyzed")
    expect(page.locator(".verdict")).to_contain_text("attempt 1 of 3")
    keep(page, "state-analyzing")

    analyze_session(container, held)
    expect_status(page, "analyzed")
    expect(page.locator("h1")).to_contain_text(": worker (1, 1)")
    expect(page).to_have_title(re.compile(r"^llm, session 1: [\d.]+× slower"))
    wait_for_figures(page)


def test_a_session_that_another_is_ahead_of_says_so(
    container: Container, site: str, visitor: Visitor
) -> None:
    store(container, small_trace(), job="first")
    second = store(container, small_trace(), job="second")
    page = visit(visitor, site, second)
    expect(page.locator(".verdict")).to_contain_text(re.compile(r"1\ssession ahead"))


def test_an_analysis_that_was_cut_off_waits_again(
    container: Container, site: str, visitor: Visitor
) -> None:
    stored = store(container, small_trace())
    held = taken(container, stored)
    page = visit(visitor, site, stored)
    expect_status(page, "analyzing")
    assert give_back(container, held)
    expect_status(page, "queued")
    expect(page.locator("h1")).to_contain_text("waits to be analyzed")


def test_a_failed_analysis_names_the_code_the_reason_and_the_attempts(
    container: Container, site: str, visitor: Visitor
) -> None:
    stored = store(container, small_trace())
    page = visit(visitor, site, stored)
    held = taken(container, stored)
    fail(container, held, TaskError("task.killed", "The worker was killed 3 times"))
    expect_status(page, "failed")
    expect(page.locator("h1")).to_have_text("Analysis failed: The worker was killed 3 times")
    verdict = page.locator(".verdict")
    expect(verdict).to_contain_text("task.killed")
    expect(verdict).to_contain_text("Attempts")
    expect(verdict).to_contain_text("the trace is stored")
    assert page.locator("#heatmap").count() == 0
    assert barriers(page) == []
    keep(page, "state-failed")

    page.goto(f"{site}/")
    row = page.locator(f'tr[data-session="{stored.session}"]')
    expect(row).to_contain_text("Analysis failed")
    expect(row).to_contain_text("none")


def test_a_discarded_session_says_what_is_missing_and_what_to_do(
    container: Container, site: str, visitor: Visitor
) -> None:
    stored = store(container, refused_trace())
    page = visit(visitor, site, stored)
    analyze_session(container, taken(container, stored))
    expect_status(page, "discarded")
    expect(page.locator("h1")).to_contain_text("Discarded: No step is complete on all workers")
    expect(page.locator(".verdict")).to_contain_text("Send every rank")
    assert barriers(page) == []
    keep(page, "state-discarded")


def test_where_s_is_withheld_there_is_a_slowdown_a_cause_and_its_fix_but_no_map(
    container: Container, site: str, visitor: Visitor
) -> None:
    stored = store(container, SCENARIOS["data-loading"].synthesize(0).trace)
    page = visit(visitor, site, stored)
    analyze_session(container, taken(container, stored))
    expect_status(page, "analyzed")
    expect(page.locator("h1")).to_contain_text(
        "slower than without its cause: steps wait for their data"
    )
    wait_for_plots(page)
    for absent in ("#heatmap", "#strip", "#timeline"):
        assert page.locator(absent).count() == 0, absent
    expect(page.locator(".fixes")).to_contain_text("Load batches ahead")
    page.locator(".causes a").filter(has_text="launched").click()
    expect(page.locator("#launches")).to_be_in_viewport()
    assert "Slowdown" in page.inner_text("main")
    assert "heatmap" not in page.inner_html("#data")
    assert barriers(page) == []
    keep(page, "state-s-withheld")

    page.goto(f"{site}/")
    row = page.locator(f'tr[data-session="{stored.session}"]')
    expect(row).to_contain_text("1.20×")
    expect(row).to_contain_text("Data loading")


def test_a_missing_page_is_explained_in_words(site: str, visitor: Visitor) -> None:
    for path, said in (
        ("/sessions/00000000-0000-4000-8000-000000000000", "There is no session 0000"),
        ("/sessions/<b>nonsense", "There is no session <b>nonsense"),
        ("/jobs/unknown", "There is no job unknown"),
    ):
        page = visitor.open(f"{site}{path}")
        expect(page.locator("h1")).to_contain_text(said)
        assert check(page, "origins") == [site]
        assert barriers(page) == []
    visitor.expects("404")
