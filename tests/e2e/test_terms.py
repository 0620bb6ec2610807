"""Tooltips of terms: on hover, on focus and on a tap; Escape closes them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from playwright.sync_api import expect

from tests.e2e.expecting import expect_well_made
from tests.e2e.test_walk import filled
from tests.e2e.visiting import LOOKS

if TYPE_CHECKING:
    from tests.e2e.alerting import Place
    from tests.e2e.visiting import Visitor
    from tests.support.receiver import Receiver

WIDE, NARROW = LOOKS[:2]
MEANING = re.compile("How many times as long a step takes")


def test_a_term_says_what_it_means_on_hover_and_on_focus(
    place: Place, receiver: Receiver, visitor: Visitor
) -> None:
    address = filled(place, receiver)["/sessions/{session}"]
    page = visitor.open(f"{place.url}{address}", WIDE)
    term, tip = page.locator(".facts a.term", has_text="Slowdown"), page.locator(".tip")
    expect(term).to_have_accessible_description(MEANING)
    expect(tip).to_have_count(0)
    term.hover()
    expect(tip).to_contain_text(MEANING)
    tip.get_by_role("link", name="Glossary").hover()
    expect(tip).to_be_visible()
    expect_well_made(page, place.url, WIDE)
    page.locator("h1").hover()
    expect(tip).to_have_count(0)
    term.focus()
    expect(tip).to_be_visible()
    page.keyboard.press("Tab")
    expect(tip.get_by_role("link", name="Glossary")).to_be_focused()
    expect(tip).to_be_visible()
    page.keyboard.press("Escape")
    expect(tip).to_have_count(0)


def test_a_tap_explains_and_the_next_one_follows(
    place: Place, receiver: Receiver, visitor: Visitor
) -> None:
    page = visitor.open(f"{place.url}{filled(place, receiver)['/sessions/{session}']}", NARROW)
    term, tip = page.locator(".facts a.term", has_text="Slowdown"), page.locator(".tip")
    term.tap()
    expect(tip).to_contain_text(MEANING)
    box = tip.bounding_box()
    assert box is not None
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= NARROW.size[0]
    page.locator("h1").tap()
    expect(tip).to_have_count(0)
    term.tap()
    term.tap()
    page.wait_for_url("**/docs/glossary/**")
    # The documentation is not built in this test.
    visitor.expects("404")


def test_a_heading_that_sorts_is_a_term_as_well(
    place: Place, receiver: Receiver, visitor: Visitor
) -> None:
    filled(place, receiver)
    page = visitor.open(f"{place.url}/incidents", WIDE)
    heading = page.locator("th a", has_text="Slowdown")
    heading.hover()
    expect(page.locator(".tip")).to_contain_text(MEANING)
    heading.click()
    page.wait_for_url("**sort=**")
