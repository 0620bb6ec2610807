"""When a browser paints the page of a session, also on a slow network, and shows another step."""

from __future__ import annotations

import shutil
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

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
# A slow network: 400 kbit/s, 400 ms from a request to its answer.
SLOW_BYTES_PER_S: Final = 400_000 / 8
SLOW_LATENCY_MS: Final = 400
# Notes when the sentence, the facts and the map are on the screen.
USEFUL: Final = """() => {
  const parts = ['h1', '.facts', '#heatmap :is(.first path, canvas)'];
  const look = () => {
    const isThere = performance.getEntriesByName('first-contentful-paint').length
      && parts.every((part) => document.querySelector(part)?.getBoundingClientRect().width);
    if (isThere) window.usefulAt = performance.now();
    else requestAnimationFrame(look);
  };
  requestAnimationFrame(look);
}"""
USEFUL_AT: Final = "() => window.usefulAt ?? null"
WAIT_MS: Final = 50
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
    useful_s : float
        On a slow network, the sentence, the facts and the map.
    useful_bytes : float
        What had come by then, compressed, with headers.
    """

    size: str
    first_s: float
    drawn_s: float
    step_s: float
    useful_s: float
    useful_bytes: float


def paint(url: str, pages: Mapping[str, str]) -> list[Painted]:
    """Return when pages of sessions are painted, by size; nothing without a browser."""
    program = shutil.which("chromium-headless-shell") or shutil.which("chromium")
    if program is None:
        return []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=list(ARGUMENTS))
        try:
            # In turns: what else the machine does is the same to all.
            found: dict[str, list[tuple[float, ...]]] = {size: [] for size in pages}
            for run in range(RUNS):
                for size, page in pages.items():
                    address = f"{url}{page}"
                    found[size].append((*_once(browser, address, run), *_slowly(browser, address)))
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
    # The timeline is fetched when it is seen.
    page.locator("#timeline").scroll_into_view_if_needed()
    page.wait_for_function(DRAWN)
    drawn_ms = page.evaluate("() => performance.now()")
    first_ms = page.evaluate(PAINTED)
    last = int(page.evaluate("() => document.querySelector('#step').max"))
    now = int(page.evaluate("() => document.querySelector('#step').value"))
    step_ms = page.evaluate(STEP, (now + 1 + run) % (last + 1))
    context.close()
    return first_ms / 1000, drawn_ms / 1000, step_ms / 1000


def _slowly(browser: Browser, address: str) -> tuple[float, int]:
    """Return after what time and how many bytes the first screen is useful on a slow network."""
    context = browser.new_context(viewport={"width": WIDTH, "height": HEIGHT})
    page = context.new_page()
    page.add_init_script(f"({USEFUL})()")
    devtools = context.new_cdp_session(page)
    devtools.send("Network.enable")
    devtools.send(
        "Network.emulateNetworkConditions",
        {
            "offline": False,
            "latency": SLOW_LATENCY_MS,
            "downloadThroughput": SLOW_BYTES_PER_S,
            "uploadThroughput": SLOW_BYTES_PER_S,
        },
    )
    # Parts of bodies, and with the last part all that came, headers too.
    parts: list[tuple[str, float, int]] = []
    whole: list[tuple[str, float, int]] = []
    for name, came in (("dataReceived", parts), ("loadingFinished", whole)):
        devtools.on(f"Network.{name}", lambda event, came=came: came.append(_came(event)))
    begun: list[float] = []
    devtools.on("Network.requestWillBeSent", lambda event: begun.append(event["timestamp"]))
    page.goto(address, wait_until="commit")
    while (useful_ms := page.evaluate(USEFUL_AT)) is None:
        page.wait_for_timeout(WAIT_MS)
    useful_s = useful_ms / 1000
    context.close()
    sizes: dict[str, int] = {}
    for request, at, length in parts:
        if at - begun[0] <= useful_s:
            sizes[request] = sizes.get(request, 0) + length
    sizes |= {request: length for request, at, length in whole if at - begun[0] <= useful_s}
    return useful_s, sum(sizes.values())


def _came(event: Mapping[str, Any]) -> tuple[str, float, int]:
    """Return of what came the request, when it was, and the bytes."""
    return event["requestId"], event["timestamp"], int(event["encodedDataLength"])


def painted_table(painted: list[Painted]) -> str:
    """Return the figures for a person."""
    if not painted:
        return "No chromium on PATH: nothing was painted."
    rows = [
        [
            one.size,
            *(f"{1000 * value:.0f} ms" for value in (one.first_s, one.drawn_s, one.step_s)),
            f"{one.useful_s:.1f} s",
            f"{one.useful_bytes / 1000:.0f} kB",
        ]
        for one in painted
    ]
    head = (
        "session",
        "first paint",
        "map and timeline drawn",
        "another step with its timeline",
        "first useful screen at 400 kbit/s",
        "its size",
    )
    return in_columns(head, rows, texts=1)
