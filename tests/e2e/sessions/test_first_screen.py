"""The first screen of a session: its content, and the data that it loads."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from playwright.sync_api import expect

from app.sessions.read import get_session
from tests.e2e.looking import check, seen
from tests.e2e.recorded import analyzed, job_trace
from tests.e2e.visiting import LOOKS, NARROW, Look

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from app.platform.container import Container
    from tests.e2e.visiting import Visitor

PHONE = Look("narrow-light", NARROW, "light")

# All words within the window, including those in drawings.
VISIBLE_WORDS = """() => {
  const words = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const range = document.createRange();
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (element.closest('script, noscript') || !element.checkVisibility()) continue;
    range.selectNodeContents(walker.currentNode);
    const box = range.getBoundingClientRect();
    const isSeen = element.getBoundingClientRect().width > 1 && box.top < innerHeight;
    if (isSeen && box.bottom > 0) words.push(walker.currentNode.data);
  }
  return [document.title, ...words].join('\\n');
}"""


def visible_words(page: Page) -> str:
    words: str = page.evaluate(VISIBLE_WORDS)
    return words


def slowdowns(words: str) -> set[str]:
    """Return the numbers that are written as a slowdown, including exact ones in a map."""
    return set(re.findall(r"\b\d+\.\d{2,}(?=×|$)", words, re.MULTILINE))


def plotly_requests(visitor: Visitor) -> list[str]:
    return [url for url in visitor.requested if "plotly" in url]


def test_the_first_screen_has_one_number_for_the_slowdown(
    container: Container, site: str, visitor: Visitor
) -> None:
    stored = analyzed(container, job_trace(), "dense-34b")
    with container.reading() as tx:
        verdict = get_session(tx, stored.session, container.settings).row.headline
    assert verdict is not None
    page = visitor.open(f"{site}/sessions/{stored.session}")
    page.wait_for_selector("#heatmap[data-drawn]")
    page.wait_for_selector("#strip[data-drawn]")
    words = visible_words(page)
    # Other slowdowns on the page are those of a worker's computing, and of its peers.
    of_the_job = {one for one in slowdowns(words) if abs(float(one) / verdict.slowdown - 1) < 0.06}
    assert of_the_job == {f"{verdict.slowdown:.2f}"}
    assert f"{verdict.slowdown:.2f}×" in page.title()
    hint = page.locator(".facts dd").first.get_attribute("title")
    assert hint is not None
    assert f"{verdict.slowdown:.3f}×" in hint


def test_exact_figures_open_by_keyboard_and_by_a_link_and_are_forgotten(
    container: Container, site: str, visitor: Visitor
) -> None:
    stored = analyzed(container, job_trace(), "dense-34b")
    page = visitor.open(f"{site}/sessions/{stored.session}")
    page.wait_for_selector("#heatmap[data-drawn]")
    published = page.get_by_role("rowheader", name="S, as published")
    figure = page.locator(".workers .figure").first
    expect(published).to_be_hidden()
    expect(figure).to_have_css("width", "1px")
    page.locator("#exact summary").focus()
    page.keyboard.press("Enter")
    expect(published).to_be_visible()
    expect(figure).not_to_have_css("width", "1px")
    expect(page.locator("#heatmap .value").first).to_have_text(re.compile(r"^\d\.\d{3}$"))
    expect(page.locator("#cell b").last).to_have_text(re.compile(r"^\d\.\d{3}×$"))
    page.reload()
    page.wait_for_selector("#heatmap[data-drawn]")
    expect(published).to_be_hidden()
    page.goto(f"{site}/sessions/{stored.session}?exact")
    expect(published).to_be_visible()
    phone = visitor.open(f"{site}/sessions/{stored.session}?exact", PHONE)
    expect(phone.get_by_role("rowheader", name="S, as published")).to_be_visible()
    assert check(phone, "overflow") <= 0


def test_nothing_loads_a_chart_library_before_its_chart_is_seen(
    container: Container, site: str, visitor: Visitor
) -> None:
    stored = analyzed(container, job_trace(), "dense-34b")
    page = visitor.open(f"{site}/sessions/{stored.session}")
    page.wait_for_selector("#strip[data-drawn]")
    page.wait_for_load_state("networkidle")
    assert plotly_requests(visitor) == []
    scatter = page.locator("[data-figure=scatter]")
    expect(scatter).to_contain_text("loads 1.2\N{NO-BREAK SPACE}MB when it comes into view")
    before = scatter.bounding_box()
    seen(scatter)
    expect(scatter).to_have_attribute("data-drawn", "")
    after = scatter.bounding_box()
    assert before is not None
    assert after is not None
    assert (before["width"], before["height"]) == (after["width"], after["height"])
    assert len(plotly_requests(visitor)) == 1


def test_pages_without_a_chart_load_no_chart_library(
    container: Container, site: str, visitor: Visitor
) -> None:
    # Two sessions, because only two can be compared.
    for _ in range(2):
        analyzed(container, job_trace(), "dense-34b")
    for address in ("/", "/hosts", "/report", "/incidents", "/plans", "/compare?job=dense-34b"):
        page = visitor.open(f"{site}{address}")
        page.wait_for_load_state("networkidle")
        page.close()
    assert plotly_requests(visitor) == []
    # The chart of a job's history loads a library last, and shows that it is loading.
    page = visitor.open(f"{site}/healthz")
    page.route("**/plotly.min.js", lambda _: None)
    page.goto(f"{site}/jobs/dense-34b")
    history = page.locator("[data-figure=history]")
    expect(history).to_contain_text("Chart: loading 1.2\N{NO-BREAK SPACE}MB")
    # The lines are part of the page.
    expect(history.locator(".first text").first).to_contain_text("slowdown")
    expect(history.locator(".first .dot").first).to_be_attached()


def test_without_the_chart_library_the_page_says_so_and_shows_the_rest(
    container: Container, site: str, visitor: Visitor
) -> None:
    stored = analyzed(container, job_trace(), "dense-34b")
    page = visitor.open(f"{site}/healthz")
    visitor.expects("ERR_FAILED")
    page.route("**/plotly.min.js", lambda route: route.abort())
    page.goto(f"{site}/sessions/{stored.session}")
    expect(page.locator("h1")).to_contain_text("worker (0, 0)")
    expect(page.locator("#heatmap")).to_have_attribute("data-drawn", "")
    expect(page.locator("#strip .sel")).to_have_count(1)
    scatter = page.locator("[data-figure=scatter]")
    seen(scatter)
    expect(scatter).to_contain_text("The chart did not load. Its data is under CSV.")
    page.unroute("**/plotly.min.js")
    scatter.get_by_role("button", name="Load it again").click()
    expect(scatter).to_have_attribute("data-drawn", "")


def test_the_map_comes_with_the_first_response(
    container: Container, site: str, visitor: Visitor
) -> None:
    stored = analyzed(container, job_trace(), "dense-34b")
    page = visitor.open(f"{site}/healthz")
    visitor.expects("ERR_FAILED")
    page.route("**/*.js", lambda route: route.abort())
    page.goto(f"{site}/sessions/{stored.session}")
    cells = page.locator("#heatmap .first path")
    expect(cells.first).to_be_visible()
    drawn = sum((path.get_attribute("d") or "").count("M") for path in cells.all())
    assert drawn == 16
    colors = {path.get_attribute("fill") for path in cells.all()}
    assert "var(--s-150)" in colors


def test_on_a_phone_the_best_fix_is_within_two_screens(
    container: Container, site: str, visitor: Visitor
) -> None:
    stored = analyzed(container, job_trace(), "dense-34b")
    page = visitor.open(f"{site}/sessions/{stored.session}", PHONE)
    page.wait_for_selector("#heatmap[data-drawn]")
    assert LOOKS[0] != PHONE
    ends = []
    for part in (".facts", "#heatmap", ".fixes", ".workers", "#strip"):
        box = page.locator(part).bounding_box()
        assert box is not None
        ends.append(box["y"] + box["height"])
    assert ends == sorted(ends)
    fixes = ends[2]
    assert fixes <= 2 * PHONE.size[1]


def test_a_timeline_loads_when_it_is_seen_and_again_where_it_did_not(
    container: Container, site: str, visitor: Visitor
) -> None:
    stored = analyzed(container, job_trace(), "dense-34b")
    page = visitor.open(f"{site}/healthz")
    visitor.expects("ERR_FAILED")
    page.set_viewport_size({"width": 1440, "height": 600})
    page.route("**/timeline?*", lambda route: route.abort())
    page.goto(f"{site}/sessions/{stored.session}")
    timeline = page.locator("#timeline")
    expect(timeline).to_have_attribute("data-waits", re.compile("loads when it comes into view$"))
    before = timeline.bounding_box()
    seen(timeline)
    expect(page.locator("#op-read")).to_contain_text("did not load")
    page.unroute("**/timeline?*")
    page.get_by_role("button", name="Load it again").click()
    expect(timeline).to_have_attribute("data-drawn", re.compile(r"\d+"))
    after = timeline.bounding_box()
    assert before is not None
    assert after is not None
    assert before["height"] == after["height"]
