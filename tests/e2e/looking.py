"""What a person sees on a page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from playwright.sync_api import expect

from tests.e2e.visiting import REPOSITORY

if TYPE_CHECKING:
    from playwright.sync_api import Page

SCREENSHOTS: Final = REPOSITORY / "artifacts" / "screenshots"
CHECKS: Final = Path(__file__).with_name("checks.js")


def check(page: Page, name: str) -> Any:  # noqa: ANN401 - what JavaScript returns
    """Run a check of checks.js on a page."""
    return page.evaluate(f"{CHECKS.read_text()}.{name}()".partition("\n")[2])


def wait_for_figures(page: Page) -> None:
    """Wait until every figure of a session's page is drawn."""
    for figure in ("#heatmap", "#strip", "#timeline"):
        page.wait_for_selector(f"{figure}[data-drawn]")
    wait_for_plots(page)


def wait_for_plots(page: Page) -> None:
    """Wait until every figure that needs nothing more from the server is drawn."""
    # By a locator: functions of one's own to wait for need eval, which the policy refuses.
    expect(page.locator("[data-figure]:not([data-drawn])")).to_have_count(0)


def keep(page: Page, name: str) -> None:
    """Keep a picture of a whole page as a build artifact."""
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=SCREENSHOTS / f"{name}.png", full_page=True)
