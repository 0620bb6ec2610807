"""The fleet's report, ingest health and the installation in a browser."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from playwright.sync_api import expect

from tests.e2e.expecting import WIDE_LIGHT, expect_well_made, in_every_look
from tests.e2e.looking import keep, wait_for_plots
from tests.e2e.recorded import analyzed, healthy, job_trace
from tests.integration.jobs.fleet_report.build import DAY, HOUR, session

if TYPE_CHECKING:
    from app.platform.container import Container
    from tests.e2e.visiting import Look, Visitor


def fleet(container: Container) -> None:
    """Store a week of twelve jobs, each slower than the previous one, and the week before."""
    for number in range(12):
        for day in (1, 3, 9):
            session(
                container,
                1 + number / 20,
                ago=day * DAY + number * HOUR,
                job=f"pretraining-of-a-dense-model-{number}",
                gpus=128 * 2 ** (number % 5),
                m_w=number / 12,
                m_s=1 - number / 12,
                fb_correlation=number / 24,
                context=4096 if number % 2 else 32_768,
                lost_by_cause={"slow_worker": 2.0 + number, "network": 0.5},
            )


@in_every_look
def test_the_page_of_the_fleet_s_report(
    container: Container, site: str, visitor: Visitor, look: Look
) -> None:
    fleet(container)
    page = visitor.open(f"{site}/report", look)
    expect(page.locator("h1")).to_contain_text("Stragglers cost")
    wait_for_plots(page)
    keep(page, f"report-{look.name}")
    expect_well_made(page, site, look)
    page.get_by_role("link", name="30\N{NO-BREAK SPACE}d").click()
    expect(page).to_have_url(f"{site}/report?range=30d")


def test_an_example_of_a_figure_is_one_click_away(
    container: Container, site: str, visitor: Visitor
) -> None:
    analyzed(container, healthy(1), "sparse-8b")
    stored = analyzed(container, job_trace(), "dense-34b")
    page = visitor.open(f"{site}/", WIDE_LIGHT)
    page.get_by_role("link", name="Figures", exact=True).click()
    expect(page).to_have_url(f"{site}/?tab=figures")
    page.get_by_role("link", name=re.compile("^dense-34b, session 1")).first.click()
    expect(page).to_have_url(re.compile(f"/sessions/{stored.session}"))


@in_every_look
def test_the_pages_of_ingest_and_of_the_installation(
    container: Container, site: str, visitor: Visitor, look: Look
) -> None:
    fleet(container)
    for name in ("ingest", "installation"):
        page = visitor.open(f"{site}/{name}", look)
        expect(page.locator("h1")).to_be_visible()
        keep(page, f"{name}-{look.name}")
        expect_well_made(page, site, look)
