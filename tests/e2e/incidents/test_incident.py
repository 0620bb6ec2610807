"""The page of an incident: one screen of a phone shows all that an engineer on call needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from playwright.sync_api import expect

from tests.e2e.alerting import let_it_fire
from tests.e2e.expecting import expect_well_made, in_every_look
from tests.e2e.looking import keep
from tests.e2e.visiting import NARROW

if TYPE_CHECKING:
    from tests.e2e.alerting import Place
    from tests.e2e.visiting import Look, Visitor


@in_every_look
def test_who_since_when_cost_and_fix_are_on_the_first_screen(
    place: Place, visitor: Visitor, look: Look
) -> None:
    let_it_fire(place)
    incident = place.alerting.incidents()[0]
    page = visitor.open(f"{place.url}/incidents", look)
    size = page.locator("h1").evaluate("heading => getComputedStyle(heading).fontSize")

    page.goto(f"{place.url}/incidents/{incident.id}")
    heading = page.locator("h1")
    expect(heading).to_have_text(f"dense-34b: Slow worker: {incident.where}")
    assert heading.evaluate("heading => getComputedStyle(heading).fontSize") == size
    chosen = page.locator("#chosen")
    fold = page.viewport_size["height"] if page.viewport_size else 0
    acknowledge = chosen.get_by_role("button", name="Acknowledge")
    for what in (
        chosen.get_by_text("one of 2 GPUs (only rank"),
        chosen.get_by_text("since"),
        chosen.get_by_text("GPU-hours each hour"),
        chosen.get_by_text("a step"),
        acknowledge,
    ):
        box = what.bounding_box()
        assert box is not None
        assert box["y"] + box["height"] < fold
    at = acknowledge.bounding_box()
    lists = page.get_by_role("region", name="Open incidents").bounding_box()
    assert at is not None
    assert lists is not None
    # The list is to the right in a wide window, below in a narrow one.
    assert lists["y"] > at["y"] if look.size == NARROW else lists["x"] > at["x"]
    expect_well_made(page, place.url, look)
    keep(page, f"incident-{look.name}")
