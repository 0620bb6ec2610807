"""Actions on machines in a browser: configured, approved, undone, stopped."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

from app.actions.models import ActionMode
from tests.e2e.alerting import act
from tests.e2e.expecting import WIDE_LIGHT, expect_well_made, in_every_look
from tests.e2e.looking import keep
from tests.support.acting import Acting

if TYPE_CHECKING:
    from tests.e2e.alerting import Place
    from tests.e2e.visiting import Look, Visitor
    from tests.support.receiver import Receiver


@pytest.fixture
def acting(place: Place) -> Acting:
    return Acting(place.alerting.container)


@in_every_look
def test_the_page_shows_past_actions_and_those_that_need_approval(
    place: Place, acting: Acting, receiver: Receiver, visitor: Visitor, look: Look
) -> None:
    page = visitor.open(f"{place.url}/actions", look)
    expect(page.locator("h1")).to_contain_text("no kind of action is configured")
    expect(page.locator(".steps li")).to_have_count(3)
    keep(page, f"actions-empty-{look.name}")
    expect_well_made(page, place.url, look)
    acting.events(receiver)
    acting.blame("node-7")
    acting.blame("node-8", job="other", confidence=0.9)
    acting.work()
    acting.events(receiver, ActionMode.ASK)
    acting.blame("node-9", job="third")
    acting.work()
    page.goto(f"{place.url}/actions")
    expect(page.locator("h1")).to_have_text("2 actions wait for a person; 1 action in force")
    expect(page.locator(".acts tbody tr")).to_have_count(3)
    keep(page, f"actions-{look.name}")
    expect_well_made(page, place.url, look)


def test_an_action_is_approved_on_its_incident_and_undone_on_its_page(
    place: Place, acting: Acting, receiver: Receiver, visitor: Visitor
) -> None:
    acting.events(receiver, ActionMode.ASK)
    acting.blame("node-7")
    acting.work()
    page = visitor.open(f"{place.url}/incidents/{acting.alerting.incident().id}", WIDE_LIGHT)
    doing = page.locator("#doing")
    expect(doing.locator("code")).to_have_text("dev.paceline.machine.confirmed about node-7")
    keep(page, "incident-asks")
    doing.get_by_role("button", name="Approve").click()
    expect(doing).to_contain_text("Under way")
    acting.work()
    assert [got.json["type"] for got in receiver.got] == ["dev.paceline.machine.confirmed"]
    page.goto(f"{place.url}/hosts/node-7")
    page.get_by_role("link", name="Actions on it").click()
    page.wait_for_url("**/actions?host=node-7")
    page.get_by_role("button", name="Undo").click()
    expect(page.locator(".acts")).to_contain_text("Being undone")
    acting.work()
    assert str(acting.action().state) == "released"


def test_a_policy_is_configured_and_all_is_stopped(
    place: Place, acting: Acting, receiver: Receiver, visitor: Visitor
) -> None:
    page = visitor.open(f"{place.url}/actions", WIDE_LIGHT)
    form = page.locator("[data-policy=event]")
    page.get_by_text("Configure CloudEvents").click()
    visitor.expects("422")
    form.get_by_label("URL").fill("not an address")
    form.get_by_role("button", name="Save").click()
    expect(form.locator("[data-path='config.url'] .fault")).to_contain_text("Must look like")
    form.get_by_label("URL").fill(receiver.url)
    form.get_by_label("Policy").select_option("ask")
    form.get_by_role("button", name="Save").click()
    expect(page.locator("#policies table")).to_contain_text("Ask")
    page.get_by_text("Configure Slurm").click()
    expect(page.locator("#policy-slurm")).to_contain_text("PACELINE_SLURM_SCONTROL")
    acting.blame("node-7")
    acting.work()
    page.reload()
    page.locator("#stop-reason").fill("maintenance")
    act(page, "Stop all actions")
    expect(page.locator("h1")).to_have_text("All actions on machines are stopped")
    expect(page.locator("#switch")).to_contain_text("maintenance")
    expect(page.get_by_role("button", name="Approve")).to_have_count(0)
    act(page, "Let actions go on")
    expect(page.get_by_role("button", name="Approve")).to_have_count(1)
    page.get_by_role("button", name="Decline").click()
    expect(page.locator(".acts")).to_contain_text("A person said no")
