"""Times on pages are in the reader's zone with UTC on hover, or in UTC on request."""

from __future__ import annotations

import re
from datetime import datetime
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

import pytest
from playwright.sync_api import expect

from tests.e2e.looking import check, wait_for_plots
from tests.e2e.test_walk import filled
from tests.e2e.visiting import NARROW, WIDE, Look
from tests.support.nightly import every_night

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

    from tests.e2e.alerting import Place
    from tests.e2e.visiting import Visitor
    from tests.support.receiver import Receiver

# Largest layout shift, as a share of a window's size; scripts move entries of the top bar.
STILL = 0.01
FULL_OF_TIMES = ("/", "/jobs/{job}", "/incidents/{incident}", "/access/audit", "/hosts/{host}")
EAST = Look("kolkata", WIDE, "light", "Asia/Kolkata")
WEST = Look("new-york", NARROW, "dark", "America/New_York")


@pytest.mark.parametrize("look", [EAST, *every_night(WEST)], ids=lambda look: look.name)
def test_every_time_is_the_readers(
    place: Place, receiver: Receiver, visitor: Visitor, look: Look
) -> None:
    faults = []
    seen = 0
    for route, address in filled(place, receiver).items():
        page = visitor.open(f"{place.url}{address}", look)
        wait_for_plots(page)
        faults += [f"{route}: stray {text!r}" for text in check(page, "strayTimes")]
        if route in FULL_OF_TIMES and (moved := check(page, "shifted")) > STILL:
            faults.append(f"{route}: content moved by {moved:.3f}")
        times = check(page, "times")
        seen += len(times)
        faults += [f"{route}: {fault}" for one in times if (fault := _fault(look, *one))]
        page.close()
    assert faults == []
    assert seen > 20


def _fault(look: Look, moment: str, form: str, text: str, title: str) -> str:
    """Return the fault of a time; empty if there is none."""
    at = datetime.fromisoformat(moment)
    utc, here = at.astimezone(ZoneInfo("UTC")), at.astimezone(ZoneInfo(look.zone))
    if not title.endswith(f"{utc.day} {utc:%b %Y %H:%M:%S} UTC"):
        return f"{text!r} has the title {title!r}"
    clock = {"exact": f"{here:%H:%M:%S}", "short": f"{here:%H:%M}", "minute": f"{here:%H:%M}"}
    if not text.endswith(clock.get(form, "")) or "UTC" in text:
        return f"{text!r} is {here:%H:%M:%S} there"
    return ""


def test_a_reader_chooses_utc_once_for_all_pages(
    place: Place, receiver: Receiver, visitor: Visitor
) -> None:
    addresses = filled(place, receiver)
    page = visitor.open(f"{place.url}{addresses['/incidents/{incident}']}", EAST)
    expect(_button(page)).to_have_text("UTC+5:30")
    expect(page.locator(".log time").first).not_to_contain_text("UTC")
    _button(page).click()
    expect(_button(page)).to_have_text("UTC")
    expect(page.locator(".log time").first).to_have_text(re.compile(r"\d\d:\d\d UTC$"))
    page.goto(f"{place.url}/jobs/dense-34b")
    expect(_button(page)).to_have_text("UTC")
    expect(page.get_by_label("When, UTC")).to_have_count(1)
    _button(page).click()
    expect(page.get_by_label(re.compile("When, Asia/"))).to_have_count(1)


def test_a_silence_ends_when_the_readers_clock_says(
    place: Place, receiver: Receiver, visitor: Visitor
) -> None:
    addresses = filled(place, receiver)
    page = visitor.open(f"{place.url}{addresses['/incidents/{incident}']}", EAST)
    page.get_by_role("button", name="Silence…").click()
    form = page.locator("[data-form=silence]").first
    form.get_by_label("Reason").fill("node-18 is drained")
    form.get_by_label(re.compile("Until, Asia/")).fill("2040-01-02T02:10")
    if page.locator("[data-who]").first.is_visible():
        page.locator("[data-who]").first.fill("Kim")
    form.get_by_role("button", name="Silence").click()
    end = page.locator("#chosen time[datetime^='2040-01-01T20:40']").first
    expect(end).to_have_text("2 Jan 2040 02:10")
    expect(end).to_have_attribute("title", "1 Jan 2040 20:40:00 UTC")


def _button(page: Page) -> Locator:
    return page.locator("#zone")
