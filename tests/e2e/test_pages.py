"""Each page in each window and color scheme: readable, whole, and from this server alone."""

from __future__ import annotations

import contextlib
import dataclasses
import re
from functools import cache
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

from app.analysis.synthesis.injections.computations import SlowWorker
from app.analysis.synthesis.job import JobModel
from app.analysis.synthesis.scenarios import SCENARIOS
from app.analysis.synthesis.synthesize import synthesize
from app.analysis.trace.model import Sizes
from app.services.sessions.analyze import analyze_session
from app.services.tasks.task_runs import claim
from tests.e2e.looking import barriers, check, keep, wait_for_figures, wait_for_plots
from tests.e2e.visiting import LOOKS, NARROW, Look
from tests.support.sessions import Stored, small_trace, store

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

    from app.analysis.trace.model import Trace
    from app.bootstrap import Container
    from tests.e2e.visiting import Visitor

WIDE_LIGHT = LOOKS[0]
in_every_look = pytest.mark.parametrize("look", LOOKS, ids=lambda look: look.name)


@cache
def job_trace() -> Trace:
    """Return a session of 4 × 4 workers on hosts, one of them slow."""
    job = JobModel(Sizes(dp=4, pp=4, tp=4), microbatches=8, steps=16, name="dense-34b")
    return synthesize(job, [SlowWorker((0, 0), 2.2)], seed=2).trace


def healthy(seed: int) -> Trace:
    """Return an earlier session of the same job, when all was well."""
    job = JobModel(Sizes(dp=4, pp=4, tp=4), microbatches=8, steps=16, name="dense-34b")
    return synthesize(job, seed=seed).trace


def analyzed(container: Container, trace: Trace, job: str) -> Stored:
    """Store a session and analyze it here."""
    stored = store(container, trace, job=job)
    held = claim(container, stored.run)
    assert held is not None
    analyze_session(container, held)
    return stored


def without_hosts(trace: Trace) -> Trace:
    """Return a session whose sender names no hosts."""
    return dataclasses.replace(trace, meta=dataclasses.replace(trace.meta, hosts={}, gpus={}))


def expect_well_made(page: Page, site: str, look: Look) -> None:
    """Expect what holds for every page."""
    assert check(page, "overflow") <= 0
    assert check(page, "lowContrast") == []
    assert check(page, "unnamed") == []
    assert check(page, "origins") == [site]
    assert barriers(page) == []
    assert page.title().endswith(" · Paceline")
    assert page.locator("h1").count() == 1
    if look.size == NARROW:
        assert check(page, "smallTargets") == []


@in_every_look
def test_the_page_of_a_session(
    container: Container, site: str, visitor: Visitor, look: Look
) -> None:
    analyzed(container, healthy(1), "dense-34b")
    stored = analyzed(container, job_trace(), "dense-34b")
    page = visitor.open(f"{site}/sessions/{stored.session}", look)
    wait_for_figures(page)
    expect(page.locator("#live")).to_have_text("Live")
    keep(page, f"session-{look.name}")
    expect_well_made(page, site, look)
    expect(page).to_have_title(re.compile("^dense-34b, session 2: .*slower, worker"))
    expect(page.get_by_role("link", name="Session 1")).to_be_visible()
    if look.size != NARROW:
        # The first screen answers: who, when, and what to do.
        for answer in ("h1", ".facts", "#heatmap", ".workers", ".fixes", "#step"):
            box = page.locator(answer).bounding_box()
            assert box is not None
            assert box["y"] + box["height"] <= look.size[1], answer


@in_every_look
def test_the_page_of_a_step(container: Container, site: str, visitor: Visitor, look: Look) -> None:
    stored = analyzed(container, job_trace(), "dense-34b")
    page = visitor.open(f"{site}/sessions/{stored.session}?dp=1&pp=2", look)
    wait_for_figures(page)
    step = page.evaluate("JSON.parse(document.getElementById('data').textContent).steps[3]")
    page.goto(f"{site}/sessions/{stored.session}?step={step}&dp=1&pp=2")
    wait_for_figures(page)
    expect(page.locator("#map-title")).to_contain_text(f"Step {step}: worker (0, 0) alone")
    expect(page.locator("#mode-step")).to_have_attribute("aria-pressed", "true")
    expect(page.locator("#cell")).to_contain_text(f"in step {step}")
    expect(page.locator('.workers tr[aria-selected="true"]')).to_contain_text("(1, 2)")
    keep(page, f"session-step-{look.name}")
    expect_well_made(page, site, look)


@in_every_look
def test_the_pages_of_the_fleet_and_of_a_job(
    container: Container, site: str, visitor: Visitor, look: Look
) -> None:
    for seed in (1, 2, 3):
        analyzed(container, healthy(seed), "dense-34b")
    analyzed(container, job_trace(), "dense-34b")
    analyzed(container, healthy(4), "dense-34b-eval")
    store(container, small_trace(), job="just-sent")
    page = visitor.open(f"{site}/", look)
    expect(page.locator("h1")).to_contain_text("Stragglers cost")
    expect(page.locator("table.fleet tbody tr")).to_have_count(3)
    first = page.locator("table.fleet tbody tr").first
    expect(first).to_contain_text("dense-34b")
    # A worker that is slow for certain fires at once; without an incident it would say "Slow".
    expect(first.get_by_text("Firing", exact=True)).to_have_count(1)
    keep(page, f"fleet-{look.name}")
    expect_well_made(page, site, look)

    page.get_by_role("link", name="dense-34b", exact=True).click()
    expect(page).to_have_url(f"{site}/jobs/dense-34b")
    wait_for_plots(page)
    expect(page.locator("table.fleet tbody tr")).to_have_count(4)
    expect(page.locator("figure h2")).to_contain_text("Slow since session 4")
    keep(page, f"job-{look.name}")
    expect_well_made(page, site, look)


@in_every_look
def test_the_page_of_an_empty_fleet(site: str, visitor: Visitor, look: Look) -> None:
    page = visitor.open(f"{site}/", look)
    panel = page.locator("#p-torch")
    expect(panel).to_contain_text(f'paceline.attach("{site}", "my-job"')
    expect(page.locator("#p-curl")).to_be_hidden()
    keep(page, f"fleet-empty-{look.name}")
    expect_well_made(page, site, look)

    page.get_by_role("tab", name="curl").click()
    expect(page.locator("#p-curl")).to_contain_text(f"{site}/api/v1/jobs/my-job/sessions")
    expect(panel).to_be_hidden()
    expect(page).to_have_url(f"{site}/#curl")
    page.keyboard.press("ArrowLeft")
    expect(page.get_by_role("tab", name="Files")).to_be_focused()
    expect(page.locator("#p-files")).to_contain_text("paceline convert kineto")
    page.goto(f"{site}/#megatron")
    page.reload()
    expect(page.locator("#p-megatron")).to_be_visible()


def test_hosts_that_nobody_named_are_not_invented(
    container: Container, site: str, visitor: Visitor
) -> None:
    stored = analyzed(container, without_hosts(job_trace()), "nameless")
    page = visitor.open(f"{site}/sessions/{stored.session}")
    wait_for_figures(page)
    headings = page.locator(".workers th").all_inner_texts()
    assert any("Rank" in heading for heading in headings)
    assert not any("Host" in heading or "GPU" in heading for heading in headings)
    expect(page.locator("#cell")).to_contain_text("rank 0")
    expect(page.locator(".place")).not_to_contain_text("host")


def test_the_keyboard_reaches_everything(container: Container, site: str, visitor: Visitor) -> None:
    stored = analyzed(container, job_trace(), "dense-34b")
    page = visitor.open(f"{site}/sessions/{stored.session}")
    wait_for_figures(page)

    page.keyboard.press("Tab")
    expect(page.locator(".skip")).to_be_focused()

    page.locator("#step").focus()
    page.keyboard.press("Home")
    steps = page.evaluate("JSON.parse(document.getElementById('data').textContent).steps")
    expect(page).to_have_url(re.compile(rf"step={steps[0]}&"))
    page.keyboard.press("ArrowRight")
    expect(page).to_have_url(re.compile(rf"step={steps[1]}&"))
    expect(page.locator("#timeline")).to_have_attribute("data-drawn", str(steps[1]))

    page.locator("#timeline").focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator("#op-read")).to_contain_text("recorded, DP 0, stage 0")
    page.keyboard.press("ArrowDown")
    expect(page.locator("#op-read")).to_contain_text("recorded, DP 0, stage 1")
    page.keyboard.press("ArrowRight")
    first = page.locator("#op-read").inner_text()
    page.keyboard.press("ArrowRight")
    expect(page.locator("#op-read")).not_to_have_text(first)

    heading = page.locator(".workers").get_by_role("button", name="Forward")
    heading.focus()
    page.keyboard.press("Enter")
    expect(page.locator(".workers th").filter(has_text="Forward")).to_have_attribute(
        "aria-sort", "descending"
    )
    expect(page.locator(".workers tbody tr").first).to_contain_text("(0, 0)")
    page.locator(".workers tbody tr").nth(3).locator("a[data-cell]").focus()
    page.keyboard.press("Enter")
    expect(page.locator(".workers tbody tr").nth(3)).to_have_attribute("aria-selected", "true")


def test_the_table_shows_all_workers_and_sorts_them(
    container: Container, site: str, visitor: Visitor
) -> None:
    stored = analyzed(container, job_trace(), "dense-34b")
    page = visitor.open(f"{site}/sessions/{stored.session}")
    rows = page.locator(".workers tbody tr:visible")
    expect(rows).to_have_count(6)
    page.get_by_role("button", name="All 16 workers").click()
    expect(rows).to_have_count(16)
    page.locator(".workers").get_by_role("button", name="Worker").click()
    expect(rows.first).to_contain_text("(0, 0)")
    page.locator(".workers").get_by_role("button", name="Worker").click()
    expect(rows.first).to_contain_text("(3, 3)")


def test_evidence_leads_to_where_it_is_seen(
    container: Container, site: str, visitor: Visitor
) -> None:
    stored = analyzed(container, job_trace(), "dense-34b")
    page = visitor.open(f"{site}/sessions/{stored.session}?dp=3&pp=3")
    wait_for_figures(page)
    expect(page.get_by_role("img", name="worker (0, 0) takes")).to_be_visible()
    page.locator(".causes a").filter(has_text="Worker (0, 0)").click()
    expect(page).to_have_url(re.compile(r"\?dp=0&pp=0$"))
    expect(page.locator("#cell")).to_contain_text("Worker (0, 0)")
    expect(page.locator("#heatmap")).to_be_in_viewport()


@pytest.mark.parametrize(
    ("scenario", "targets"),
    [
        ("network", {"Transfers between stages": "#picture-network"}),
        (
            "sequence-lengths",
            {
                "Nine of ten": "#picture-sequence-length-imbalance-spread",
                "Σs²": "#picture-sequence-length-imbalance-squares",
            },
        ),
    ],
)
def test_evidence_of_what_no_map_shows_leads_to_the_picture_of_its_cause(
    container: Container, site: str, visitor: Visitor, scenario: str, targets: dict[str, str]
) -> None:
    stored = analyzed(container, SCENARIOS[scenario].synthesize(0).trace, scenario)
    page = visitor.open(f"{site}/sessions/{stored.session}")
    wait_for_figures(page)
    for text, target in targets.items():
        page.locator(".causes a").filter(has_text=text).click()
        expect(page.locator(target)).to_be_in_viewport()
        expect(page.locator(target)).to_have_css("outline-style", "solid")


def test_the_timeline_zooms_by_dragging_and_resets(
    container: Container, site: str, visitor: Visitor
) -> None:
    stored = analyzed(container, job_trace(), "dense-34b")
    page = visitor.open(f"{site}/sessions/{stored.session}")
    wait_for_figures(page)
    whole = page.locator("#timeline .over text").all_inner_texts()
    timeline = page.locator("#timeline")
    timeline.scroll_into_view_if_needed()
    box = timeline.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 300, box["y"] + 60)
    page.mouse.down()
    page.mouse.move(box["x"] + 420, box["y"] + 80, steps=3)
    page.mouse.up()
    zoomed = page.locator("#timeline .over text").all_inner_texts()
    assert zoomed != whole
    page.get_by_role("button", name="Reset zoom").click()
    assert page.locator("#timeline .over text").all_inner_texts() == whole


def test_downloads_are_files_with_names(container: Container, site: str, visitor: Visitor) -> None:
    stored = analyzed(container, job_trace(), "dense-34b")
    page = visitor.open(f"{site}/sessions/{stored.session}")
    wait_for_figures(page)
    for name, suffix, start in (
        ("Report (JSON)", "report.json", '{"schema":"paceline.report/1"'),
        ("Heatmap (CSV)", "workers.csv", "dp,pp,rank,host,gpu,slowdown"),
        ("(Perfetto)", "perfetto.json", '{"traceEvents":'),
        ("Steps (CSV)", "steps.csv", "step,recorded_s,simulated_s,ideal_s"),
    ):
        with page.expect_download() as waiting:
            page.locator("#downloads").get_by_role("link", name=name).click()
        assert waiting.value.suggested_filename.endswith(suffix)
        assert waiting.value.path().read_text().startswith(start)

    # Where not all lanes are drawn the file has those that are, and all on request.
    narrow = visitor.open(f"{site}/sessions/{stored.session}?dp=2&pp=0", LOOKS[1])
    wait_for_figures(narrow)
    files = narrow.locator("#downloads")
    expect(files.get_by_role("link", name="DP ranks 2 to 3 (Perfetto)")).to_have_attribute(
        "href", re.compile(r"/timeline\?step=\d+&dp=2&dp=3$")
    )
    expect(files.get_by_role("link", name="all 4 DP ranks")).to_have_attribute(
        "href", re.compile(r"/timeline\?step=\d+$")
    )


def test_the_data_of_a_figure_can_be_copied(
    container: Container, site: str, visitor: Visitor
) -> None:
    stored = analyzed(container, job_trace(), "dense-34b")
    page = visitor.open(f"{site}/sessions/{stored.session}")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    wait_for_figures(page)
    page.get_by_label("Workers", exact=True).get_by_role("button", name="Copy").click()
    expect(page.get_by_label("Workers", exact=True)).to_contain_text("Copied")
    lines = page.evaluate("navigator.clipboard.readText()").splitlines()
    assert lines[0].startswith("dp\tpp\trank\thost")
    assert len(lines) == 17


def test_the_theme_is_the_readers_choice_and_lasts(
    container: Container, site: str, visitor: Visitor
) -> None:
    stored = analyzed(container, job_trace(), "dense-34b")
    page = visitor.open(f"{site}/sessions/{stored.session}")
    wait_for_figures(page)

    def background() -> str:
        return str(page.evaluate("getComputedStyle(document.body).backgroundColor"))

    light = background()
    page.locator("#theme").click()
    assert background() == light, "the system's choice is light already"
    page.locator("#theme").click()
    expect(page.locator("#theme")).to_have_text("Dark theme")
    dark = background()
    assert dark != light
    page.reload()
    assert background() == dark


def test_the_fleet_filters_and_its_address_remembers(
    container: Container, site: str, visitor: Visitor
) -> None:
    analyzed(container, job_trace(), "dense-34b")
    analyzed(container, healthy(1), "sparse-8b")
    page = visitor.open(f"{site}/")
    rows = page.locator("table.fleet tbody tr")
    expect(rows).to_have_count(2)
    page.get_by_role("link", name="Slow 1").click()
    expect(rows).to_have_count(1)
    page.reload()
    expect(rows).to_have_count(1)
    expect(rows).to_contain_text("dense-34b")
    page.get_by_role("link", name="Job", exact=True).click()
    expect(page).to_have_url(f"{site}/?show=slow&sort=job")
    expect(page.locator("th[aria-sort]")).to_have_text("Job")
    expect(rows).to_have_count(1)
    page.get_by_role("link", name="All 2").click()
    page.get_by_role("searchbox").fill("sparse")
    expect(rows).to_have_count(1)
    expect(rows).to_contain_text("sparse-8b")
    page.get_by_role("link", name="Slowdown").click()
    expect(page).to_have_url(f"{site}/?q=sparse&sort=-slowdown")
    expect(page.get_by_role("searchbox")).to_have_value("sparse")
    expect(rows).to_have_count(1)
    page.get_by_role("link", name="7\N{NO-BREAK SPACE}d").click()
    expect(page).to_have_url(f"{site}/?q=sparse&sort=-slowdown&range=7d")
    expect(page.locator(".range [aria-current]")).to_have_text("7\N{NO-BREAK SPACE}d")
    expect(rows).to_have_count(1)
    page.get_by_role("button", name="Own…").click()
    page.get_by_label("From, in your time").fill("2020-01-01T00:00")
    page.get_by_role("button", name="Show", exact=True).click()
    expect(page).to_have_url(
        re.compile(r"\?q=sparse&sort=-slowdown&from=20\d\d-\d\d-\d\dT\d\d%3A\d\dZ$")
    )
    expect(rows).to_have_count(1)
    page.get_by_role("searchbox").fill("nothing like it")
    expect(page.locator("#nothing")).to_be_visible()


def test_jobs_of_the_fleet_are_archived_renamed_and_deleted(
    container: Container, site: str, visitor: Visitor
) -> None:
    for name in ("ended", "misnamed", "stays"):
        analyzed(container, small_trace(), name)
    page = visitor.open(f"{site}/?sort=job")
    rows, bar = page.locator("table.jobs tbody tr"), page.get_by_role("region", name="Selected")
    expect(bar).to_be_hidden()
    page.get_by_label("Select ended").check()
    bar.get_by_role("button", name="Archive").click()
    expect(rows).to_have_count(2)
    expect(bar).to_be_hidden()
    page.get_by_label("Select misnamed").check()
    bar.get_by_role("button", name="Rename…").click()
    bar.get_by_label("Name").fill("stays")
    bar.get_by_role("button", name="Rename", exact=True).click()
    expect(bar.get_by_role("alert")).to_contain_text("There is a job stays already.")
    visitor.expects("409")
    bar.get_by_role("button", name="Rename…").click()
    bar.get_by_label("Name").fill("named")
    bar.get_by_role("button", name="Rename", exact=True).click()
    expect(rows.first).to_contain_text("named")
    page.get_by_role("link", name="Archive").click()
    expect(rows).to_have_count(1)
    page.get_by_label("Select ended").check()
    bar.get_by_role("button", name="Delete…").click()
    expect(bar).to_contain_text("ended: gone with all sessions, reports and incidents")
    bar.get_by_role("button", name="Delete with all sessions").click()
    expect(page.locator("h1")).to_have_text("The archive is empty")


def test_the_fleet_works_without_scripts(container: Container, site: str, browser: Browser) -> None:
    analyzed(container, job_trace(), "dense-34b")
    analyzed(container, healthy(1), "sparse-8b")
    with contextlib.closing(browser.new_context(java_script_enabled=False)) as context:
        page = context.new_page()
        page.goto(f"{site}/?sort=job")
        page.get_by_role("searchbox").fill("dense")
        page.get_by_role("button", name="Search").click()
        expect(page.locator("table.jobs tbody tr")).to_have_count(1)
        assert "sort=job" in page.url
        assert "q=dense" in page.url


def test_names_that_look_like_markup_stay_text(
    container: Container, site: str, visitor: Visitor
) -> None:
    trace = small_trace()
    evil = "<img src=x onerror=alert(1)></script>&amp;"
    meta = dataclasses.replace(trace.meta, hosts=dict.fromkeys(range(trace.meta.sizes.world), evil))
    stored = analyzed(container, dataclasses.replace(trace, meta=meta), evil.replace("/", "|"))
    page = visitor.open(f"{site}/sessions/{stored.session}")
    wait_for_figures(page)
    expect(page.locator(".workers tbody tr").first).to_contain_text(evil)
    assert page.locator("img").count() == 0
    page.goto(f"{site}/")
    assert page.locator("img").count() == 0
    page.locator("table.fleet tbody td.grow a").first.click()
    expect(page.locator(".crumbs")).to_contain_text(evil.replace("/", "|"))
