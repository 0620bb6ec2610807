"""Alerts in a browser: firing incidents, their messages, and the actions of users."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import httpx
import pytest
from playwright.sync_api import expect

from app.analysis.report.session_verdict import SuspectedCause
from benchmarks.support.receiver import Reply
from tests.e2e.alerting import act, let_it_fire, link_of, trace
from tests.e2e.expecting import expect_well_made, in_every_look
from tests.e2e.looking import keep, wait_for_figures
from tests.e2e.recorded import analyzed
from tests.e2e.test_journey import upload
from tests.e2e.visiting import LOOKS, NARROW, Installation
from tests.support.nightly import by_night
from tests.support.receiver import Receiver
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from tests.e2e.alerting import Place
    from tests.e2e.visiting import Look, Visitor


@in_every_look
def test_the_page_of_incidents(
    place: Place, receiver: Receiver, visitor: Visitor, look: Look
) -> None:
    place.alerting.channel(receiver, "ops-bus")
    with Receiver(lambda _: Reply(410)) as gone:
        place.alerting.channel(gone, "old-hook")
        let_it_fire(place)
        for job in ("moe-1t", "vocab-7b", "sft-70b"):
            place.alerting.slow(job)
        place.alerting.slow("reward-13b")
        place.alerting.fast("reward-13b")
        unsure = SuspectedCause("stage_imbalance", ("stage 1",), confidence=0.6, contribution=0.5)
        place.alerting.session(1.16, unsure, job="rl-8b")
        place.alerting.pass_and_work()
    by_job = {i.facts.job: i.id for i in place.alerting.incidents() if i.facts}
    for job, order, body in (
        ("vocab-7b", "ack", {"by": "Kim"}),
        (
            "sft-70b",
            "silence",
            {"by": "Kim", "reason": "node-7 is drained", "until": "2099-01-01T18:00:00Z"},
        ),
    ):
        answer = httpx.post(f"{place.url}/api/v1/incidents/{by_job[job]}/{order}", json=body)
        assert answer.status_code == 200, answer.text
    page = visitor.open(f"{place.url}/incidents", look)
    line = page.locator(".verdict .line")
    expect(line).to_contain_text("1 acknowledged")
    expect(line).to_contain_text("1 channel is dead")
    expect(page.locator(".nav .count:not(.dead)")).to_contain_text("firing")
    expect(page.locator("h1")).to_contain_text("GPU-hours each hour")
    states = page.locator("[aria-label='Open incidents'] tbody .state").all_inner_texts()
    ranks = ["Firing", "Acknowledged", "Pending", "Silenced"]
    assert states == sorted(states, key=ranks.index)
    assert set(states) == set(ranks)
    expect(page.locator("[aria-label='Resolved incidents']")).to_contain_text("reward-13b")
    expect(page.locator("[aria-label='Channels']")).to_contain_text("The channel old-hook is dead")
    expect(page.locator(".msg")).to_contain_text("[CRITICAL]")
    page.locator("button[data-opens=silence]").click()
    keep(page, f"incidents-{look.name}")
    expect_well_made(page, place.url, look)


@in_every_look
def test_no_incident_and_no_channel(place: Place, visitor: Visitor, look: Look) -> None:
    page = visitor.open(f"{place.url}/incidents", look)
    expect(page.locator("h1")).to_have_text("No incident is open")
    expect(page.locator(".verdict .line")).to_contain_text("no channel: no messages are sent")
    expect(page.locator(".nav .count:not(.dead)")).to_have_count(0)
    keep(page, f"incidents-none-{look.name}")
    expect_well_made(page, place.url, look)


@by_night
@pytest.mark.parametrize("look", LOOKS, ids=lambda look: look.name)
def test_hundreds_of_incidents(place: Place, visitor: Visitor, look: Look) -> None:
    for number in range(120):
        place.alerting.slow(f"sweep-with-a-long-name-{number:03}")
    page = visitor.open(f"{place.url}/incidents", look)
    expect(page.locator("h1")).to_contain_text("120")
    lines = page.locator("[aria-label='Open incidents'] tbody tr")
    expect(lines).to_have_count(35)
    keep(page, f"incidents-many-{look.name}")
    expect_well_made(page, place.url, look)
    page.get_by_role("link", name="Next").click()
    expect(page.locator("[aria-label='Open incidents']")).to_contain_text("36 to 70 of 120")
    expect(lines).to_have_count(35)
    lines.last.get_by_role("link").click()
    expect(lines).to_have_count(35)
    expect(lines.last).to_have_attribute("aria-selected", "true")


@in_every_look
def test_a_session_of_a_job_that_fires(
    place: Place, receiver: Receiver, visitor: Visitor, look: Look
) -> None:
    place.alerting.channel(receiver)
    session = let_it_fire(place)
    page = visitor.open(f"{place.url}/sessions/{session}", look)
    wait_for_figures(page)
    expect(page.locator(".verdict .line")).to_contain_text("Firing")
    expect(page.get_by_role("group", name="Incidents of this job")).to_contain_text("Slow worker")
    keep(page, f"session-firing-{look.name}")
    expect_well_made(page, place.url, look)
    if look.size != NARROW:
        # The incident and its fix do not push the strip of steps off the first screen.
        box = page.locator("#step").bounding_box()
        assert box is not None
        assert box["y"] + box["height"] <= look.size[1]
    act(page, "Acknowledge")
    expect(page.locator(".verdict .line")).to_contain_text("Acknowledged")


def test_an_alert_from_its_first_session_to_its_end(
    visitor: Visitor, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACELINE_ALERT_ALLOWED_NETWORKS", "127.0.0.0/8")
    monkeypatch.setenv("PACELINE_ALERT_GROUP_WAIT_S", "0")
    monkeypatch.setenv("PACELINE_ALERT_GROUP_INTERVAL_S", "0")
    monkeypatch.setenv("PACELINE_SWEEP_INTERVAL_S", "0.5")
    # PostgreSQL runs as another account than root, which may not enter pytest's directories.
    with tempfile.TemporaryDirectory(prefix="paceline-e2e-") as directory:
        Path(directory).chmod(0o755)
        with Installation(Path(directory)) as running:
            follow_an_alert(running.url, receiver, visitor)


def follow_an_alert(site: str, receiver: Receiver, visitor: Visitor) -> None:
    added = httpx.post(
        f"{site}/api/v1/channels",
        json={"name": "ops-bus", "kind": "webhook", "config": {"url": receiver.url}},
    )
    assert added.status_code == 201, added.text
    for seed in (2, 3):
        upload(site, "dense-34b", trace(seed, slow=True))
    wait_for(lambda: receiver.got, "message")
    message = receiver.got[0].json
    assert message["status"] == "firing"
    assert message["commonLabels"]["job"] == "dense-34b"

    # Two clicks: the link in the message, and the button.
    page = visitor.open(f"{site}{urlsplit(link_of(receiver, 0)).path}")
    act(page, "Acknowledge")
    chosen = page.locator("#chosen")
    expect(chosen.locator(".line2")).to_contain_text("Acknowledged")
    expect(chosen.locator(".log")).to_contain_text("Acknowledged by the dashboard")
    expect(page.locator("[aria-label=Deliveries]")).to_contain_text("Delivered")

    for seed in (4, 5):
        upload(site, "dense-34b", trace(seed, slow=False))
    # The page updates itself.
    expect(chosen.locator(".line2")).to_contain_text("Resolved")
    wait_for(lambda: receiver.got[-1].json["status"] == "resolved", "end of the alert")
    expect(page.locator("[aria-label='Resolved incidents']")).to_contain_text("dense-34b")
    expect(page.locator(".nav .count:not(.dead)")).to_have_count(0)
    keep(page, "incident-resolved")
    # Closed before the server stops, which the page would report in the console.
    page.close()


def test_links_of_a_message_open_the_exact_view(
    place: Place, receiver: Receiver, visitor: Visitor
) -> None:
    place.alerting.channel(receiver)
    session = let_it_fire(place)
    view = receiver.got[-1].json["alerts"][0]["generatorURL"]
    assert urlsplit(view).path == f"/sessions/{session}"
    page = visitor.open(view)
    wait_for_figures(page)
    expect(page.locator("#cell")).to_contain_text("(1,\N{NO-BREAK SPACE}1)")
    asked = re.search(r"step=(\d+)", view)
    assert asked is not None
    expect(page.locator("#mode-step")).to_have_text(f"Step {asked[1]}")
    page = visitor.open(link_of(receiver))
    expect(page.locator("#chosen h1")).to_contain_text("dense-34b")


def test_silenced_with_a_reason_then_resolved_by_a_person(
    place: Place, receiver: Receiver, visitor: Visitor
) -> None:
    place.alerting.channel(receiver)
    place.alerting.slow()
    place.alerting.pass_and_work()
    page = visitor.open(link_of(receiver))
    page.locator("#chosen").get_by_label("As", exact=True).fill("Kim")
    act(page, "Silence…")
    page.locator("#chosen").get_by_label("Reason").fill("node-7 is drained")
    act(page, "7 d")
    act(page, "Silence")
    state = page.locator("#chosen .line2")
    expect(state).to_contain_text("Silenced")
    expect(state).to_contain_text("by Kim: node-7 is drained")
    act(page, "End silence")
    expect(state).to_contain_text("Firing")
    act(page, "Resolve…")
    page.locator("#chosen").get_by_label("What was done").fill("node-7 was replaced")
    act(page, "Resolve")
    expect(state).to_contain_text("Resolved")
    expect(page.locator("#chosen .log")).to_contain_text("by Kim: node-7 was replaced")
    assert place.alerting.incident().resolved_by == "Kim"


def test_a_silence_in_the_past_is_refused_in_words(
    place: Place, receiver: Receiver, visitor: Visitor
) -> None:
    place.alerting.channel(receiver)
    place.alerting.slow()
    place.alerting.pass_and_work()
    page = visitor.open(link_of(receiver))
    act(page, "Silence…")
    page.locator("#chosen").get_by_label("Reason").fill("too late")
    page.locator("#chosen").get_by_label("Until, UTC").fill("2020-01-01T00:00")
    act(page, "Silence")
    expect(page.locator("#chosen .said")).to_have_text("A silence ends in the future.")
    assert place.alerting.incident().state == "firing"
    visitor.expects("409")


@in_every_look
def test_the_fleet_shows_firing_jobs_first(
    place: Place, receiver: Receiver, visitor: Visitor, look: Look
) -> None:
    place.alerting.channel(receiver)
    analyzed(place.alerting.container, trace(1, slow=False), "a-healthy-job")
    let_it_fire(place, "b-firing")
    page = visitor.open(f"{place.url}/", look)
    first = page.locator(".jobs tbody tr").first
    expect(first).to_contain_text("b-firing")
    expect(first.get_by_role("link", name="Firing", exact=True)).to_be_visible()
    expect(page.locator(".verdict .line")).to_contain_text("1 firing")
    keep(page, f"fleet-firing-{look.name}")
    expect_well_made(page, place.url, look)
    if look.size != NARROW:
        first.get_by_role("link", name="Firing", exact=True).click()
        expect(page).to_have_url(re.compile(r"/incidents/[0-9a-f-]{36}$"))
