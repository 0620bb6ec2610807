"""Plotly figures of a report: documents in, figure dictionaries out, nothing else.

Colors are design tokens (``var(--accent)``); the page's script puts in what they stand for in the
theme of the moment. What depends on the width of the window (texts in cells, their gaps, how many
ticks fit) is the script's as well.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from app.dashboard.format import (
    NBSP,
    SCALE_HIGH,
    SCALE_LOW,
    SCALE_STOPS,
    TIMES,
    interval,
    seconds,
    times,
)

Figure = dict[str, Any]
Document = Mapping[str, Any]

TEXT: Final = "var(--text)"
TEXT_2: Final = "var(--text-2)"
LINE: Final = "var(--line)"
BASE: Final = "var(--mark)"
BAR: Final = "var(--line-strong)"
SELECTED: Final = "var(--accent)"

AXIS_SIZE: Final = 11
# Steps further apart than this many times the usual distance begin another recorded stretch.
STRETCH_FACTOR: Final = 8
# Tick labels of the strip's right side need this share of its height to themselves.
LABEL_SHARE: Final = 0.14
TICK_FACTORS: Final = (1.0, 2.0, 2.5, 5.0, 10.0)
MIN_HISTORY_TOP: Final = 1.1
HISTORY_TICKS: Final = 24


@dataclass(frozen=True, slots=True)
class HistoryPoint:
    """S of one session of a job; `slowdown` is None where there is no verdict."""

    number: int
    slowdown: float | None
    low: float | None
    high: float | None
    url: str


def heatmap(document: Document) -> Figure:
    """Return the DP × PP map of exact worker slowdowns on the fixed scale.

    DP ranks are across, stages down. Workers without data are holes, which the page hatches.
    """
    exact = document["by_worker"]["exact"]
    dp, pp = len(exact), len(exact[0])
    rows = [[_rounded(exact[rank][stage]) for rank in range(dp)] for stage in range(pp)]
    stops = [
        [index / (len(SCALE_STOPS) - 1), f"var({stop})"] for index, stop in enumerate(SCALE_STOPS)
    ]
    trace = {
        "type": "heatmap",
        "z": rows,
        "zmin": SCALE_LOW,
        "zmax": SCALE_HIGH,
        "colorscale": stops,
        "showscale": False,
        "hoverinfo": "none",
        "hoverongaps": False,
    }
    layout = _layout(margin={"l": 48, "r": 96, "t": 24, "b": 36})
    layout["xaxis"] = _axis(
        range=[-0.5, dp - 0.5], title="DP rank", tickmode="linear", tick0=0, dtick=1
    )
    layout["yaxis"] = _axis(
        range=[pp - 0.5, -0.5], tickmode="linear", tick0=0, dtick=1, ticklabelstandoff=4
    )
    return {"data": [trace], "layout": layout}


def strip(document: Document) -> Figure:
    """Return the strip of step slowdowns: bars from 1.0, S dashed, seconds at the right."""
    steps, slowdowns = document["steps"]["analyzed"], document["step_slowdown"]
    ideal_s = _mean(document["step_times"]["ideal"])
    total = document["slowdown"]
    top = max(1.1, math.ceil(max(*slowdowns, total) * 10 + 0.01) / 10)
    tick = nice_tick(top - 1, 3)
    values = [1 + index * tick for index in range(int((top - 1) / tick + 1e-9) + 1)]
    recorded = document["step_times"]["recorded"]
    trace = {
        "type": "bar",
        "x": list(range(len(steps))),
        "base": 1.0,
        "y": [_rounded(value - 1) for value in slowdowns],
        "marker": {"color": BAR, "line": {"width": 0}},
        "customdata": [
            [step, times(value, 3), seconds(time_s)]
            for step, value, time_s in zip(steps, slowdowns, recorded, strict=True)
        ],
        "hovertemplate": "Step %{customdata[0]}: %{customdata[1]}, %{customdata[2]} recorded"
        "<extra></extra>",
    }
    layout = _layout(margin={"l": 48, "r": 96, "t": 8, "b": 20})
    layout |= {
        "bargap": 0.12,
        "xaxis": _step_axis(steps),
        "yaxis": _axis(
            range=[1, top],
            tickvals=values,
            ticktext=[times(value, 2 if tick < 0.1 else 1) for value in values],  # noqa: PLR2004
            ticklabelstandoff=4,
            showgrid=True,
        ),
        "shapes": [
            *_stretches(steps),
            _level(total, TEXT_2, dash="4px,3px"),
            _level(1.0, BASE),
        ],
        "annotations": _right_labels(values, top, total, ideal_s),
    }
    return {"data": [trace], "layout": layout}


def recorded_times(document: Document) -> Figure:
    """Return recorded and replayed time of each step, seconds from 0: what is left without S."""
    steps = document["steps"]["analyzed"]
    recorded = document["step_times"]["recorded"]
    simulated = document["step_times"]["simulated"]
    traces = [
        {
            "type": "bar",
            "name": "recorded",
            "x": list(range(len(steps))),
            "y": [_rounded(value) for value in recorded],
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
            "y": [_rounded(value) for value in simulated],
            "marker": {"color": TEXT, "size": 5, "symbol": "line-ew-open", "line": {"width": 2}},
            "hoverinfo": "skip",
        },
    ]
    layout = _layout(margin={"l": 48, "r": 8, "t": 16, "b": 20})
    layout |= {
        "bargap": 0.12,
        "xaxis": _step_axis(steps),
        "yaxis": _axis(rangemode="tozero", showgrid=True, nticks=4),
        "annotations": [_corner("seconds")],
    }
    return {"data": traces, "layout": layout}


def scatter(document: Document) -> Figure:
    """Return forward against backward time of microbatches, milliseconds."""
    sample = document["fb_correlation"]["sample"]
    trace = {
        "type": "scatter",
        "mode": "markers",
        "x": [_rounded(1000 * value) for value in sample["forward_s"]],
        "y": [_rounded(1000 * value) for value in sample["backward_s"]],
        "marker": {"color": TEXT_2, "size": 4, "opacity": 0.45, "line": {"width": 0}},
        "hovertemplate": "forward %{x:.1f} ms, backward %{y:.1f} ms<extra></extra>",
    }
    layout = _layout(margin={"l": 48, "r": 8, "t": 20, "b": 36})
    layout |= {
        "hovermode": "closest",
        "xaxis": _axis(title="forward, ms", nticks=6, ticks="outside"),
        "yaxis": _axis(showgrid=True, nticks=5),
        "annotations": [_corner("backward, ms")],
    }
    return {"data": [trace], "layout": layout}


def launch_delays(document: Document) -> Figure:
    """Return what the launch delays add to each step, per cent of its replay without them."""
    steps = document["steps"]["analyzed"]
    values = [100 * (value - 1) for value in document["per_step"]["launch_slowdown"]]
    trace = {
        "type": "bar",
        "x": list(range(len(steps))),
        "y": [_rounded(value) for value in values],
        "marker": {"color": BAR, "line": {"width": 0}},
        "customdata": steps,
        "hovertemplate": f"Step %{{customdata}}: %{{y:.2f}}{NBSP}%<extra></extra>",
    }
    low, high = min(0.0, *values), max(0.1, *values)
    layout = _layout(margin={"l": 48, "r": 8, "t": 16, "b": 20})
    layout |= {
        "bargap": 0.12,
        "xaxis": _step_axis(steps),
        "yaxis": _axis(range=[low * 1.05, high * 1.05], showgrid=True, nticks=4),
        "shapes": [_level(0.0, BASE)],
        "annotations": [_corner("% of the step")],
    }
    return {"data": [trace], "layout": layout}


def history(points: Sequence[HistoryPoint]) -> Figure:
    """Return S of a job's sessions in order, each with its 95 % interval.

    Parameters
    ----------
    points : sequence of HistoryPoint
        Oldest first. Sessions without a verdict leave a gap.
    """
    known = [point for point in points if point.slowdown is not None]
    trace = {
        "type": "scatter",
        "mode": "lines+markers",
        "x": [point.number for point in points],
        "y": [point.slowdown for point in points],
        "connectgaps": False,
        "line": {"color": TEXT_2, "width": 1.25},
        "marker": {
            "size": 8,
            "color": [_clamped(point.slowdown) for point in points],
            "cmin": SCALE_LOW,
            "cmax": SCALE_HIGH,
            "colorscale": [
                [index / (len(SCALE_STOPS) - 1), f"var({stop})"]
                for index, stop in enumerate(SCALE_STOPS)
            ],
            "line": {"color": TEXT_2, "width": 1},
        },
        "error_y": {
            "type": "data",
            "symmetric": False,
            "array": [_distance(point.high, point.slowdown) for point in points],
            "arrayminus": [_distance(point.slowdown, point.low) for point in points],
            "color": TEXT_2,
            "thickness": 1,
            "width": 3,
        },
        "customdata": [[point.number, _history_text(point), point.url] for point in points],
        "hovertemplate": "Session %{customdata[0]}: %{customdata[1]}<extra></extra>",
    }
    tops = [max(point.slowdown or 1.0, point.high or 1.0) for point in known]
    first, last = points[0].number, points[-1].number
    top = max(MIN_HISTORY_TOP, *tops, 1.0) if tops else MIN_HISTORY_TOP
    layout = _layout(margin={"l": 48, "r": 16, "t": 8, "b": 36})
    layout |= {
        "hovermode": "closest",
        "xaxis": _axis(
            range=[first - 0.5, last + 0.5],
            title="session",
            tickmode="linear",
            tick0=last,
            dtick=math.ceil((last - first + 1) / HISTORY_TICKS),
        ),
        "yaxis": _axis(
            range=[0.98, 1 + (top - 1) * 1.1],
            showgrid=True,
            nticks=4,
            ticksuffix=TIMES,
            ticklabelstandoff=4,
            tickformat=".2f",
        ),
        "shapes": [_level(1.0, BASE)],
    }
    return {"data": [trace], "layout": layout}


def nice_tick(span: float, wanted: int) -> float:
    """Return a round distance between ticks that divides `span` into about `wanted` parts."""
    raw = span / wanted
    magnitude = 10.0 ** math.floor(math.log10(raw))
    return next(
        factor * magnitude for factor in TICK_FACTORS if factor * magnitude >= raw * (1 - 1e-9)
    )


def stretch_starts(steps: Sequence[int]) -> list[int]:
    """Return the positions at which another recorded stretch of steps begins."""
    distances = [after - before for before, after in pairwise(steps)]
    if not distances:
        return []
    usual = sorted(distances)[len(distances) // 2]
    return [
        position
        for position, distance in enumerate(distances, start=1)
        if distance > STRETCH_FACTOR * max(1, usual)
    ]


def _layout(*, margin: Mapping[str, int]) -> Figure:
    return {
        "autosize": True,
        "margin": {**margin, "pad": 0, "autoexpand": False},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "showlegend": False,
        "dragmode": False,
        "hovermode": "x",
        "font": {"family": "var(--font)", "size": AXIS_SIZE, "color": TEXT_2},
        "hoverlabel": {
            "bgcolor": "var(--bg)",
            "bordercolor": BAR,
            "font": {"family": "var(--font)", "size": 12, "color": TEXT},
            "align": "left",
        },
    }


def _axis(*, title: str | None = None, **options: object) -> Figure:
    axis: Figure = {
        "fixedrange": True,
        "zeroline": False,
        "showgrid": False,
        "showline": False,
        "ticks": "",
        "gridcolor": LINE,
        "tickcolor": BASE,
        "ticklen": 4,
        "automargin": False,
        "tickfont": {"size": AXIS_SIZE, "color": TEXT_2},
    }
    if title:
        axis["title"] = {
            "text": title,
            "standoff": 4,
            "font": {"size": AXIS_SIZE, "color": TEXT_2},
        }
    return axis | options


def _step_axis(steps: Sequence[int]) -> Figure:
    """Return an axis of positions; the script names as many steps as fit."""
    return _axis(range=[-0.5, len(steps) - 0.5], tickvals=[], ticktext=[])


def _stretches(steps: Sequence[int]) -> list[Figure]:
    return [
        {
            "type": "line",
            "xref": "x",
            "yref": "paper",
            "x0": start - 0.5,
            "x1": start - 0.5,
            "y0": -0.04,
            "y1": 1,
            "line": {"color": BASE, "width": 1, "dash": "2px,2px"},
        }
        for start in stretch_starts(steps)
    ]


def _level(value: float, color: str, *, dash: str = "solid") -> Figure:
    return {
        "type": "line",
        "xref": "paper",
        "yref": "y",
        "x0": 0,
        "x1": 1,
        "y0": value,
        "y1": value,
        "line": {"color": color, "width": 1, "dash": dash},
    }


def _right_labels(
    values: Sequence[float], top: float, total: float, ideal_s: float
) -> list[Figure]:
    """Return the seconds beside the ticks, and S beside its line where it covers none of them."""
    labels = [
        _right(value, f"{seconds(value * ideal_s)}{' ideal' if index == 0 else ''}", TEXT_2)
        for index, value in enumerate(values)
    ]
    room = LABEL_SHARE * (top - 1)
    nearest = min(values, key=lambda value: abs(value - total))
    label = _right(total, f"<b>S{NBSP}{times(total, 3)}</b>", TEXT)
    if abs(total - nearest) < room:
        # Beside the tick it would cover: below it when S is at or under the tick, else above.
        label["yshift"] = -13 if total <= nearest or nearest == values[-1] else 13
        if total <= nearest and nearest == values[0]:
            label["yshift"] = 13
    return [*labels, label]


def _right(value: float, text: str, color: str) -> Figure:
    return {
        "xref": "paper",
        "yref": "y",
        "x": 1,
        "y": value,
        "xanchor": "left",
        "yanchor": "middle",
        "xshift": 6,
        "text": text,
        "showarrow": False,
        "font": {"size": AXIS_SIZE, "color": color},
    }


def _corner(text: str) -> Figure:
    """Return the unit of the upright axis, above its upper end."""
    return {
        "xref": "paper",
        "yref": "paper",
        "x": 0,
        "y": 1,
        "xanchor": "left",
        "yanchor": "bottom",
        "yshift": 2,
        "text": text,
        "showarrow": False,
        "font": {"size": AXIS_SIZE, "color": TEXT_2},
    }


def _history_text(point: HistoryPoint) -> str:
    if point.slowdown is None:
        return "no verdict"
    text = times(point.slowdown, 3)
    if point.low is None or point.high is None:
        return text
    return f"{text}, 95{NBSP}% {interval(point.low, point.high)}"


def _clamped(value: float | None) -> float:
    return SCALE_LOW if value is None else min(max(value, SCALE_LOW), SCALE_HIGH)


def _distance(high: float | None, low: float | None) -> float:
    return 0.0 if high is None or low is None else max(0.0, high - low)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
