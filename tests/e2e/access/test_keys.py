"""Without a mouse: single keys, and the palette that opens any object."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from playwright.sync_api import expect

from tests.e2e.expecting import expect_well_made, in_every_look
from tests.e2e.incidents.test_triage import let_several_fire, lines
from tests.e2e.looking import keep
from tests.e2e.visiting import NARROW
from tests.integration.hosts.build import HOUR, session

if TYPE_CHECKING:
    from tests.e2e.alerting import Place
    from tests.e2e.visiting import Look, Visitor


@in_every_look
def test_the_palette_leads_to_a_job_a_host_and_an_incident(
    place: Place, visitor: Visitor, look: Look
) -> None:
    let_several_fire(place)
    session(place.alerting.container, {"node-7": 1.6}, ago=HOUR, job="dense-120b-pretrain")
    page = visitor.open(f"{place.url}/plans", look)
    if look.size == NARROW:
        page.get_by_role("button", name="Find").click()
    else:
        page.keyboard.press("Control+k")
    palette = page.get_by_role("dialog", name="Go to")
    page.keyboard.type("node-7")
    options = palette.get_by_role("option")
    expect(options).to_have_count(2)
    expect(options.first).to_contain_text("dense-120b-pretrain: Slow worker")
    keep(page, f"palette-{look.name}")
    expect_well_made(page, place.url, look)
    page.keyboard.press("ArrowUp")
    expect(options.last).to_have_attribute("aria-selected", "true")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(r"/hosts/node-7$"))
    expect(page.locator("h1")).to_contain_text("node-7")
    # The script that handles keys also shows this button.
    expect(page.get_by_role("button", name="Find")).to_be_visible()
    page.keyboard.press("Control+k")
    page.keyboard.type("vision")
    expect(options.filter(has_text="Job")).to_have_count(1)
    page.keyboard.press("Escape")
    expect(palette).to_be_hidden()


def test_keys_search_move_acknowledge_and_silence(place: Place, visitor: Visitor) -> None:
    let_several_fire(place)
    page = visitor.open(f"{place.url}/incidents")
    bar = page.get_by_role("region", name="Selected incidents")
    page.keyboard.press("/")
    expect(page.get_by_label("Search incidents")).to_be_focused()
    page.keyboard.type("ajsk")
    expect(page.locator("h1")).to_have_text("No open incident matches")
    page.get_by_label("Search incidents").fill("")
    expect(lines(page)).to_have_count(4)
    # Outside of the search field, where letters are text.
    page.locator("h1").click()
    page.keyboard.press("a")
    expect(page.locator("#chosen .line2").first).to_contain_text("Acknowledged")
    page.keyboard.press("j")
    expect(lines(page).nth(1).get_by_role("link")).to_be_focused()
    page.keyboard.press("k")
    page.keyboard.press("j")
    page.keyboard.press("x")
    expect(bar).to_contain_text("1 selected")
    page.keyboard.press("a")
    expect(bar).to_be_hidden()
    acknowledged = lines(page).filter(has_text="long-context-32k")
    expect(acknowledged).to_contain_text("Acknowledged")
    page.keyboard.press("s")
    page.locator("#chosen").get_by_label("Reason").fill("drained tonight")
    page.keyboard.press("Enter")
    # The silenced incident moves to the end of the list, and the next incident is selected.
    silenced = lines(page).filter(has_text="dense-120b-pretrain")
    expect(silenced).to_contain_text("Silenced")


@in_every_look
def test_the_keys_are_listed_and_can_be_turned_off(
    place: Place, visitor: Visitor, look: Look
) -> None:
    let_several_fire(place)
    page = visitor.open(f"{place.url}/incidents", look)
    expect(page.get_by_role("button", name="Find")).to_be_visible()
    page.keyboard.press("?")
    keys = page.get_by_role("dialog", name="Keys")
    expect(keys).to_contain_text("Acknowledge the selected incidents")
    keep(page, f"keys-{look.name}")
    expect_well_made(page, place.url, look)
    keys.get_by_label("Use single keys").uncheck()
    keys.get_by_role("button", name="Close").click()
    page.keyboard.press("/")
    expect(page.get_by_label("Search incidents")).not_to_be_focused()
