"""The list of incidents in a browser: search, selection, actions on several, comments."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from playwright.sync_api import expect

from app.analysis.report.session_verdict import SuspectedCause
from tests.e2e.alerting import act
from tests.e2e.expecting import expect_well_made, in_every_look
from tests.e2e.looking import keep
from tests.e2e.visiting import NARROW
from tests.support.alerting import SLOW_NODE

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

    from tests.e2e.alerting import Place
    from tests.e2e.visiting import Look, Visitor


def let_several_fire(place: Place) -> None:
    """Make three jobs fire, one of them critically, and leave a fourth pending."""
    stage = SuspectedCause("stage_imbalance", ("stage 1",), confidence=0.6, contribution=0.5)
    other = replace(SLOW_NODE, where=("node-9",))
    for _ in range(2):
        place.alerting.session(
            1.62, job="dense-120b-pretrain", labels={"owner": "ann", "team": "pretraining"}
        )
        place.alerting.session(1.21, stage, job="vision-7b", labels={"owner": "kim"})
        place.alerting.session(1.31, other, job="long-context-32k", labels={"team": "search"})
    place.alerting.session(1.14, stage, job="speech-3b", labels={"owner": "kim"})


def lines(page: Page) -> Locator:
    """Return the lines of open incidents."""
    return page.locator("[aria-label='Open incidents'] tbody tr")


@in_every_look
def test_several_are_selected_and_acknowledged(place: Place, visitor: Visitor, look: Look) -> None:
    let_several_fire(place)
    page = visitor.open(f"{place.url}/incidents", look)
    expect(lines(page)).to_have_count(4)
    expect(lines(page).first).to_contain_text("critical")
    bar = page.get_by_role("region", name="Selected incidents")
    expect(bar).to_be_hidden()
    page.get_by_label(re.compile("^Select dense-120b")).check()
    page.get_by_label(re.compile("^Select speech-3b")).check()
    expect(bar).to_contain_text("2 selected")
    keep(page, f"triage-selected-{look.name}")
    expect_well_made(page, place.url, look)
    bar.get_by_role("button", name="Acknowledge").click()
    expect(lines(page).first).to_contain_text("Acknowledged")
    # An incident that the action does not apply to stays selected, with the reason.
    expect(bar).to_contain_text("1 selected")
    expect(bar).to_contain_text("1 unchanged: The incident is pending")
    bar.get_by_label("As", exact=True).fill("Kim")
    bar.get_by_role("button", name="Assign…").click()
    bar.get_by_label("To", exact=True).fill("Lee")
    keep(page, f"triage-assigning-{look.name}")
    expect_well_made(page, place.url, look)
    bar.get_by_role("button", name="Assign", exact=True).click()
    expect(bar).to_be_hidden()
    [given] = [i for i in place.alerting.incidents() if i.facts and i.facts.job == "speech-3b"]
    page.goto(f"{place.url}/incidents/{given.id}")
    expect(page.locator("#chosen")).to_contain_text("Assigned to Lee by Kim")


@in_every_look
def test_a_decision_is_undone_by_a_button_or_a_key(
    place: Place, visitor: Visitor, look: Look
) -> None:
    let_several_fire(place)
    page = visitor.open(f"{place.url}/incidents", look)
    bar = page.get_by_role("region", name="Selected incidents")
    for name in ("^Select dense-120b", "^Select vision-7b"):
        page.get_by_label(re.compile(name)).check()
    bar.get_by_role("button", name="Acknowledge").click()
    toast = page.locator(".toast")
    expect(toast).to_contain_text("2 acknowledged")
    expect(page.locator("[aria-label='Open incidents']")).to_contain_text("Acknowledged")
    keep(page, f"undo-{look.name}")
    expect_well_made(page, place.url, look)
    page.keyboard.press("u")
    expect(toast).to_have_count(0)
    expect(page.locator("[aria-label='Open incidents']")).not_to_contain_text("Acknowledged")

    page.get_by_label(re.compile("^Select dense-120b")).check()
    bar.get_by_role("button", name="Resolve…").click()
    bar.get_by_role("button", name="Resolve", exact=True).click()
    expect(lines(page)).to_have_count(3)
    toast.get_by_role("button", name="Undo").click()
    expect(lines(page)).to_have_count(4)

    # Later, the acknowledgement is taken back on the incident's page.
    lines(page).filter(has_text="dense-120b").get_by_role("link").first.click()
    act(page, "Acknowledge")
    expect(toast).to_contain_text("Acknowledged")
    act(page, "Un-acknowledge")
    expect(page.get_by_role("button", name="Acknowledge", exact=True)).to_be_enabled()
    act(page, "Resolve…")
    act(page, "Resolve")
    act(page, "Reopen")
    expect(page.get_by_role("button", name="Acknowledge", exact=True)).to_be_enabled()


def test_all_on_the_page_are_silenced_together(place: Place, visitor: Visitor) -> None:
    let_several_fire(place)
    page = visitor.open(f"{place.url}/incidents?state=firing")
    expect(lines(page)).to_have_count(3)
    page.get_by_label("Select all on this page").check()
    bar = page.get_by_role("region", name="Selected incidents")
    bar.get_by_role("button", name="Silence…").click()
    bar.get_by_label("Reason").fill("the rack is serviced")
    bar.get_by_role("button", name="1 d").click()
    bar.get_by_role("button", name="Silence", exact=True).click()
    expect(page.locator("#list")).to_contain_text("Nothing to list")
    states = [incident.state for incident in place.alerting.incidents()]
    assert sorted(states) == ["pending", "silenced", "silenced", "silenced"]


def test_the_address_holds_the_filters(place: Place, visitor: Visitor) -> None:
    let_several_fire(place)
    page = visitor.open(f"{place.url}/incidents")
    page.get_by_label("Search incidents").fill("stage kim")
    expect(lines(page)).to_have_count(2)
    expect(page).to_have_url(re.compile(r"/incidents\?q=stage\+kim$"))
    expect(page.get_by_label("Search incidents")).to_be_focused()
    page.get_by_role("group", name="State").get_by_role("link", name="Firing").click()
    expect(lines(page)).to_have_count(1)
    expect(page.get_by_label("Search incidents")).to_have_value("stage kim")
    page.get_by_label("Severity").select_option("critical")
    expect(page.locator("h1")).to_have_text("No open incident matches")
    page.go_back()
    expect(lines(page)).to_have_count(1)
    page.get_by_role("link", name="Clear").click()
    expect(lines(page)).to_have_count(3)
    page.get_by_role("link", name="Slowdown").click()
    expect(page).to_have_url(re.compile("sort=-slowdown"))
    expect(lines(page).first).to_contain_text("1.62")
    page.get_by_text("Job, host, label").click()
    page.get_by_label("Label").fill("team=search")
    page.get_by_label("Label").press("Enter")
    expect(lines(page)).to_have_count(1)
    expect(lines(page)).to_contain_text("long-context-32k")
    expect(page).to_have_url(re.compile("label=team%3Dsearch"))
    page.get_by_role("group", name="Time").get_by_role("link", name="24\N{NO-BREAK SPACE}h").click()
    expect(page).to_have_url(re.compile("label=team%3Dsearch.*range=24h"))
    expect(lines(page)).to_have_count(1)


@in_every_look
def test_an_incident_is_taken_and_talked_about(place: Place, visitor: Visitor, look: Look) -> None:
    let_several_fire(place)
    page = visitor.open(f"{place.url}/incidents", look)
    lines(page).first.get_by_role("link").click()
    chosen = page.locator("#chosen")
    chosen.get_by_label("As", exact=True).fill("Kim")
    chosen.get_by_role("button", name="Assign to me").click()
    expect(chosen).to_contain_text("Assigned to Kim")
    said = page.get_by_role("region", name="Comments")
    said.get_by_label("Comment").fill(
        "The host agent was updated at 01:15.\nOthers of the rack are fine."
    )
    act(page, "Comment")
    expect(said).to_contain_text("The host agent was updated")
    expect(said).to_contain_text("Kim")
    expect(said.get_by_label("Comment")).to_have_value("")
    if look.size != NARROW:
        expect(lines(page).first).to_contain_text("Kim")
    keep(page, f"triage-comment-{look.name}")
    expect_well_made(page, place.url, look)
    chosen.get_by_role("button", name="Unassign").click()
    expect(chosen).to_contain_text("Not assigned")
