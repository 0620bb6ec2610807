"""Plotly figures of a report: reports in, figure dictionaries out, nothing else.

What depends on the width of the window (texts in cells, their gaps, how many ticks fit) is the
script's of the page.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from app.analysis.report.document import Report
from app.dashboard.ui.figure_parts import (
    BAR,
    BASE,
    TEXT,
    TEXT_2,
    Figure,
    axis,
    base_layout,
    color_scale,
    corner,
    level,
    nice_tick,
    right_label,
    rounded,
    step_axis,
    stretches,
)
from app.dashboard.ui.format import NBSP, SCALE_HIGH, SCALE_LOW, seconds, times

# The strip is so high between its margins, and labels at its right so high, in pixels.
STRIP_HEIGHT: Final = 80.0
LABEL_HEIGHT: Final = 13.0


def heatmap(report: Report) -> Figure:
    """Return the DP × PP map of exact worker slowdowns on the fixed scale.

    DP ranks are across, stages down.
    """
    exact = report.by_worker.exact
    dp, pp = len(exact), len(exact[0])
    rows = [[rounded(exact[rank][stage]) for rank in range(dp)] for stage in range(pp)]
    trace = {
        "type": "heatmap",
        "z": rows,
        "zmin": SCALE_LOW,
        "zmax": SCALE_HIGH,
        "colorscale": color_scale(),
        "showscale": False,
        "hoverinfo": "none",
    }
    layout = base_layout(margin={"l": 48, "r": 96, "t": 24, "b": 36})
    layout["xaxis"] = axis(
        range=[-0.5, dp - 0.5], title="DP rank", tickmode="linear", tick0=0, dtick=1
    )
    layout["yaxis"] = axis(
        range=[pp - 0.5, -0.5], tickmode="linear", tick0=0, dtick=1, ticklabelstandoff=4
    )
    return {"data": [trace], "layout": layout}


def strip(report: Report) -> Figure:
    """Return the strip of step slowdowns: bars from 1.0, S dashed, seconds at the right."""
    steps, slowdowns = report.steps.analyzed, report.step_slowdown
    ideal_s = _mean(report.step_times.ideal)
    total = report.slowdown
    top = max(1.1, math.ceil(max(*slowdowns, total) * 10 + 0.01) / 10)
    tick = nice_tick(top - 1, 3)
    values = [1 + index * tick for index in range(int((top - 1) / tick + 1e-9) + 1)]
    recorded = report.step_times.recorded
    trace = {
        "type": "bar",
        "x": list(range(len(steps))),
        "base": 1.0,
        "y": [rounded(value - 1) for value in slowdowns],
        "marker": {"color": BAR, "line": {"width": 0}},
        "customdata": [
            [step, times(value, 3), seconds(time_s)]
            for step, value, time_s in zip(steps, slowdowns, recorded, strict=True)
        ],
        "hovertemplate": "Step %{customdata[0]}: %{customdata[1]}, %{customdata[2]} recorded"
        "<extra></extra>",
    }
    layout = base_layout(margin={"l": 48, "r": 96, "t": 8, "b": 20})
    layout |= {
        "bargap": 0.12,
        "xaxis": step_axis(steps),
        "yaxis": axis(
            range=[1, top],
            tickvals=values,
            ticktext=[times(value, 2 if tick < 0.1 else 1) for value in values],  # noqa: PLR2004
            ticklabelstandoff=4,
            showgrid=True,
        ),
        "shapes": [
            *stretches(steps),
            level(total, TEXT_2, dash="4px,3px"),
            level(1.0, BASE),
        ],
        "annotations": _right_labels(values, top, total, ideal_s),
    }
    return {"data": [trace], "layout": layout}


def recorded_times(report: Report) -> Figure:
    """Return recorded and replayed time of each step, seconds from 0: what is left without S."""
    steps = report.steps.analyzed
    recorded = report.step_times.recorded
    simulated = report.step_times.simulated
    traces = [
        {
            "type": "bar",
            "name": "recorded",
            "x": list(range(len(steps))),
            "y": [rounded(value) for value in recorded],
            "marker": {"color": BAR, "line": {"width": 0}},
            "customdata": [
                [step, seconds(real), seconds(replayed)]
                for step, real, replayed in zip(steps, recorded, simulated, strict=True)
            ],
            "hovertemplate": "Step %{customdata[0]}: %{customdata[1]} recorded, "
            "%{customdata[2]} replayed<extra></extra>",
        },
        {
            "type": "scatter",
            "mode": "markers",
            "name": "replayed",
            "x": list(range(len(steps))),
            "y": [rounded(value) for value in simulated],
            "marker": {"color": TEXT, "size": 5, "symbol": "line-ew-open", "line": {"width": 2}},
            "hoverinfo": "skip",
        },
    ]
    layout = base_layout(margin={"l": 48, "r": 8, "t": 16, "b": 20})
    layout |= {
        "bargap": 0.12,
        "xaxis": step_axis(steps),
        "yaxis": axis(rangemode="tozero", showgrid=True, nticks=4),
        "annotations": [corner("seconds")],
    }
    return {"data": traces, "layout": layout}


def scatter(report: Report) -> Figure:
    """Return forward against backward time of microbatches, milliseconds."""
    sample = report.fb_correlation.sample
    trace = {
        "type": "scatter",
        "mode": "markers",
        "x": [rounded(1000 * value) for value in sample.forward_s],
        "y": [rounded(1000 * value) for value in sample.backward_s],
        "marker": {"color": TEXT_2, "size": 4, "opacity": 0.45, "line": {"width": 0}},
        "hovertemplate": "forward %{x:.1f} ms, backward %{y:.1f} ms<extra></extra>",
    }
    layout = base_layout(margin={"l": 48, "r": 8, "t": 20, "b": 36})
    layout |= {
        "hovermode": "closest",
        "xaxis": axis(title="forward, ms", nticks=6, ticks="outside"),
        "yaxis": axis(showgrid=True, nticks=5),
        "annotations": [corner("backward, ms")],
    }
    return {"data": [trace], "layout": layout}


def launch_delays(report: Report) -> Figure:
    """Return what the launch delays add to each step, per cent of its replay without them."""
    steps = report.steps.analyzed
    values = [100 * (value - 1) for value in report.per_step.launch_slowdown]
    trace = {
        "type": "bar",
        "x": list(range(len(steps))),
        "y": [rounded(value) for value in values],
        "marker": {"color": BAR, "line": {"width": 0}},
        "customdata": steps,
        "hovertemplate": f"Step %{{customdata}}: %{{y:.2f}}{NBSP}%<extra></extra>",
    }
    low, high = min(0.0, *values), max(0.1, *values)
    layout = base_layout(margin={"l": 48, "r": 8, "t": 16, "b": 20})
    layout |= {
        "bargap": 0.12,
        "xaxis": step_axis(steps),
        "yaxis": axis(range=[low * 1.05, high * 1.05], showgrid=True, nticks=4),
        "shapes": [level(0.0, BASE)],
        "annotations": [corner("% of the step")],
    }
    return {"data": [trace], "layout": layout}


def _right_labels(
    values: Sequence[float], top: float, total: float, ideal_s: float
) -> list[Figure]:
    """Return the seconds next to the ticks, and S at its line where it covers none of them."""
    labels = [
        right_label(value, f"{seconds(value * ideal_s)}{' ideal' if index == 0 else ''}", TEXT_2)
        for index, value in enumerate(values)
    ]
    label = right_label(total, f"<b>S{NBSP}{times(total, 3)}</b>", TEXT)
    ticks, at = [_height(value, top) for value in values], _height(total, top)
    label["yshift"] = rounded(_free(ticks, at) - at)
    return [*labels, label]


def _height(value: float, top: float) -> float:
    return STRIP_HEIGHT * (value - 1) / (top - 1)


def _free(taken: Sequence[float], at: float) -> float:
    """Return the height nearest to `at` where a label covers none of those that are there."""
    edges = [tick + side * LABEL_HEIGHT for tick in taken for side in (-1, 1)]
    free = [
        height
        for height in (at, *edges)
        if height <= STRIP_HEIGHT
        and all(abs(height - tick) >= LABEL_HEIGHT - 1e-9 for tick in taken)
    ]
    return min(free, key=lambda height: abs(height - at))


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
