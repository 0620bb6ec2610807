from __future__ import annotations

import json
from pathlib import Path

import pytest

from app.analysis.report.document import Report
from app.dashboard.fleet.axis import axis_figure
from app.dashboard.session import figures
from app.dashboard.ui.assets import STATIC_DIR
from app.dashboard.ui.figure_parts import Figure
from tests.support.reports import changed
from tests.unit.dashboard.fleet.test_axis import job_over_time

go = pytest.importorskip("plotly.graph_objects")

TOKENS = (STATIC_DIR / "css" / "tokens.css").read_text()


def every_figure(report: Report) -> list[Figure]:
    return [
        figures.heatmap(report),
        figures.strip(report),
        figures.recorded_times(report),
        figures.scatter(report),
        figures.launch_delays(report),
        axis_figure(job_over_time()),
    ]


def test_plotly_knows_every_attribute_of_every_figure(slow_worker: Report) -> None:
    for figure in every_figure(slow_worker):
        # Raises on what plotly does not know; tokens stand where it expects colors.
        assert go.Figure(figure).to_plotly_json()["data"]


def test_figures_are_json_and_their_tokens_exist(slow_worker: Report) -> None:
    for figure in every_figure(slow_worker):
        text = json.dumps(figure, allow_nan=False)
        for part in text.split("var(")[1:]:
            assert f"{part.partition(')')[0]}:" in TOKENS


def test_the_map_has_dp_across_stages_down_and_the_fixed_scale(slow_worker: Report) -> None:
    figure = figures.heatmap(slow_worker)
    trace = figure["data"][0]
    assert (trace["zmin"], trace["zmax"]) == (1.0, 1.5)
    assert [len(trace["z"]), len(trace["z"][0])] == [4, 3]
    exact = slow_worker.by_worker.exact
    assert trace["z"][2][1] == pytest.approx(exact[1][2], abs=1e-4)
    top, bottom = figure["layout"]["yaxis"]["range"]
    assert top > bottom


def test_bars_of_slowdown_start_at_one_and_bars_of_time_at_zero(
    slow_worker: Report,
) -> None:
    strip = figures.strip(slow_worker)
    assert strip["data"][0]["base"] == 1.0
    assert strip["layout"]["yaxis"]["range"][0] == 1
    assert figures.recorded_times(slow_worker)["layout"]["yaxis"]["rangemode"] == "tozero"


def test_the_strip_says_s_and_the_seconds_of_its_ticks(slow_worker: Report) -> None:
    texts = [item["text"] for item in figures.strip(slow_worker)["layout"]["annotations"]]
    assert texts[0].endswith(" ideal")
    assert f"{slow_worker.slowdown:.3f}×" in texts[-1]


@pytest.mark.parametrize("slowdown", [1.0 + 0.004 * number for number in range(220)])
def test_the_label_of_s_covers_no_other(slow_worker: Report, slowdown: float) -> None:
    report = changed(slow_worker, slowdown=slowdown, step_slowdown=[slowdown * 1.02] * 12)
    layout = figures.strip(report)["layout"]
    top = layout["yaxis"]["range"][1]
    heights = [
        80 * (item["y"] - 1) / (top - 1) + item.get("yshift", 0) for item in layout["annotations"]
    ]
    *ticks, label = heights
    assert min(abs(label - tick) for tick in ticks) >= 12.9
    # it stays near its line, and within the figure
    assert abs(layout["annotations"][-1]["yshift"]) <= 27
    assert label <= 80


def test_the_scatter_is_in_milliseconds(slow_worker: Report) -> None:
    trace = figures.scatter(slow_worker)["data"][0]
    sample = slow_worker.fb_correlation.sample
    assert trace["x"][0] == pytest.approx(1000 * sample.forward_s[0], abs=1e-4)
    assert len(trace["x"]) == len(sample.backward_s)


def test_launch_delays_are_per_cent_of_the_step(slow_worker: Report) -> None:
    slow_worker = changed(slow_worker, per_step__launch_slowdown=[1.02] * 12)
    assert figures.launch_delays(slow_worker)["data"][0]["y"] == [2.0] * 12


def test_nothing_in_the_static_files_is_loaded_from_elsewhere() -> None:
    for path in Path(STATIC_DIR).rglob("*"):
        if path.is_file():
            text = path.read_text().replace("http://www.w3.org/2000/svg", "")
            assert "http://" not in text, path
            assert "https://" not in text, path
