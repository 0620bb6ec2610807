"""The interactive parts of a session's page: table, evidence, timeline and downloads."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

from app.analysis.synthesis.scenarios import SCENARIOS
from tests.e2e.looking import wait_for_figures
from tests.e2e.recorded import analyzed, job_trace, without_hosts
from tests.e2e.visiting import LOOKS

if TYPE_CHECKING:
    from app.platform.container import Container
    from tests.e2e.visiting import Visitor


def test_hosts_without_a_name_are_not_invented(
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
def test_evidence_that_no_map_shows_links_to_the_picture_of_its_cause(
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

    # If some lanes are not drawn, the file has the drawn ones, and all on request.
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
