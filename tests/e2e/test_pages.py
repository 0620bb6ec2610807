"""Each page in each window and color scheme: readable, complete, from this server alone."""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING

from playwright.sync_api import expect

from tests.e2e.expecting import expect_well_made, in_every_look
from tests.e2e.looking import keep, wait_for_figures, wait_for_plots
from tests.e2e.recorded import analyzed, healthy, job_trace
from tests.e2e.visiting import NARROW, Look
from tests.support.sessions import small_trace, store

if TYPE_CHECKING:
    from app.platform.container import Container
    from tests.e2e.visiting import Visitor


@in_every_look
def test_the_page_of_a_session(
    container: Container, site: str, visitor: Visitor, look: Look
) -> None:
    analyzed(container, healthy(1), "dense-34b")
    stored = analyzed(container, job_trace(), "dense-34b")
    page = visitor.open(f"{site}/sessions/{stored.session}", look)
    wait_for_figures(page)
    expect(page.locator("#live")).to_have_text("Live")
    keep(page, f"session-{look.name}")
    expect_well_made(page, site, look)
    expect(page).to_have_title(re.compile("^dense-34b, session 2: .*slower, worker"))
    expect(page.get_by_role("link", name="Session 1")).to_be_visible()
    if look.size != NARROW:
        # The first screen shows the slow worker, the slow steps, and the fix.
        for answer in ("h1", ".facts", "#heatmap", ".workers", ".fixes", "#step"):
            box = page.locator(answer).bounding_box()
            assert box is not None
            assert box["y"] + box["height"] <= look.size[1], answer


@in_every_look
def test_the_page_of_a_step(container: Container, site: str, visitor: Visitor, look: Look) -> None:
    stored = analyzed(container, job_trace(), "dense-34b")
    page = visitor.open(f"{site}/sessions/{stored.session}?dp=1&pp=2", look)
    wait_for_figures(page)
    step = page.evaluate("JSON.parse(document.getElementById('data').textContent).steps[3]")
    page.goto(f"{site}/sessions/{stored.session}?step={step}&dp=1&pp=2")
    wait_for_figures(page)
    expect(page.locator("#map-title")).to_contain_text(f"Step {step}: worker (0, 0) costs most")
    expect(page.locator("#mode-step")).to_have_attribute("aria-pressed", "true")
    expect(page.locator("#cell")).to_contain_text(f"in step {step}")
    expect(page.locator('.workers tr[aria-selected="true"]')).to_contain_text("(1, 2)")
    keep(page, f"session-step-{look.name}")
    expect_well_made(page, site, look)


@in_every_look
def test_the_pages_of_the_fleet_and_of_a_job(
    container: Container, site: str, visitor: Visitor, look: Look
) -> None:
    for seed in (1, 2, 3):
        analyzed(container, healthy(seed), "dense-34b")
    analyzed(container, job_trace(), "dense-34b")
    analyzed(container, healthy(4), "dense-34b-eval")
    store(container, small_trace(), job="just-sent")
    page = visitor.open(f"{site}/", look)
    expect(page.locator("h1")).to_contain_text("Stragglers cost")
    expect(page.locator("table.fleet tbody tr")).to_have_count(3)
    first = page.locator("table.fleet tbody tr").first
    expect(first).to_contain_text("dense-34b")
    # The rule for certain slow workers fires at once; without an incident the state would be
    # "Slow".
    expect(first.get_by_text("Firing", exact=True)).to_have_count(1)
    keep(page, f"fleet-{look.name}")
    expect_well_made(page, site, look)

    page.get_by_role("link", name="dense-34b", exact=True).click()
    expect(page).to_have_url(f"{site}/jobs/dense-34b")
    wait_for_plots(page)
    expect(page.locator("table.fleet tbody tr")).to_have_count(4)
    expect(page.locator("figure h2").first).to_contain_text("Slow since session 4")
    keep(page, f"job-{look.name}")
    expect_well_made(page, site, look)


@in_every_look
def test_the_page_of_an_empty_fleet(site: str, visitor: Visitor, look: Look) -> None:
    page = visitor.open(f"{site}/", look)
    panel = page.locator("#p-ddp")
    expect(panel).to_contain_text(f'paceline.attach("{site}", "my-job"')
    expect(page.locator("#p-curl")).to_be_hidden()
    keep(page, f"fleet-empty-{look.name}")
    expect_well_made(page, site, look)

    page.get_by_role("tab", name="curl").click()
    expect(page.locator("#p-curl")).to_contain_text(f"{site}/api/v1/jobs/my-job/sessions")
    expect(panel).to_be_hidden()
    expect(page).to_have_url(f"{site}/#curl")
    page.keyboard.press("ArrowLeft")
    expect(page.get_by_role("tab", name="Files")).to_be_focused()
    expect(page.locator("#p-files")).to_contain_text("paceline upload traces/")
    page.goto(f"{site}/#megatron")
    page.reload()
    expect(page.locator("#p-megatron")).to_be_visible()


def test_the_keyboard_reaches_everything(container: Container, site: str, visitor: Visitor) -> None:
    stored = analyzed(container, job_trace(), "dense-34b")
    page = visitor.open(f"{site}/sessions/{stored.session}")
    wait_for_figures(page)

    page.keyboard.press("Tab")
    expect(page.locator(".skip")).to_be_focused()

    page.locator("#step").focus()
    page.keyboard.press("Home")
    steps = page.evaluate("JSON.parse(document.getElementById('data').textContent).steps")
    expect(page).to_have_url(re.compile(rf"step={steps[0]}&"))
    page.keyboard.press("ArrowRight")
    expect(page).to_have_url(re.compile(rf"step={steps[1]}&"))
    expect(page.locator("#timeline")).to_have_attribute("data-drawn", str(steps[1]))

    page.locator("#timeline").focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator("#op-read")).to_contain_text("recorded, DP 0, stage 0")
    page.keyboard.press("ArrowDown")
    expect(page.locator("#op-read")).to_contain_text("recorded, DP 0, stage 1")
    page.keyboard.press("ArrowRight")
    first = page.locator("#op-read").inner_text()
    page.keyboard.press("ArrowRight")
    expect(page.locator("#op-read")).not_to_have_text(first)

    heading = page.locator(".workers").get_by_role("button", name="Forward")
    heading.focus()
    page.keyboard.press("Enter")
    expect(page.locator(".workers th").filter(has_text="Forward")).to_have_attribute(
        "aria-sort", "descending"
    )
    expect(page.locator(".workers tbody tr").first).to_contain_text("(0, 0)")
    page.locator(".workers tbody tr").nth(3).locator("a[data-cell]").focus()
    page.keyboard.press("Enter")
    expect(page.locator(".workers tbody tr").nth(3)).to_have_attribute("aria-selected", "true")


def test_the_theme_is_the_readers_choice_and_lasts(
    container: Container, site: str, visitor: Visitor
) -> None:
    stored = analyzed(container, job_trace(), "dense-34b")
    page = visitor.open(f"{site}/sessions/{stored.session}")
    wait_for_figures(page)

    def background() -> str:
        return str(page.evaluate("getComputedStyle(document.body).backgroundColor"))

    light = background()
    page.locator("#theme").click()
    assert background() == light, "the system's choice is light already"
    page.locator("#theme").click()
    expect(page.locator("#theme")).to_have_text("Dark theme")
    dark = background()
    assert dark != light
    page.reload()
    assert background() == dark


def test_names_that_look_like_markup_stay_text(
    container: Container, site: str, visitor: Visitor
) -> None:
    trace = small_trace()
    evil = "<img src=x onerror=alert(1)></script>&amp;"
    meta = dataclasses.replace(trace.meta, hosts=dict.fromkeys(range(trace.meta.sizes.world), evil))
    stored = analyzed(container, dataclasses.replace(trace, meta=meta), evil.replace("/", "|"))
    page = visitor.open(f"{site}/sessions/{stored.session}")
    wait_for_figures(page)
    expect(page.locator(".workers tbody tr").first).to_contain_text(evil)
    assert page.locator("img").count() == 0
    page.goto(f"{site}/")
    assert page.locator("img").count() == 0
    page.locator("table.fleet tbody td.grow a").first.click()
    expect(page.locator(".crumbs")).to_contain_text(evil.replace("/", "|"))
