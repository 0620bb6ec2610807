from __future__ import annotations

import json
from pathlib import Path

import pytest

from app.analysis.report.document import Report
from app.jobs.pages.axis import axis_figure
from app.sessions.pages import figures
from app.web.assets import STATIC_DIR
from app.web.figures import Figure
from tests.support.reports import changed
from tests.unit.jobs.pages.test_axis import job_over_time

go = pytest.importorskip("plotly.graph_objects")

TOKENS = (STATIC_DIR / "css" / "tokens.css").read_text()


def every_figure(report: Report) -> list[Figure]:
    return [figures.scatter(report), axis_figure(job_over_time())]


def test_plotly_knows_every_attribute_of_every_figure(slow_worker: Report) -> None:
    for figure in every_figure(slow_worker):
        # plotly raises on unknown properties; the figure has tokens in place of colors.
        assert go.Figure(figure).to_plotly_json()["data"]


def test_figures_are_json_and_their_tokens_exist(slow_worker: Report) -> None:
    for figure in every_figure(slow_worker):
        text = json.dumps(figure, allow_nan=False)
        for part in text.split("var(")[1:]:
            assert f"{part.partition(')')[0]}:" in TOKENS


def test_bars_of_slowdown_start_at_one_and_bars_of_time_at_zero(
    slow_worker: Report,
) -> None:
    strip = figures.strip(slow_worker)
    assert (strip.base, strip.range[0]) == (1.0, 1.0)
    recorded = figures.recorded_times(slow_worker)
    assert (recorded.base, recorded.range[0]) == (0.0, 0.0)
    assert recorded.range[1] >= max(slow_worker.step_times.recorded)


def test_the_strip_says_the_slowdown_and_the_seconds_of_its_ticks(slow_worker: Report) -> None:
    strip = figures.strip(slow_worker)
    assert [value for value, _ in strip.right] == [value for value, _ in strip.ticks]
    assert strip.right[0][1].endswith("s")
    assert strip.level is not None
    assert strip.level.label == f"{slow_worker.headline.slowdown:.2f}×"


@pytest.mark.parametrize("slowdown", [1.0 + 0.004 * number for number in range(220)])
def test_the_label_of_the_slowdown_covers_no_other(slow_worker: Report, slowdown: float) -> None:
    report = changed(
        slow_worker,
        slowdown=slowdown,
        headline__slowdown=slowdown,
        step_slowdown=[slowdown * 1.02] * 12,
    )
    strip = figures.strip(report)
    assert strip.level is not None
    top = strip.range[1]
    label = 80 * (strip.level.value - 1) / (top - 1) + strip.level.shift
    ticks = [80 * (value - 1) / (top - 1) for value, _ in strip.right]
    assert min(abs(label - tick) for tick in ticks) >= 12.9
    # The label is near its line, and inside the figure.
    assert abs(strip.level.shift) <= 27
    assert label <= 80


def test_each_bar_is_labeled(slow_worker: Report) -> None:
    steps = slow_worker.steps.analyzed
    for bars in (
        figures.strip(slow_worker),
        figures.recorded_times(slow_worker),
        figures.launch_delays(slow_worker),
    ):
        assert len(bars.words) == len(bars.values) == len(steps)
        assert bars.words[0].startswith(f"Step {steps[0]}: ")


def test_the_scatter_is_in_milliseconds(slow_worker: Report) -> None:
    trace = figures.scatter(slow_worker)["data"][0]
    sample = slow_worker.fb_correlation.sample
    assert trace["x"][0] == pytest.approx(1000 * sample.forward_s[0], abs=1e-4)
    assert len(trace["x"]) == len(sample.backward_s)


def test_launch_delays_are_per_cent_of_the_step(slow_worker: Report) -> None:
    slow_worker = changed(slow_worker, per_step__launch_slowdown=[1.02] * 12)
    bars = figures.launch_delays(slow_worker)
    assert bars.values == [2.0] * 12
    assert [label for _, label in bars.ticks] == ["0", "1", "2"]


def test_nothing_in_the_static_files_is_loaded_from_elsewhere() -> None:
    for path in Path(STATIC_DIR).rglob("*"):
        if path.is_file():
            text = path.read_text().replace("http://www.w3.org/2000/svg", "")
            assert "http://" not in text, path
            assert "https://" not in text, path
