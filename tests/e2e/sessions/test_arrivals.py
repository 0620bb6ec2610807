"""The ranks that come last, on the page of a session in a browser."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from playwright.sync_api import expect

from app.analysis.synthesis.injections.computations import SlowWorker
from app.analysis.synthesis.job import JobModel
from app.analysis.synthesis.synthesize import synthesize
from app.analysis.trace.metadata import not_replayed
from app.analysis.trace.model import Sizes
from tests.e2e.expecting import WIDE_LIGHT, expect_well_made, in_every_look
from tests.e2e.looking import keep
from tests.e2e.recorded import analyzed, job_trace

if TYPE_CHECKING:
    from app.platform.container import Container
    from tests.e2e.visiting import Look, Visitor

REASON = "its sends and receives fit no pipeline schedule"


@in_every_look
def test_a_session_that_cannot_be_replayed_shows_who_comes_last(
    container: Container, site: str, visitor: Visitor, look: Look
) -> None:
    job = JobModel(Sizes(dp=16, pp=1), microbatches=4, steps=3, buckets=12)
    trace = synthesize(job, [SlowWorker((5, 0), 1.5)], seed=1).trace
    trace = replace(trace, meta=not_replayed(trace.meta, REASON))
    stored = analyzed(container, trace, "llama-8b-fsdp")
    page = visitor.open(f"{site}/sessions/{stored.session}", look)
    expect(page.locator("h1")).to_contain_text("Rank 5 comes last at 1 of 24 collectives of a step")
    expect(page.locator("h1")).to_contain_text(REASON)
    expect(page.locator("#arrivals h2").first).to_contain_text("Rank 5 comes last")
    expect(page.locator("#heatmap")).to_have_count(0)
    keep(page, f"arrivals-{look.name}")
    expect_well_made(page, site, look)


def test_a_column_of_the_map_opens_its_collective(
    container: Container, site: str, visitor: Visitor
) -> None:
    stored = analyzed(container, job_trace(), "dense-34b")
    page = visitor.open(f"{site}/sessions/{stored.session}", WIDE_LIGHT)
    columns = page.locator(".late-cells a")
    # The map is one tab stop, from which arrow keys move.
    columns.first.focus()
    page.keyboard.press("ArrowRight")
    expect(columns.nth(1)).to_be_focused()
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile(r"\?collective=\d+\.\d+#collective"))
    expect(page.locator("#collective h2")).to_have_text(re.compile("^RS 0: rank "))
    expect(page.locator("#collective tbody tr").first).to_be_visible()
    page.get_by_role("link", name="Close").click()
    expect(page.locator("#collective")).to_have_count(0)
