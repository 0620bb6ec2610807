"""The comparison of two sessions in a browser: predicted and measured gain of a fix."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from playwright.sync_api import expect

from tests.e2e.expecting import WIDE_LIGHT, expect_well_made, in_every_look
from tests.e2e.looking import keep
from tests.e2e.recorded import analyzed, healthy, job_trace
from tests.integration.sessions.test_times import fill

if TYPE_CHECKING:
    from app.platform.container import Container
    from tests.e2e.visiting import Look, Visitor


@in_every_look
def test_the_page_of_a_comparison(
    container: Container, site: str, visitor: Visitor, look: Look
) -> None:
    before = analyzed(container, job_trace(), "dense-34b")
    after = analyzed(container, healthy(3), "dense-34b")
    page = visitor.open(f"{site}/compare?a={before.session}&b={after.session}", look)
    expect(page.locator("[data-map][data-drawn]")).to_have_count(3)
    expect(page.locator("h1")).to_contain_text(re.compile(r"Steps are .* faster than in session 1"))
    page.locator("[data-map=d]").hover(position={"x": 40, "y": 12})
    expect(page.locator("#cell")).to_contain_text("Worker (0, 0):")
    keep(page, f"compare-{look.name}")
    expect_well_made(page, site, look)


def test_a_job_leads_to_its_sessions_side_by_side(
    container: Container, site: str, visitor: Visitor
) -> None:
    analyzed(container, healthy(1), "dense-34b")
    analyzed(container, job_trace(), "dense-34b")
    analyzed(container, healthy(2), "dense-34b")
    page = visitor.open(f"{site}/jobs/dense-34b", WIDE_LIGHT)
    page.get_by_role("link", name="Compare sessions").click()
    expect(page.locator("h1")).to_contain_text("faster")
    page.get_by_role("link", name="Swap A and B").click()
    expect(page.locator("h1")).to_contain_text("slower than in session 3")
    page.get_by_label("A, before").select_option(index=2)
    page.get_by_role("button", name="Compare").click()
    expect(page.locator("h1")).to_contain_text("slower than in session 1")
    page.locator(".below a", has_text="node-").first.click()
    page.wait_for_url("**/hosts/node-*")


@in_every_look
def test_two_times_of_a_job(container: Container, site: str, visitor: Visitor, look: Look) -> None:
    fill(container)
    page = visitor.open(f"{site}/compare/times?job=llm", look)
    expect(page.locator("h1")).to_contain_text("4 sessions")
    keep(page, f"compare-times-{look.name}")
    expect_well_made(page, site, look)
    page.get_by_label("A from, UTC").fill("2020-01-01T00:00")
    page.get_by_label("A to, UTC").fill("2020-01-02T00:00")
    page.get_by_role("button", name="Compare").click()
    expect(page.locator("h1")).to_contain_text("there is nothing to compare")
