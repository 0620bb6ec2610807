"""Properties that on-call engineers rely on: sums, silent jobs, requests to users, begin times."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import TYPE_CHECKING

from playwright.sync_api import expect

from app.analysis.report.session_verdict import SuspectedCause
from app.platform.tasks.runs import claim
from app.sessions.analyze import analyze_session
from tests.e2e.alerting import act, let_it_fire
from tests.e2e.recorded import analyzed, healthy, job_trace
from tests.e2e.visiting import LOOKS, NARROW, WIDE
from tests.support.sessions import refused_trace, small_trace, store

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from app.platform.container import Container
    from tests.e2e.alerting import Place
    from tests.e2e.visiting import Visitor


def jobs(page: Page, table: str = "jobs") -> list[str]:
    """Return the names of a table's jobs in order."""
    return page.locator(f"table.{table} tbody a[href*='/jobs/']").all_inner_texts()


def test_silent_jobs_are_listed_apart_and_are_not_in_the_sum(
    place: Place, visitor: Visitor
) -> None:
    container = place.alerting.container
    analyzed(container, small_trace(), "lives")
    analyzed(container, job_trace(), "ended")
    place.alerting.silent("ended", timedelta(hours=30))
    page = visitor.open(f"{place.url}/")

    assert jobs(page) == ["lives"]
    expect(page.locator("h1")).to_contain_text(re.compile(r"of 4\sGPUs"))
    expect(page.locator("#silent")).to_contain_text("1 job is silent: no session in the last 24")
    expect(page.locator("#silent")).to_contain_text("ended")
    page.get_by_role("link", name="7\N{NO-BREAK SPACE}d").click()
    expect(page.locator("h1")).to_contain_text(re.compile(r"of 68\sGPUs"))
    expect(page.locator("#silent")).to_have_count(0)


def test_jobs_are_sorted_by_what_they_lose_each_hour(
    container: Container, site: str, visitor: Visitor
) -> None:
    # One job loses most in its session, because of longer steps; the other one in an hour, because
    # of more GPUs.
    analyzed(container, small_trace(), "small")
    analyzed(container, job_trace(), "large")
    page = visitor.open(f"{site}/")
    lost = page.locator("table.jobs tbody tr").evaluate_all(
        "rows => rows.map(row => Number(row.querySelector('td:nth-child(4)').textContent))"
    )
    assert jobs(page) == ["large", "small"]
    assert lost == sorted(lost, reverse=True)
    page.get_by_role("link", name="Lost each hour").click()
    expect(page).to_have_url(re.compile("sort=lost"))
    expect(page.locator("table.jobs tbody tr").first).to_contain_text("small")


def test_a_silent_job_borrows_no_verdict_and_hides_no_other_incident(
    place: Place, visitor: Visitor
) -> None:
    session = let_it_fire(place)
    page = visitor.open(f"{place.url}/incidents")
    rows = page.locator("[aria-label='Open incidents'] tbody tr")
    expect(rows.first).to_contain_text("Slow worker")
    before = rows.count()
    place.alerting.silent("dense-34b")
    page.reload()

    expect(rows).to_have_count(before + 1)
    silent = rows.filter(has_text="No data")
    expect(silent).to_contain_text("none")
    silent.get_by_role("link").first.click()
    expect(page.locator("#chosen")).to_contain_text("No session since session 3")
    expect(page.locator("#chosen")).not_to_contain_text("Slowdown")
    page = visitor.open(f"{place.url}/sessions/{session}")
    expect(page.get_by_role("button", name="Acknowledge")).to_have_count(1)
    slider = page.locator("#step").bounding_box()
    assert slider is not None
    assert slider["y"] + slider["height"] < WIDE[1], "the step is chosen in the first screen"


def test_the_page_of_a_job_has_its_incidents_and_they_are_taken_there(
    place: Place, visitor: Visitor
) -> None:
    let_it_fire(place)
    for look in LOOKS:
        page = visitor.open(f"{place.url}/jobs/dense-34b", look)
        expect(page.locator("main")).to_contain_text("Firing")
        expect(page.get_by_role("link", name=re.compile("Slow worker"))).not_to_have_count(0)
        box = page.get_by_role("button", name="Acknowledge").bounding_box()
        assert box is not None
        assert box["y"] < (NARROW if look.size == NARROW else WIDE)[1]
    page.get_by_role("button", name="Acknowledge").click()
    expect(page.locator("main")).to_contain_text("Acknowledged")


def test_no_name_is_asked_for_where_nothing_can_be_done(place: Place, visitor: Visitor) -> None:
    # After one session the incident is only pending.
    stage = SuspectedCause("stage_imbalance", ("stage 3",), confidence=0.6, contribution=0.5)
    place.alerting.session(1.14, stage, job="speech-3b")
    page = visitor.open(f"{place.url}/incidents")

    expect(page.locator("[aria-label='Open incidents'] tbody tr")).to_contain_text("Pending")
    expect(page.get_by_role("button", name="Acknowledge")).to_have_count(0)
    asked = page.get_by_placeholder("your name").filter(visible=True)
    expect(asked).to_have_count(1)
    act(page, "Resolve…")
    act(page, "Resolve")
    expect(page.locator("#chosen, h1").first).not_to_contain_text("Pending")
    [incident] = place.alerting.incidents()
    over = visitor.open(f"{place.url}/incidents/{incident.id}")
    expect(over.locator("#chosen")).to_contain_text("Resolved")
    expect(over.get_by_role("button", name="Reopen")).to_be_enabled()


def test_the_previous_session_is_not_the_discarded_one(
    container: Container, site: str, visitor: Visitor
) -> None:
    analyzed(container, healthy(1), "llm")
    discarded = store(container, refused_trace())
    held = claim(container, discarded.run)
    assert held is not None
    analyze_session(container, held)
    latest = analyzed(container, job_trace(), "llm")
    page = visitor.open(f"{site}/sessions/{latest.session}")

    expect(page.locator(".verdict")).to_contain_text("was 1.0")
    expect(page.locator(".verdict")).not_to_contain_text("nothing to compare with")


def test_every_session_of_a_job_is_a_link_away(place: Place, visitor: Visitor) -> None:
    analyzed(place.alerting.container, small_trace(), "llm")
    for _ in range(60):
        store(place.alerting.container, small_trace())
    page = visitor.open(f"{place.url}/jobs/llm")
    expect(page.locator("main")).to_contain_text("Sessions 1 to 50 of 61")
    page.get_by_role("link", name="Next").click()
    expect(page.locator("main")).to_contain_text("Sessions 51 to 61 of 61")


def test_few_workers_are_said_once_to_recover_half_of_the_lost_time(
    container: Container, site: str, visitor: Visitor
) -> None:
    stored = analyzed(container, job_trace(), "dense-34b")
    page = visitor.open(f"{site}/sessions/{stored.session}")
    section = page.get_by_role("region", name="What recovers the lost time")

    expect(section.locator("h2")).to_contain_text("1 worker")
    expect(section).to_contain_text("Half of the lost time")
    expect(section.get_by_role("row", name=re.compile("Half of the lost time"))).to_contain_text(
        "1 worker"
    )
