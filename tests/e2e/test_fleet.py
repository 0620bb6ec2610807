"""The page of the fleet: filters, the archive, and use without scripts."""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING

from playwright.sync_api import expect
from sqlalchemy import update

from app.analysis.synthesis.injections.computations import UnevenMicrobatches
from app.analysis.synthesis.job import JobModel
from app.analysis.synthesis.synthesize import synthesize
from app.analysis.trace.model import Sizes
from app.sessions.models.tables import Session
from tests.e2e.destroying import destroy
from tests.e2e.recorded import analyzed, healthy, job_trace, on_long_hosts
from tests.support.sessions import small_trace

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from app.platform.container import Container
    from tests.e2e.visiting import Visitor


def test_the_fleet_filters_and_its_address_remembers(
    container: Container, site: str, visitor: Visitor
) -> None:
    analyzed(container, job_trace(), "dense-34b")
    analyzed(container, healthy(1), "sparse-8b")
    page = visitor.open(f"{site}/")
    rows = page.locator("table.fleet tbody tr")
    expect(rows).to_have_count(2)
    page.get_by_role("link", name="Slow 1").click()
    expect(rows).to_have_count(1)
    page.reload()
    expect(rows).to_have_count(1)
    expect(rows).to_contain_text("dense-34b")
    page.get_by_role("link", name="Job", exact=True).click()
    expect(page).to_have_url(f"{site}/?show=slow&sort=job")
    expect(page.locator("th[aria-sort]")).to_have_text("Job")
    expect(rows).to_have_count(1)
    page.get_by_role("link", name="All 2").click()
    page.get_by_role("searchbox").fill("sparse")
    expect(rows).to_have_count(1)
    expect(rows).to_contain_text("sparse-8b")
    expect(page.locator("h1")).to_contain_text("1\N{NO-BREAK SPACE}matching job")
    page.get_by_role("link", name="Slowdown").click()
    expect(page).to_have_url(f"{site}/?q=sparse&sort=-slowdown")
    expect(page.get_by_role("searchbox")).to_have_value("sparse")
    expect(rows).to_have_count(1)
    page.get_by_role("link", name="7\N{NO-BREAK SPACE}d").click()
    expect(page).to_have_url(f"{site}/?q=sparse&sort=-slowdown&range=7d")
    expect(page.locator(".range [aria-current]")).to_have_text("7\N{NO-BREAK SPACE}d")
    expect(rows).to_have_count(1)
    page.get_by_role("button", name="Own…").click()
    page.locator("#own [name=from]").fill("2020-01-01T00:00")
    page.get_by_role("button", name="Show", exact=True).click()
    expect(page).to_have_url(
        re.compile(r"\?q=sparse&sort=-slowdown&from=20\d\d-\d\d-\d\dT\d\d%3A\d\dZ$")
    )
    expect(rows).to_have_count(1)
    page.get_by_role("searchbox").fill("nothing like it")
    expect(page.locator("#nothing")).to_be_visible()


def test_labels_are_printed_on_demand_and_a_click_on_one_filters(
    container: Container, site: str, visitor: Visitor
) -> None:
    for name, team in (("dense-34b", "moe"), ("sparse-8b", "vision")):
        stored = analyzed(container, small_trace(), name)
        with container.uow() as tx:
            tx.session.execute(
                update(Session).where(Session.id == stored.session).values(labels={"team": team})
            )
    page = visitor.open(f"{site}/")
    rows, chips = page.locator("table.jobs tbody tr"), page.locator("table.jobs .chip")
    expect(rows).to_have_count(2)
    expect(chips).to_have_count(0)
    page.get_by_role("link", name="Labels", exact=True).click()
    expect(chips).to_have_count(2)
    page.get_by_role("link", name="team=vision").click()
    expect(rows).to_have_count(1)
    expect(rows).to_contain_text("sparse-8b")
    expect(page.locator("h1")).to_contain_text("1\N{NO-BREAK SPACE}matching job")
    page.get_by_role("searchbox").fill("dense")
    expect(page).to_have_url(re.compile("labels=1"))
    expect(rows).to_have_count(0)
    page.get_by_role("link", name="Clear").click()
    expect(rows).to_have_count(2)
    page.get_by_role("link", name="Hide labels").click()
    expect(chips).to_have_count(0)


# Returns the table's rows that are higher than one line.
_HIGHER = """
(table) => {
  const line = parseFloat(getComputedStyle(document.documentElement).getPropertyValue('--row'));
  return [...table.tBodies[0].rows]
    .filter((row) => row.getBoundingClientRect().height > line + 1)
    .map((row) => row.innerText);
}
"""


def test_every_job_and_every_session_is_one_line_and_shows_whole_where_it_is_pointed_at(
    container: Container, site: str, visitor: Visitor
) -> None:
    """Long names are cut in a wide table, and shown whole in a tooltip."""
    uneven = JobModel(Sizes(dp=8, pp=1, tp=1), microbatches=4, steps=16, name="dense-9b")
    trace = synthesize(uneven, [UnevenMicrobatches(more=2, dp=0)], seed=3).trace
    name = "dense-34b-continued-pretraining-with-long-context"
    analyzed(container, job_trace(), name)
    stored = analyzed(container, on_long_hosts(trace), "dense-9b")
    owner = {"owner": "foundation-models-and-evaluation"}
    with container.uow() as tx:
        tx.session.execute(update(Session).where(Session.id == stored.session).values(labels=owner))
    page = visitor.open(f"{site}/")
    jobs = page.locator("table.jobs")
    expect(jobs.locator("tbody tr")).to_have_count(2)
    assert jobs.evaluate(_HIGHER) == []
    cause = jobs.locator("td.cause", has_text="Uneven numbers of microbatches")
    expect(cause).to_have_attribute("title", re.compile(r"^Uneven numbers of microbatches \d+"))
    expect(page.get_by_role("link", name=name)).to_have_attribute("title", name)
    for job in (name, "dense-9b"):
        page.goto(f"{site}/jobs/{job}")
        sessions = page.locator("table.sessions")
        expect(sessions.locator("tbody tr")).to_have_count(1)
        assert sessions.evaluate(_HIGHER) == []
        place = sessions.locator("td.place-of")
        assert place.get_attribute("title") == place.inner_text()
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_a_view_is_saved_opened_by_its_link_renamed_and_deleted(
    container: Container, site: str, visitor: Visitor
) -> None:
    analyzed(container, job_trace(), "dense-34b")
    analyzed(container, healthy(1), "sparse-8b")
    page = visitor.open(f"{site}/?q=dense&sort=job")
    bar, saved = page.locator("#views"), page.get_by_role("navigation", name="Saved views")
    bar.get_by_role("button", name="Save this view…").click()
    bar.get_by_label("Name").fill("dense ones")
    bar.get_by_role("button", name="Save view").click()
    expect(saved.get_by_role("link")).to_have_text(["dense ones"])
    expect(saved.get_by_role("link")).to_have_attribute("aria-current", "true")
    link = bar.get_by_role("link", name="Link to share").get_attribute("href")
    page.goto(f"{site}/")
    expect(page.locator("table.jobs tbody tr")).to_have_count(2)
    saved.get_by_role("link", name="dense ones").click()
    expect(page.locator("table.jobs tbody tr")).to_have_count(1)
    page.goto(f"{site}{link}")
    expect(page).to_have_url(f"{site}/?q=dense&sort=job")
    bar.get_by_role("button", name="Rename…").click()
    bar.get_by_label("Name").fill("the dense")
    bar.get_by_role("button", name="Rename view").click()
    expect(saved.get_by_role("link")).to_have_text(["the dense"])
    destroy(page, bar.get_by_role("button", name="Delete the view the dense"), "Delete view")
    expect(saved).to_have_count(0)


def test_jobs_of_the_fleet_are_archived_renamed_and_deleted(
    container: Container, site: str, visitor: Visitor
) -> None:
    for name in ("ended", "misnamed", "stays"):
        analyzed(container, small_trace(), name)
    page = visitor.open(f"{site}/?sort=job")
    rows, bar = page.locator("table.jobs tbody tr"), page.get_by_role("region", name="Selected")
    expect(bar).to_be_hidden()
    page.get_by_label("Select ended").check()
    bar.get_by_role("button", name="Archive").click()
    expect(rows).to_have_count(2)
    expect(bar).to_be_hidden()
    page.get_by_label("Select misnamed").check()
    bar.get_by_role("button", name="Rename…").click()
    bar.get_by_label("Name").fill("stays")
    bar.get_by_role("button", name="Rename", exact=True).click()
    expect(bar.get_by_role("alert")).to_contain_text("There is a job stays already.")
    visitor.expects("409")
    bar.get_by_role("button", name="Rename…").click()
    bar.get_by_label("Name").fill("named")
    bar.get_by_role("button", name="Rename", exact=True).click()
    expect(rows.first).to_contain_text("named")
    page.get_by_role("link", name="Archive").click()
    expect(rows).to_have_count(1)
    page.get_by_label("Select ended").check()
    destroy(page, bar.get_by_role("button", name="Delete…"), "Delete job", typed="ended")
    expect(page.locator("h1")).to_have_text("The archive is empty")


def test_the_fleet_works_without_scripts(container: Container, site: str, browser: Browser) -> None:
    analyzed(container, job_trace(), "dense-34b")
    analyzed(container, healthy(1), "sparse-8b")
    with contextlib.closing(browser.new_context(java_script_enabled=False)) as context:
        page = context.new_page()
        page.goto(f"{site}/?sort=job")
        page.get_by_role("searchbox").fill("dense")
        page.get_by_role("button", name="Search").click()
        expect(page.locator("table.jobs tbody tr")).to_have_count(1)
        assert "sort=job" in page.url
        assert "q=dense" in page.url


def test_a_note_is_a_mark_of_its_job(container: Container, site: str, visitor: Visitor) -> None:
    analyzed(container, healthy(1), "dense-34b")
    analyzed(container, job_trace(), "dense-34b")
    page = visitor.open(f"{site}/jobs/dense-34b")
    page.get_by_label("What happened").fill("image 2026.11.3")
    page.get_by_label("Kind").select_option("deployment")
    page.get_by_label("As", exact=True).last.fill("Kim")
    page.get_by_role("button", name="Add note").click()
    marks = page.locator("table.marks")
    expect(marks).to_contain_text("image 2026.11.3")
    expect(marks).to_contain_text("Kim")
    expect(page.locator("figure [data-figure][data-drawn]").first).to_be_visible()
