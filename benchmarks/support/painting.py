"""When a browser paints the page of a session, and shows another step."""

from __future__ import annotations

import shutil
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from playwright.sync_api import sync_playwright

from benchmarks.support.weighing import in_columns

if TYPE_CHECKING:
    from collections.abc import Mapping

    from playwright.sync_api import Browser

RUNS: Final = 5
WIDTH, HEIGHT = 1440, 900
# Without these the browser calls home.
ARGUMENTS: Final = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
DRAWN: Final = """() => document.querySelector('#heatmap[data-drawn]')
  && document.querySelector('#timeline[data-drawn]') !== null"""
PAINTED: Final = (
    """() => performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? 0"""
)
# Another step by the native range, until its map and its timeline stand.
STEP: Final = """async (at) => {
  const range = document.querySelector('#step');
  const timeline = document.querySelector('#timeline');
  const start = performance.now();
  range.value = at;
  range.dispatchEvent(new Event('input', { bubbles: true }));
  range.dispatchEvent(new Event('change', { bubbles: true }));
  const step = () => document.querySelector('#step-read').textContent.match(/Step (-?\\d+)/)[1];
  const frame = () => new Promise((resolve) => { requestAnimationFrame(resolve); });
  do await frame(); while (timeline.dataset.drawn !== step());
  return performance.now() - start;
}"""


@dataclass(frozen=True, slots=True)
class Painted:
    """When a page is painted; medians, seconds after it was asked for.

    Parameters
    ----------
    size : str
    first_s, drawn_s : float
        The first words or figure, and map and timeline.
    step_s : float
        From another step being chosen to its timeline.
    """

    size: str
    first_s: float
    drawn_s: float
    step_s: float


def paint(url: str, pages: Mapping[str, str]) -> list[Painted]:
    """Return when pages of sessions are painted, by size; nothing without a browser."""
    program = shutil.which("chromium")
    if program is None:
        return []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=list(ARGUMENTS))
        try:
            # In turns: what else the machine does is the same to all.
            found: dict[str, list[tuple[float, float, float]]] = {size: [] for size in pages}
            for run in range(RUNS):
                for size, page in pages.items():
                    found[size].append(_once(browser, f"{url}{page}", run))
        finally:
            browser.close()
    return [
        Painted(size, *(statistics.median(column) for column in zip(*times, strict=True)))
        for size, times in found.items()
    ]


def _once(browser: Browser, address: str, run: int) -> tuple[float, float, float]:
    context = browser.new_context(viewport={"width": WIDTH, "height": HEIGHT})
    page = context.new_page()
    page.goto(address)
    page.wait_for_function(DRAWN)
    drawn_ms = page.evaluate("() => performance.now()")
    first_ms = page.evaluate(PAINTED)
    last = int(page.evaluate("() => document.querySelector('#step').max"))
    now = int(page.evaluate("() => document.querySelector('#step').value"))
    step_ms = page.evaluate(STEP, (now + 1 + run) % (last + 1))
    context.close()
    return first_ms / 1000, drawn_ms / 1000, step_ms / 1000


def painted_table(painted: list[Painted]) -> str:
    """Return the figures for a person."""
    if not painted:
        return "No chromium on PATH: nothing was painted."
    rows = [
        [one.size, *(f"{1000 * value:.0f} ms" for value in (one.first_s, one.drawn_s, one.step_s))]
        for one in painted
    ]
    head = ("session", "first paint", "map and timeline drawn", "another step with its timeline")
    return in_columns(head, rows, texts=1)
