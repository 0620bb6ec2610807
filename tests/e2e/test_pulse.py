"""A running job in a browser: the slow rank on a live map, and a session on demand."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import TYPE_CHECKING

import httpx
from playwright.sync_api import expect

from app.pulse.advance import advance_pulses
from tests.e2e.expecting import expect_well_made, in_every_look
from tests.e2e.looking import keep
from tests.e2e.visiting import WIDE
from tests.integration.api.pulse.sending import bodies, slow_job
from tests.support.pulses.minutes import Minutes
from tests.support.served import client_of
from tests.support.sessions import small_trace, store

if TYPE_CHECKING:
    from app.platform.container import Container
    from tests.e2e.visiting import Look, Visitor

SLOW = 517
LARGE = Minutes(ranks=1024, minutes=720, slow=SLOW, slow_minutes=25, stages=8)


def send(site: str, container: Container, job: str = "llm") -> str:
    """Send the pulse of a job in which a rank becomes slow; return the requests in the answers."""
    made, _ = slow_job()
    asked = ""
    with client_of(site) as client:
        for number, body in enumerate(bodies(made)):
            answer = client.post(f"/api/v1/jobs/{job}/attempts/1/pulse", content=body)
            record = answer.raise_for_status().json()["record"]
            asked = record["reason"] if record else asked
            # Processed after the bodies of both hosts.
            while number % 2 and advance_pulses(container, timedelta(0)):
                pass
    return asked


@in_every_look
def test_a_job_with_a_pulse_has_a_page_before_its_first_session(
    site: str, container: Container, visitor: Visitor, look: Look
) -> None:
    send(site, container)
    LARGE.keep(container, "llm")
    page = visitor.open(f"{site}/jobs/llm", look)
    expect(page.locator("h1")).to_contain_text("Rank 13 (node-001)")
    expect(page.locator(".parts-line")).to_contain_text("Suspected")
    expect(page.locator(".live .facts")).to_contain_text("Rank 517, 1.40×")
    expect(page.locator("[data-part=steps]")).to_contain_text("longer than 2.00\u00a0s")
    expect(page.locator("#pulse-map")).to_have_attribute("data-drawn", "720")
    assert float(page.locator("#pulse-map").get_attribute("data-drawn-ms") or "inf") < 500
    expect(page.locator(".slowest")).to_contain_text("node-064")
    expect(page.locator(".notices tbody tr")).to_have_count(1)
    expect(page.locator("#record")).to_contain_text("Recording 50 steps")
    keep(page, f"job-live-{look.name}")
    expect_well_made(page, site, look)


def test_the_map_is_read_with_the_keyboard(
    site: str, container: Container, visitor: Visitor
) -> None:
    send(site, container)
    LARGE.keep(container, "llm")
    page = visitor.open(f"{site}/jobs/llm")
    chart, cell = page.locator("#pulse-map"), page.locator("#pulse-cell")
    expect(chart).to_have_attribute("data-drawn", "720")
    chart.focus()
    expect(cell).to_contain_text("Rank 517 · node-064, GPU\u00a05 · stage 4")
    expect(cell).to_contain_text("computes 1.40× as long as its peers")
    page.keyboard.press("ArrowDown")
    expect(cell).to_contain_text("Rank 518")
    expect(cell).to_contain_text("computes 1.00×")
    page.keyboard.press("ArrowUp")
    for _ in range(3):
        page.keyboard.press("Shift+ArrowLeft")
    expect(cell).to_contain_text("Rank 517")
    expect(cell).to_contain_text("computes 1.00×")
    page.keyboard.press("End")
    expect(cell).to_contain_text("computes 1.40×")


@in_every_look
def test_the_map_is_zoomed_to_the_hosts_of_a_stage(
    site: str, container: Container, visitor: Visitor, look: Look
) -> None:
    send(site, container)
    LARGE.keep(container, "llm")
    page = visitor.open(f"{site}/jobs/llm", look)
    chart, labels = page.locator("#pulse-map"), page.locator("#pulse-map .over")
    expect(chart).to_have_attribute("data-shown", "1024 × 720")
    expect(labels).to_contain_text("Stage 7")
    chart.focus()
    for _ in range(4):
        page.keyboard.press("+")
    expect(chart).to_have_attribute("data-shown", "64 × 45")
    assert float(chart.get_attribute("data-drawn-ms") or "inf") < 500
    # The chosen cell keeps its place, and moving it scrolls the map.
    expect(chart.locator(".at")).to_have_count(1)
    page.keyboard.press("Shift+ArrowUp")
    for _ in range(5):
        page.keyboard.press("Shift+ArrowUp")
    expect(page.locator("#pulse-cell")).to_contain_text("Rank 457 · node-057 · stage 3")
    expect(chart.locator(".at")).to_have_count(1)
    if look.size == WIDE:
        expect(labels).to_contain_text("node-057")
    keep(page, f"job-live-zoomed-{look.name}")
    expect_well_made(page, site, look)
    page.get_by_role("button", name="Zoom out").click()
    expect(chart).to_have_attribute("data-shown", "128 × 90")
    page.get_by_role("button", name="Show all").click()
    expect(chart).to_have_attribute("data-shown", "1024 × 720")
    expect(page.get_by_role("button", name="Show all")).to_be_disabled()


def test_the_map_is_zoomed_and_moved_with_the_mouse_and_with_two_fingers(
    site: str, container: Container, visitor: Visitor
) -> None:
    send(site, container)
    LARGE.keep(container, "llm")
    page = visitor.open(f"{site}/jobs/llm")
    chart, labels = page.locator("#pulse-map"), page.locator("#pulse-map .over")
    expect(chart).to_have_attribute("data-shown", "1024 × 720")
    box = chart.bounding_box()
    assert box is not None
    middle = box["x"] + box["width"] * 0.6, box["y"] + box["height"] * 0.45
    page.mouse.dblclick(*middle)
    expect(chart).to_have_attribute("data-shown", "512 × 360")
    before = labels.text_content()
    page.mouse.move(*middle)
    page.mouse.down()
    page.mouse.move(middle[0], middle[1] + 60, steps=4)
    page.mouse.up()
    assert labels.text_content() != before
    expect(chart).to_have_attribute("data-shown", "512 × 360")
    # Without a modifier key, the wheel scrolls the page.
    page.mouse.wheel(0, -100)
    expect(chart).to_have_attribute("data-shown", "512 × 360")
    page.keyboard.down("Control")
    page.mouse.wheel(0, -100)
    page.keyboard.up("Control")
    expect(chart).to_have_attribute("data-shown", "410 × 288")
    page.get_by_role("button", name="Show all").click()
    touching = page.context.new_cdp_session(page)

    def touch(kind: str, *apart: float) -> None:
        box = chart.bounding_box()
        assert box is not None
        x, y = box["x"] + box["width"] * 0.6, box["y"] + box["height"] * 0.5
        points = [{"x": x + by, "y": y, "id": at} for at, by in enumerate(apart)]
        touching.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})

    cell = page.locator("#pulse-cell").text_content() or ""
    touch("touchStart", -40, 40)
    touch("touchMove", -60, 60)
    touch("touchMove", -80, 80)
    touch("touchEnd")
    # Lifting the last finger of a gesture chooses no cell.
    expect(page.locator("#pulse-cell")).to_have_text(cell)
    expect(chart).to_have_attribute("data-shown", "512 × 360")


def test_new_minutes_appear_without_a_reload(
    site: str, container: Container, visitor: Visitor
) -> None:
    send(site, container)
    Minutes(ranks=16, minutes=50, until_ago=1).keep(container, "llm")
    page = visitor.open(f"{site}/jobs/llm")
    chart = page.locator("#pulse-map")
    expect(chart).to_have_attribute("data-drawn", "49")
    page.evaluate("window.same = true")
    Minutes(ranks=16, minutes=50, slow=3, slow_minutes=1, factor=1.6).keep(container, "llm")
    # 51 if a minute has begun meanwhile.
    expect(chart).to_have_attribute("data-drawn", re.compile("^5[01]$"))
    chart.focus()
    expect(page.locator("#pulse-cell")).to_contain_text("Rank 3")
    assert page.evaluate("window.same")
    # The pulse is shorter than an hour; the address keeps another choice.
    expect(page.get_by_role("button", name="1 h", exact=True)).to_have_attribute(
        "aria-pressed", "true"
    )
    page.get_by_role("button", name="12 h", exact=True).click()
    assert page.url.endswith("?minutes=720")
    expect(page.locator(".step-lines svg")).to_have_attribute("viewBox", "0 0 720 100")


def test_the_fleet_names_live_jobs_and_a_session_is_asked_for_on_a_job_s_page(
    site: str, container: Container, visitor: Visitor
) -> None:
    store(container, small_trace(), job="llm")
    send(site, container)
    with container.engine.begin() as connection:
        connection.exec_driver_sql("DELETE FROM recording_request")
    send(site, container, "fresh")
    page = visitor.open(f"{site}/")
    expect(page.locator("#jobs tbody tr")).to_contain_text("suspected 1.")
    expect(page.locator(".verdict")).to_contain_text("2 live, 2 suspected")
    expect(page.locator(".unrecorded")).to_contain_text("fresh A step takes 1.")
    keep(page, "fleet-live")
    page.goto(f"{site}/hosts/node-001")
    expect(page.get_by_label("Now", exact=True)).to_contain_text("1.5")
    expect(page.get_by_label("Noticed", exact=True)).to_contain_text("Rank 13 (node-001)")
    keep(page, "host-live")
    page.goto(f"{site}/jobs/llm")
    expect(page.locator("#pulse .notices")).to_contain_text("none yet")
    page.get_by_role("button", name="Record 50 steps now").click()
    expect(page.locator("#record")).to_contain_text("50 steps are asked for: ")
    keep(page, "job-live-with-session")


def test_step_times_of_live_jobs_are_fetched_anew_while_the_fleet_is_looked_at(
    site: str, container: Container, visitor: Visitor
) -> None:
    store(container, small_trace(), job="llm")
    send(site, container)
    with container.engine.begin() as connection:
        connection.exec_driver_sql("DELETE FROM pulse_notice")
    Minutes(ranks=16, minutes=60, step_s=2.0).keep(container, "llm")
    page = visitor.open(f"{site}/")
    listed = page.locator("#jobs tbody tr")
    expect(listed).to_contain_text("2.0")
    page.evaluate("window.same = true")
    Minutes(ranks=16, minutes=60, step_s=7.3).keep(container, "llm")
    expect(listed).to_contain_text("7.3", timeout=30_000)
    assert page.evaluate("window.same")


def test_a_project_refuses_pulses_from_a_button_on(site: str, visitor: Visitor) -> None:
    page = visitor.open(f"{site}/retention")
    page.get_by_role("button", name="Refuse pulses").click()
    expect(page.locator("#pulses")).to_contain_text("Pulses are refused")
    assert httpx.get(f"{site}/api/v1/pulse", trust_env=False).json() == {"on": False}
    page.get_by_role("button", name="Take pulses").click()
    expect(page.locator("#pulses")).to_contain_text("Pulses are taken")
    assert httpx.get(f"{site}/api/v1/pulse", trust_env=False).json() == {"on": True}
