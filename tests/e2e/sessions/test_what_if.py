"""What-if questions on the page of a session: asked, answered, linked, refused."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from playwright.sync_api import expect

from tests.e2e.expecting import in_every_look
from tests.e2e.looking import check, keep, wait_for_figures
from tests.e2e.recorded import analyzed, healthy, job_trace
from tests.e2e.visiting import NARROW

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page, Route

    from app.platform.container import Container
    from tests.e2e.visiting import Look, Visitor

SLOW = "(0,\N{NO-BREAK SPACE}0)"


@pytest.fixture
def session(container: Container) -> str:
    """Return a session of 4 × 4 workers, of which (0, 0) is slow."""
    return str(analyzed(container, job_trace(), "dense-34b").session)


def field(page: Page, name: str, change: int = 0) -> Locator:
    return page.locator("#ask .change").nth(change).locator(f"[name={name}]")


def fault(page: Page, change: int = 0) -> Locator:
    return page.locator("#ask .change .fault").nth(change)


def asked(page: Page) -> str:
    return parse_qs(urlsplit(page.url).query)["ask"][0]


def answer(site: str, session: str, *changes: dict[str, Any]) -> dict[str, Any]:
    """Return the answer of the API."""
    response = httpx.post(
        f"{site}/api/v1/sessions/{session}/what-if", json={"changes": list(changes)}
    )
    assert response.status_code == 200, response.text
    body: dict[str, Any] = response.json()
    return body


def places(page: Page) -> list[int]:
    """Return the positions and heights of the section's parts."""
    scrolled = page.evaluate("scrollY")
    found = []
    for part in ("#what-if", "#ask", "#answer", "#ask-steps", "#ask-read", "#downloads"):
        box = page.locator(part).bounding_box()
        assert box is not None
        found += [round(box["y"] + scrolled), round(box["height"])]
    return found


@in_every_look
def test_the_slow_worker_replaced_is_answered_as_the_best_fix_is(
    site: str, visitor: Visitor, session: str, look: Look
) -> None:
    page = visitor.open(f"{site}/sessions/{session}", look)
    wait_for_figures(page)
    expect(page.locator("#ask-title")).to_have_text("What if some operations took another time?")
    expect(field(page, "worker")).to_have_value(SLOW)
    page.locator("#what-if").scroll_into_view_if_needed()
    before = places(page)
    keep(page, f"what-if-unasked-{look.name}")

    page.get_by_role("button", name="Ask", exact=True).click()

    replaced = {"select": {"workers": [[0, 0]]}, "duration": "peers"}
    predicted = answer(site, session, replaced)
    less = f"{100 * predicted['gain']:.0f}\N{NO-BREAK SPACE}% less"
    title = page.locator("#ask-title")
    expect(title).to_contain_text(f"Worker {SLOW} as its peers: ")
    expect(title).to_contain_text(less)
    # Fixes and answers define the gain alike: relative to the headline's reference.
    best = page.locator(".fixes tbody tr").filter(has_text=f"Replace worker {SLOW}")
    same = page.locator("#ask-then td").last.inner_text()
    expect(best.locator("td").last).to_have_attribute("title", same)
    expect(page.locator("#answer .note").first).to_contain_text(
        "against the job without its causes"
    )
    expect(page.locator("#ask-then")).to_contain_text(f"{predicted['reference']['slowdown']:.3f}×")
    expect(page.locator("#ask-read")).to_contain_text("instead of")
    expect(page.locator("#ask-go")).to_have_text("Ask")
    assert asked(page) == "peers_worker.0.0"
    if look.size != NARROW:
        assert places(page) == before, "an answer must not move what is being read"
    keep(page, f"what-if-{look.name}")
    assert check(page, "overflow") <= 0
    assert check(page, "lowContrast") == []
    assert check(page, "unnamed") == []
    assert check(page, "origins") == [site]
    if look.size == NARROW:
        assert check(page, "smallTargets") == []


def test_several_changes_are_asked_by_keyboard_and_linked(
    site: str, visitor: Visitor, session: str
) -> None:
    page = visitor.open(f"{site}/sessions/{session}")
    wait_for_figures(page)
    field(page, "worker").focus()
    page.keyboard.press("ControlOrMeta+a")
    page.keyboard.type("(0, 0), 2:1")
    page.get_by_role("button", name="Add a change").focus()
    page.keyboard.press("Enter")
    expect(field(page, "worker", 1)).to_be_focused()
    field(page, "op", 1).select_option("grads-reduce-scatter")
    expect(field(page, "scale", 1)).to_be_hidden()
    field(page, "effect", 1).select_option(label="recorded time ×")
    field(page, "scale", 1).fill("0.25")
    page.keyboard.press("Enter")

    predicted = answer(
        site,
        session,
        {"select": {"workers": [[0, 0], [2, 1]]}, "duration": "peers"},
        {"select": {"op_types": ["grads-reduce-scatter"]}, "duration": "recorded", "scale": 0.25},
    )
    title = page.locator("#ask-title")
    expect(title).to_contain_text(
        "and (2,\N{NO-BREAK SPACE}1) as peers, grads-reduce-scatter ×0.25"
    )
    expect(page.locator("#ask-then")).to_contain_text(f"{predicted['reference']['slowdown']:.3f}×")
    expect(page.locator("#ask-then th")).to_have_text("With the changes")
    assert asked(page) == "peers_worker.0.0.2.1*x0.25_op.grads-reduce-scatter"
    keep(page, "what-if-several-wide-light")

    finding = title.inner_text()
    linked = visitor.open(page.url)
    expect(linked.locator("#ask-title")).to_have_text(finding)
    expect(linked.locator("#what-if")).to_be_in_viewport()
    expect(field(linked, "worker")).to_have_value(f"{SLOW}, (2,\N{NO-BREAK SPACE}1)")
    expect(field(linked, "op", 1)).to_have_value("grads-reduce-scatter")
    expect(field(linked, "scale", 1)).to_have_value("0.25")

    page.get_by_role("button", name="Remove change 2").click()
    expect(page.locator("#ask .change")).to_have_count(1)
    page.get_by_role("button", name="Ask", exact=True).click()
    expect(title).not_to_contain_text("×0.25")
    page.go_back()
    expect(title).to_have_text(finding)
    page.go_back()
    expect(title).to_contain_text("What if")
    expect(field(page, "worker")).to_have_value(SLOW)


def test_the_form_begins_with_what_the_page_shows_and_follows_it_until_touched(
    site: str, visitor: Visitor, session: str
) -> None:
    page = visitor.open(f"{site}/sessions/{session}?dp=1&pp=2")
    wait_for_figures(page)
    expect(field(page, "worker")).to_have_value("(1,\N{NO-BREAK SPACE}2)")
    expect(field(page, "step")).to_have_value("")
    steps = page.evaluate("JSON.parse(document.getElementById('data').textContent).steps")
    page.goto(f"{site}/sessions/{session}?step={steps[2]}&dp=1&pp=2")
    wait_for_figures(page)
    expect(field(page, "step")).to_have_value(str(steps[2]))
    page.locator('.workers a[href="?dp=0&pp=0"]').click()
    expect(field(page, "worker")).to_have_value(SLOW)

    field(page, "step").fill("")
    page.locator("#mode-mean").click()
    page.locator(".workers tbody tr").nth(1).locator("a[data-cell]").click()
    expect(field(page, "worker")).to_have_value(SLOW)

    picks = page.locator("#ask .picks")
    row = page.locator(".workers tbody tr").nth(1)
    dp, pp = row.get_attribute("data-dp"), row.get_attribute("data-pp")
    picks.get_by_role("button", name=f"stage {pp}").click()
    expect(field(page, "stage")).to_have_value(str(pp))
    expect(field(page, "worker")).to_have_value("")
    picks.get_by_role("button", name=f"DP rank {dp}").click()
    expect(field(page, "dp")).to_have_value(str(dp))
    expect(field(page, "stage")).to_have_value("")
    picks.get_by_role("button", name="step ").click()
    expect(field(page, "step")).to_have_value(str(steps[2]))


def test_all_else_ideal_shows_what_one_worker_costs(
    site: str, visitor: Visitor, session: str
) -> None:
    page = visitor.open(f"{site}/sessions/{session}")
    wait_for_figures(page)
    field(page, "effect").select_option("keep")
    page.get_by_label("All others ideal").check()
    page.get_by_role("button", name="Ask", exact=True).click()
    title = page.locator("#ask-title")
    expect(title).to_contain_text(f"All ideal, worker {SLOW} as recorded: ")
    assert asked(page) == "all-ideal*keep_worker.0.0"
    report = httpx.get(f"{site}/api/v1/sessions/{session}/report").json()
    alone = report["by_worker"]["exact"][0][0]
    # S_w is relative to the ideal step; the page is relative to the job without its causes.
    shown = alone * report["headline"]["slowdown"] / report["slowdown"]
    expect(page.locator("#ask-then")).to_contain_text(f"{shown:.3f}×")


def test_steps_left_alone_do_not_change(site: str, visitor: Visitor, session: str) -> None:
    page = visitor.open(f"{site}/sessions/{session}")
    wait_for_figures(page)
    steps = page.evaluate("JSON.parse(document.getElementById('data').textContent).steps")
    field(page, "step").fill(f"{steps[0]}-{steps[3]}")
    page.get_by_role("button", name="Ask", exact=True).click()
    expect(page.locator("#ask-title")).to_contain_text(
        f"in steps {steps[0]}\N{EN DASH}{steps[3]} as its peers"
    )
    expect(page.locator("#ask-read")).to_contain_text(
        re.compile(r"From \d+\s% less in step \d+ to no change in step \d+")
    )
    keep(page, "what-if-steps-wide-light")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.locator("#ask-copy").click()
    expect(page.locator("#ask-copy")).to_have_text("Copied")
    head, *rows = page.evaluate("navigator.clipboard.readText()").splitlines()
    assert head == "step\tas_it_is_s\twith_changes_s"
    numbers = [[float(value) for value in row.split("\t")] for row in rows]
    assert [row[0] for row in numbers] == steps
    assert all(after < 0.9 * before for _, before, after in numbers[:4])
    assert all(after == pytest.approx(before, abs=1e-6) for _, before, after in numbers[4:])


def test_an_impossible_question_is_explained_at_its_field(
    site: str, visitor: Visitor, session: str
) -> None:
    page = visitor.open(f"{site}/sessions/{session}")
    wait_for_figures(page)
    go = page.get_by_role("button", name="Ask", exact=True)
    field(page, "worker").fill("the slow one")
    before = places(page)
    go.click()
    expect(fault(page)).to_have_text("Worker: Enter workers such as (0, 0), (2, 1)")
    expect(field(page, "worker")).to_be_focused()
    expect(field(page, "worker")).to_have_attribute("aria-invalid", "true")
    expect(field(page, "worker")).to_have_attribute("aria-describedby", "fault-0")

    # The error is shown at the field that the server names.
    field(page, "worker").fill("(0, 0)")
    page.get_by_role("button", name="Add a change").click()
    field(page, "stage", 1).fill("0, 9")
    go.click()
    expect(fault(page, 1)).to_have_text("Stage: The session has no stage 9")
    expect(fault(page)).to_have_text("")
    expect(field(page, "stage", 1)).to_be_focused()
    keep(page, "what-if-faults-wide-light")
    page.get_by_role("button", name="Remove change 2").click()
    assert places(page) == before

    field(page, "worker").fill("")
    go.click()
    expect(fault(page)).to_have_text("A change has to select something")
    assert "ask=" not in page.url, "what has no answer is not linked"

    visitor.expects("422")


def test_an_invalid_link_and_one_to_a_missing_stage_have_their_own_messages(
    site: str, visitor: Visitor, session: str
) -> None:
    page = visitor.open(f"{site}/sessions/{session}")
    for words in ("", "faster_worker.0.0", "ideal_worker.0", "ideal_gpu.1", "all-ideal"):
        page.goto(f"{site}/sessions/{session}?ask={words}")
        expect(page.locator("#ask-fault")).to_contain_text("is not valid")
        expect(field(page, "worker")).to_have_value(SLOW)
    linked = visitor.open(f"{site}/sessions/{session}?ask=ideal_stage.7")
    expect(fault(linked)).to_have_text("Stage: The session has no stage 7")
    visitor.expects("422")


def test_the_form_shows_that_it_waits_and_that_a_server_is_lost(
    site: str, visitor: Visitor, session: str
) -> None:
    page = visitor.open(f"{site}/sessions/{session}")
    wait_for_figures(page)
    held: list[Route] = []
    page.route("**/what-if", lambda route: held.append(route))  # noqa: PLW0108 - Playwright marks it
    before = places(page)
    page.get_by_role("button", name="Ask", exact=True).click()
    expect(page.locator("#ask-go")).to_have_text("Asking…")
    expect(page.locator("#answer")).to_have_attribute("aria-busy", "true")
    expect(page.locator("#ask-read")).to_contain_text("Replaying 1")
    assert places(page) == before
    page.locator("#ask-go").click()
    assert len(held) == 1, "a question that is being asked is not asked again"
    held[0].abort()
    expect(page.locator("#ask-fault")).to_contain_text("The server did not answer")
    expect(page.locator("#ask-go")).to_have_text("Ask")
    page.unroute("**/what-if")
    page.locator("#ask-go").click()
    expect(page.locator("#ask-title")).to_contain_text("as its peers: ")
    expect(page.locator("#ask-fault")).to_have_text("")
    visitor.expects("ERR_FAILED")


def test_a_healthy_session_can_be_asked_what_would_slow_it(
    container: Container, site: str, visitor: Visitor
) -> None:
    stored = analyzed(container, healthy(1), "dense-34b")
    page = visitor.open(f"{site}/sessions/{stored.session}?ask=x3_worker.1.1_op.forward-compute")
    title = page.locator("#ask-title")
    expect(title).to_contain_text("forward-compute of worker (1,\N{NO-BREAK SPACE}1) ×3: ")
    expect(title).to_have_text(re.compile(r"\d+\s% more$"))
    keep(page, "what-if-slower-wide-light")
