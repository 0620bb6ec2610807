"""Checks and pictures of a page as a person sees it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from playwright.sync_api import Page, expect

from tests.conftest import skip_or_fail
from tests.e2e.visiting import REPOSITORY

if TYPE_CHECKING:
    from playwright.sync_api import Locator

# Folder for pictures of pages; unset: no pictures, which take time.
SCREENSHOTS: Final = os.environ.get("PACELINE_SCREENSHOTS")
CHECKS: Final = Path(__file__).with_name("checks.js")
AXE: Final = REPOSITORY / "node_modules" / "axe-core" / "axe.min.js"

# Scripts for `evaluate`, because the page's policy refuses added script elements.
_HAS_AXE: Final = "typeof axe === 'object'"
_VIOLATIONS: Final = """
(async () => {
  const found = await axe.run(document, { resultTypes: ['violations'], preload: false });
  return found.violations.flatMap(({ id, impact, nodes }) => (
    ['serious', 'critical'].includes(impact)
      ? nodes.map(({ target, html }) => `${impact} ${id}: ${target} ${html.slice(0, 160)}`)
      : []
  ));
})()
"""


def check(page: Page, name: str) -> Any:  # noqa: ANN401 - what JavaScript returns
    """Run a check of checks.js on a page."""
    return page.evaluate(f"{CHECKS.read_text()}.{name}()".partition("\n")[2])


def barriers(page: Page) -> list[str]:
    """Return the problems on a page that axe-core calls serious or critical."""
    if not AXE.exists():
        skip_or_fail("axe-core is not installed: make js")
    if not page.evaluate(_HAS_AXE):
        page.evaluate(AXE.read_text())
    found: list[str] = page.evaluate(_VIOLATIONS)
    return found


def wait_for_figures(page: Page) -> None:
    """Wait until every figure of a session's page is drawn."""
    for figure in ("#heatmap", "#strip", "#timeline"):
        seen(page.locator(figure))
        page.wait_for_selector(f"{figure}[data-drawn]")
    wait_for_plots(page)


def wait_for_plots(page: Page) -> None:
    """Wait until every figure that needs no further data is drawn."""
    # Figures of a library are drawn when they come into view.
    for figure in page.locator("[data-figure]").all():
        seen(figure)
        expect(figure).to_have_attribute("data-drawn", "")
    page.evaluate("() => scrollTo(0, 0)")


def seen(figure: Locator) -> None:
    """Scroll a figure into view, as a user does."""
    figure.evaluate("(figure) => figure.scrollIntoView({ block: 'center' })")


def keep(seen: Page | Locator, name: str) -> None:
    """Store a picture of a page, or of a part, if pictures are requested."""
    if SCREENSHOTS is None:
        return
    path = Path(SCREENSHOTS) / f"{name}.png"
    if isinstance(seen, Page):
        seen.screenshot(path=path, full_page=True)
    else:
        seen.screenshot(path=path)
