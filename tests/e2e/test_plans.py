"""Plans in a browser: requested, followed, read, canceled and requested again."""

from __future__ import annotations

import json
import re
import uuid
from typing import TYPE_CHECKING, Any

import yaml
from playwright.sync_api import expect

from app.analysis.planning.plan import plan
from app.analysis.planning.template import evaluate
from app.analysis.synthesis.scenarios import SCENARIOS
from app.plans.specs.spec import parse_spec
from tests.e2e.expecting import expect_well_made, in_every_look
from tests.e2e.looking import check, keep, wait_for_figures
from tests.e2e.recorded import analyzed
from tests.support.plans import Asked, ask, do, open_run, plan_row, small_job_spec, small_spec
from tests.support.sessions import small_trace

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.sync_api import Page

    from app.platform.container import Container
    from tests.e2e.visiting import Look, Visitor


def large_spec() -> dict[str, Any]:
    """Return fifty layers, with larger ones in the middle, on 24 devices of three types."""
    layers = [
        {
            "forward_ms": 6.0 if at in (0, 49) else 17.0 if at < 10 else 44.0 if at < 45 else 12.0,
            "parameter_bytes": 3.3e8 if at in (0, 49) else 1.27e8,
            "output_bytes": 6.5e6,
            "stored_activation_bytes": 1.3e8,
        }
        for at in range(50)
    ]
    kinds = (("V100", 1.0, 16), ("RTX 3090", 1.8, 24), ("A6000", 2.15, 48))
    return {
        "model": {"layers": layers},
        "profiled_on": {"type": "4090", "speed": 2.94},
        "devices": [
            {
                "type": name,
                "nodes": 2,
                "gpus_per_node": 4,
                "speed": speed,
                "memory_bytes": gib * 2**30,
            }
            for name, speed, gib in kinds
        ],
        "microbatches": 50,
    }


def planned(container: Container, spec: dict[str, Any], **asked: Any) -> Asked:  # noqa: ANN401 - JSON
    found = ask(container, spec, **asked)
    assert do(container, found)
    return found


def wait_until_drawn(page: Page) -> None:
    page.wait_for_selector("#schedule[data-drawn]")


@in_every_look
def test_the_page_of_a_plan(container: Container, site: str, visitor: Visitor, look: Look) -> None:
    asked = planned(container, large_spec(), name="gpt2-xl on 24 GPUs")
    page = visitor.open(f"{site}/plans/{asked.plan}", look)
    wait_until_drawn(page)
    expect(page.locator("h1")).to_contain_text("an iteration, proven optimal; Ditto’s template")
    expect(page).to_have_title(re.compile(r"^Plan gpt2-xl on 24 GPUs: .*, proven optimal"))
    found = plan(parse_spec(large_spec()), compare=False)
    assert page.locator(".template tbody tr").count() == len(found.template)
    simulated_s = evaluate(found.problem, found.template).simulated / 1e12
    expect(page.locator(".facts")).to_contain_text(f"{simulated_s:.1f}")
    expect(page.locator(".template tbody tr").first).to_contain_text("×")
    keep(page, f"plan-{look.name}")
    expect_well_made(page, site, look)


@in_every_look
def test_the_page_of_a_whole_job(
    container: Container, site: str, visitor: Visitor, look: Look
) -> None:
    asked = planned(container, small_job_spec(), name="a whole job")
    page = visitor.open(f"{site}/plans/{asked.plan}", look)
    wait_until_drawn(page)
    keep(page, f"plan-job-{look.name}")
    expect_well_made(page, site, look)
    expect(page.locator("h1")).to_contain_text("an iteration, proven optimal by t_std")
    rows = page.get_by_role("region", name="Pipelines").locator("tbody tr")
    expect(rows).not_to_have_count(0)
    expect(page.get_by_role("region", name="Losses").locator("tbody tr")).to_have_count(2)
    expect(page.get_by_role("region", name="Flags").locator("pre")).to_have_count(3)


@in_every_look
def test_the_page_of_all_plans(
    container: Container, site: str, visitor: Visitor, look: Look
) -> None:
    planned(container, large_spec(), name="gpt2-xl on 24 GPUs")
    planned(container, small_spec(), method="ditto")
    tight = small_spec()
    tight["devices"][0]["memory_bytes"] = tight["devices"][1]["memory_bytes"] = 1e9
    planned(container, tight, name="too tight")
    ask(container, small_spec(microbatches=8))
    page = visitor.open(f"{site}/plans", look)
    expect(page.locator(".planned tbody tr")).to_have_count(4)
    expect(page.locator(".planned")).to_contain_text("12 layers on 8 GPUs")
    keep(page, f"plans-{look.name}")
    expect_well_made(page, site, look)


@in_every_look
def test_a_plan_without_a_template_names_what_would_help(
    container: Container, site: str, visitor: Visitor, look: Look
) -> None:
    spec = small_spec()
    for device in spec["devices"]:
        device["memory_bytes"] = 1e9
    asked = planned(container, spec)
    page = visitor.open(f"{site}/plans/{asked.plan}", look)
    expect(page.locator("h1")).to_contain_text("No template fits the memory")
    expect(page.locator(".faults")).to_contain_text("there is a template")
    keep(page, f"plan-infeasible-{look.name}")
    expect_well_made(page, site, look)


def test_from_a_file_to_its_template(
    container: Container, site: str, visitor: Visitor, tmp_path: Path
) -> None:
    file = tmp_path / "twelve.yaml"
    file.write_text(yaml.safe_dump(small_spec()))
    page = visitor.open(f"{site}/plans")
    page.locator("#file").set_input_files(file)
    expect(page.locator("#spec")).to_have_value(file.read_text())
    expect(page.get_by_label("Name")).to_have_value("twelve")
    page.get_by_role("button", name="Plan", exact=True).click()
    expect(page).to_have_url(re.compile(r"/plans/[0-9a-f-]{36}$"))
    expect(page.locator("h1")).to_have_text("This plan waits for a worker")
    page.evaluate("window.marked = true")
    found = page.locator("main").get_attribute("data-plan")
    assert found is not None
    asked = Asked(uuid.UUID(found), open_run(container, uuid.UUID(found)))
    assert do(container, asked)
    wait_until_drawn(page)
    assert page.evaluate("window.marked === true"), "the template must appear without a reload"
    with page.expect_download() as download:
        page.get_by_role("link", name="JSON").click()
    document = json.loads(download.value.path().read_text())
    assert (document["schema"], document["optimal"]) == ("paceline.plan/1", True)
    page.get_by_role("link", name="Edit").click()
    expect(page.get_by_label("Name")).to_have_value("twelve")
    page.get_by_role("button", name="Plan", exact=True).click()
    expect(page).to_have_url(re.compile(found))


def test_faults_are_shown_next_to_the_form_and_nothing_is_lost(site: str, visitor: Visitor) -> None:
    page = visitor.open(f"{site}/plans")
    spec = small_spec(microbatches=0)
    spec["devices"][0]["nodes"] = "many"
    page.locator("#spec").fill(yaml.safe_dump(spec))
    page.get_by_label("Time limit, s").fill("9999")
    page.get_by_role("button", name="Plan", exact=True).press("Enter")
    expect(page.locator("#faults h2")).to_have_text("3 faults")
    for path in ("time_limit_s", "devices[0].nodes", "microbatches"):
        expect(page.locator("#faults td").filter(has_text=path).first).to_be_visible()
    expect(page.locator("#spec")).to_have_value(yaml.safe_dump(spec))
    assert page.evaluate("document.activeElement.getAttribute('aria-invalid')") == "true"
    assert check(page, "lowContrast") == []
    keep(page, "plans-faults")
    visitor.expects("422")


def test_the_table_of_devices_and_the_text_say_the_same(site: str, visitor: Visitor) -> None:
    page = visitor.open(f"{site}/plans")
    text, rows = page.locator("#spec"), page.locator("#device-rows tr")
    expect(rows).to_have_count(2)
    page.get_by_label("Device", exact=True).select_option("H200")
    page.get_by_role("button", name="Add a row").press("Enter")
    expect(rows).to_have_count(3)
    expect(page.get_by_label("Type, row 3")).to_have_value("H200")
    expect(page.get_by_label("Nodes, row 3")).to_be_focused()
    expect(text).to_have_value(re.compile(r"  - \{type: H200, nodes: 1, gpus_per_node: 4\}\n# of"))
    page.keyboard.press("Control+A")
    page.keyboard.type("6")
    page.get_by_label("GiB a GPU, row 2").fill("40")
    # The typed text stays, even if it is no number.
    page.get_by_label("Speed, row 1").fill("fast")
    page.get_by_role("button", name="Remove row 2").press("Enter")
    expect(rows).to_have_count(2)
    expect(page.get_by_role("button", name="Remove row 2")).to_be_focused()
    expect(page.get_by_label("Speed, row 1")).to_have_value("fast")
    expect(page.get_by_label("Nodes, row 2")).to_have_value("6")
    written = yaml.safe_load(text.input_value())
    assert written["devices"] == [
        {"type": "V100", "nodes": 2, "gpus_per_node": 4, "speed": "fast"},
        {"type": "H200", "nodes": 6, "gpus_per_node": 4},
    ]
    assert written["microbatches"] == 32
    text.fill(text.input_value().replace("speed: fast", "memory_bytes: 17179869184"))
    expect(page.get_by_label("Speed, row 1")).to_have_value("")
    expect(page.get_by_label("GiB a GPU, row 1")).to_have_value("16")
    text.fill("devices: *ours\n")
    expect(page.get_by_role("status").filter(has_text="only be edited in the text")).to_be_visible()
    expect(page.get_by_label("Nodes, row 1")).to_be_disabled()
    text.fill(yaml.safe_dump(small_spec()))
    expect(page.get_by_label("Nodes, row 1")).to_be_enabled()
    expect(page.get_by_label("Type, row 1")).to_have_value(small_spec()["devices"][0]["type"])


def test_a_fault_of_a_device_marks_its_cell(site: str, visitor: Visitor) -> None:
    page = visitor.open(f"{site}/plans")
    page.get_by_label("Nodes, row 2").fill("many")
    page.get_by_role("button", name="Plan", exact=True).press("Enter")
    expect(page.locator("#faults td").first).to_have_text("devices[1].nodes")
    expect(page.get_by_label("Nodes, row 2")).to_be_focused()
    assert page.get_by_label("Nodes, row 2").get_attribute("aria-invalid") == "true"
    visitor.expects("422")


def test_a_plan_is_canceled_and_asked_for_again(
    container: Container, site: str, visitor: Visitor
) -> None:
    asked = ask(container, small_spec())
    page = visitor.open(f"{site}/plans/{asked.plan}")
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator("h1")).to_have_text("This plan was canceled")
    assert plan_row(container, asked.plan).state == "canceled"
    page.get_by_role("button", name="Plan again").click()
    expect(page.locator("h1")).to_have_text("This plan waits for a worker")
    assert do(container, Asked(asked.plan, open_run(container, asked.plan)))
    wait_until_drawn(page)


def test_the_schedule_is_read_and_zoomed_by_keys_and_pointer(
    container: Container, site: str, visitor: Visitor
) -> None:
    asked = planned(container, small_spec())
    page = visitor.open(f"{site}/plans/{asked.plan}")
    wait_until_drawn(page)
    drawn = "document.querySelector('#schedule canvas').toDataURL()"
    whole = page.evaluate(drawn)
    reset = page.get_by_role("button", name="Reset zoom")
    expect(reset).to_be_disabled()
    page.locator("#schedule").press("+")
    expect(reset).to_be_enabled()
    assert page.evaluate(drawn) != whole
    page.locator("#schedule").press("Escape")
    expect(reset).to_be_disabled()
    assert page.evaluate(drawn) == whole
    page.locator("#schedule").scroll_into_view_if_needed()
    box = page.locator("#schedule").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 118, box["y"] + 8)
    expect(page.locator("#schedule-read")).to_contain_text("forward of microbatch 0")
    page.mouse.move(box["x"] + 118, box["y"] + 32)
    expect(page.locator("#schedule-read")).to_contain_text("waits (bubble)")
    page.mouse.down()
    page.mouse.move(box["x"] + 500, box["y"] + 32)
    page.mouse.up()
    expect(reset).to_be_enabled()
    reset.click()
    assert page.evaluate(drawn) == whole


@in_every_look
def test_the_page_of_a_session_recommends_a_template(
    container: Container, site: str, visitor: Visitor, look: Look
) -> None:
    """The slow worker of the demo, in the demo's own session."""
    trace = SCENARIOS["slow-worker"].synthesize(3).trace
    stored = analyzed(container, trace, "dense-180b")
    page = visitor.open(f"{site}/sessions/{stored.session}", look)
    wait_for_figures(page)
    region = page.locator("#template")
    expect(region.locator("h2")).to_contain_text("saves")
    expect(region.locator(".placed")).to_have_count(2)
    expect(region.locator(".placed").first.locator("tbody tr")).to_have_count(8)
    expect(region).to_contain_text("for the measured times")
    region.scroll_into_view_if_needed()
    keep(region, f"session-template-{look.name}")
    expect_well_made(page, site, look)


def test_without_layer_counts_the_template_is_withheld_with_the_reason(
    container: Container, site: str, visitor: Visitor
) -> None:
    stored = analyzed(container, small_trace(), "llm")
    page = visitor.open(f"{site}/sessions/{stored.session}")
    wait_for_figures(page)
    expect(page.locator("#template")).to_contain_text("how many layers each stage has")
