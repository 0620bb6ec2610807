"""From an empty fleet to the slow operations, on a whole installation."""

from __future__ import annotations

import json
import re
from functools import cache
from typing import TYPE_CHECKING

import httpx
from playwright.sync_api import expect

from app.analysis.synthesis.injections.computations import SlowWorker
from app.analysis.synthesis.job import JobModel
from app.analysis.synthesis.synthesize import synthesize
from app.analysis.trace.encode import to_parquet
from app.analysis.trace.metadata import metadata_document
from app.analysis.trace.model import Sizes
from tests.e2e.looking import keep, wait_for_figures

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from app.analysis.trace.model import Trace
    from tests.e2e.visiting import Visitor

SLOW = (2, 1)
# Margins in pixels: around the cells of the map, and left and right of the bars of the strip.
CELLS = (48, 28, 96, 32)


@cache
def slow_worker_trace() -> Trace:
    """Return a session in which worker (2, 1) computes 2.2 times as slowly as its peers."""
    job = JobModel(Sizes(dp=4, pp=4, tp=2), microbatches=8, steps=14)
    return synthesize(job, [SlowWorker(SLOW, 2.2)], seed=5).trace


def upload(site: str, job: str, trace: Trace) -> str:
    """Send a trace as a training job would and return its session."""
    response = httpx.post(
        f"{site}/api/v1/jobs/{job}/sessions",
        files={
            "meta": ("meta.json", json.dumps(metadata_document(trace.meta))),
            "trace": ("trace.parquet", to_parquet(trace)),
        },
    )
    assert response.status_code == 202, response.text
    return str(response.json()["session"])


def mark(page: Page) -> None:
    """Mark the page, so that a reload can be detected."""
    page.evaluate("window.marked = true")


def is_marked(page: Page) -> bool:
    return bool(page.evaluate("window.marked === true"))


def center(page: Page, dp: int, pp: int) -> tuple[float, float]:
    """Return the center of a worker's cell in the window."""
    left, top, right, bottom = CELLS
    box = page.locator("#heatmap").bounding_box()
    assert box is not None
    width, height = box["width"] - left - right, box["height"] - top - bottom
    return box["x"] + left + (dp + 0.5) * width / 4, box["y"] + top + (pp + 0.5) * height / 4


def test_from_an_empty_fleet_to_the_slow_operations(installation: str, visitor: Visitor) -> None:
    page = visitor.open(f"{installation}/")
    expect(page.locator("h1")).to_contain_text("No job is connected yet")
    expect(page.locator("#p-ddp")).to_contain_text(f'paceline.attach("{installation}"')
    expect(page.locator("#live")).to_have_text("Live")
    keep(page, "fleet-empty-wide-light")
    mark(page)

    session = upload(installation, "dense-llm", slow_worker_trace())

    row = page.locator(f'tr[data-session="{session}"]')
    expect(row).to_have_attribute("data-status", "analyzed")
    assert is_marked(page), "the report must appear without a reload"
    expect(row).to_contain_text("Slow worker")
    expect(page).to_have_title(re.compile(r"^Fleet: 1 of 1\sjob slow"))

    row.get_by_role("link", name="×").click()
    wait_for_figures(page)
    expect(page.locator("h1")).to_contain_text(": worker (2, 1)")
    expect(page.locator("#map-title")).to_contain_text("Worker (2, 1) alone explains")

    page.mouse.click(*center(page, *SLOW))
    expect(page).to_have_url(re.compile(r"\?dp=2&pp=1$"))
    expect(page.locator("#cell")).to_contain_text("Worker (2, 1)")
    expect(page.locator('.workers tr[aria-selected="true"]')).to_contain_text("(2, 1)")

    strip = page.locator("#strip").bounding_box()
    assert strip is not None
    left, _, right, _ = CELLS
    bar = (strip["width"] - left - right) / 14
    page.mouse.click(strip["x"] + left + 5.5 * bar, strip["y"] + strip["height"] / 2)
    step = page.evaluate("JSON.parse(document.getElementById('data').textContent).steps[5]")
    expect(page).to_have_url(re.compile(rf"step={step}"))
    expect(page).to_have_title(re.compile(f"^Step {step} of dense-llm, session 1"))
    expect(page.locator("#map-title")).to_contain_text(f"Step {step}: worker (2, 1) costs most")
    expect(page.locator("#timeline")).to_have_attribute("data-drawn", str(step))
    expect(page.locator("#timeline-title")).to_contain_text(f"Step {step} took")

    # The lane of worker (2, 1): DP rank 2 begins below 8 lanes and two gaps, and stage 1 is its
    # second lane.
    page.locator("#timeline").scroll_into_view_if_needed()
    box = page.locator("#timeline").bounding_box()
    assert box is not None
    lane_px, rank_gap_px, top_px = 14, 8, 24
    lower_half = top_px + 9 * lane_px + 2 * rank_gap_px + 0.7 * lane_px
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + lower_half)
    expect(page.locator("#op-read")).to_contain_text("recorded, DP 2, stage 1")
    said = page.locator("#op-read").inner_text()
    found = re.search(r"([\d.]+)× ideal", said)
    assert found is not None, said
    assert float(found[1]) > 1.5

    page.go_back()
    expect(page.locator("#map-title")).to_contain_text("alone explains")
    expect(page).not_to_have_url(re.compile("step="))


def test_a_page_that_waits_becomes_the_report_without_a_reload(
    installation: str, visitor: Visitor
) -> None:
    page = visitor.open(f"{installation}/")
    expect(page.locator("#live")).to_have_text("Live")
    mark(page)
    sessions = [
        upload(
            installation,
            f"burst-{number}",
            synthesize(JobModel(Sizes(dp=2, pp=2), microbatches=4, steps=12), seed=number).trace,
        )
        for number in range(3)
    ]
    for session in sessions:
        expect(page.locator(f'tr[data-session="{session}"]')).to_have_attribute(
            "data-status", "analyzed"
        )
    assert is_marked(page)


def test_two_tabs_share_one_stream_and_show_the_same(installation: str, visitor: Visitor) -> None:
    first = visitor.open(f"{installation}/")
    expect(first.locator("#live")).to_have_text("Live")
    second = first.context.new_page()
    second.goto(f"{installation}/")
    expect(second.locator("#live")).to_have_text("Live")

    def streams() -> float:
        text = httpx.get(f"{installation}/metrics").text
        found = re.search(r"^paceline_event_streams ([\d.]+)$", text, re.MULTILINE)
        assert found is not None
        return float(found[1])

    assert streams() == 1
    session = upload(
        installation,
        "shared",
        synthesize(JobModel(Sizes(dp=2, pp=2), microbatches=4, steps=12), seed=9).trace,
    )
    for page in (first, second):
        expect(page.locator(f'tr[data-session="{session}"]')).to_have_attribute(
            "data-status", "analyzed"
        )
