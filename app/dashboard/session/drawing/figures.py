"""Figures of a report: reports in, what the page's script draws out, nothing else.

Bars over steps are drawn by our own script, so that the first screen needs no library; scatter
plots by plotly. What depends on the width of the window is the script's of the page.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from app.analysis.report.document import Report
from app.dashboard.session.slowdown import step_slowdowns
from app.dashboard.ui.figure_parts import (
    TEXT_2,
    Figure,
    axis,
    base_layout,
    corner,
    nice_tick,
    rounded,
    stretch_starts,
)
from app.dashboard.ui.format import MINUS, NBSP, percent, seconds, times

# The strip is so high between its margins, and labels at its right so high, in pixels.
STRIP_HEIGHT: Final = 80.0
LABEL_HEIGHT: Final = 13.0

Label = tuple[float, str]


@dataclass(frozen=True, slots=True)
class Level:
    """A dashed line across bars; its label is `shift` pixels above it."""

    value: float
    label: str
    shift: float


@dataclass(frozen=True, slots=True)
class StepBars:
    """Bars over steps, as bars.js draws them."""

    values: list[float | None]
    base: float  # where bars begin
    range: tuple[float, float]  # of the upright axis
    ticks: list[Label]
    words: list[str]  # of each bar, when it is pointed at
    unit: str = ""  # above the upright axis
    right: tuple[Label, ...] = ()  # other units at the right
    level: Level | None = None
    marks: tuple[float | None, ...] = ()  # a line for each step
    starts: tuple[int, ...] = ()  # positions at which another recorded stretch begins


def strip(report: Report) -> StepBars:
    """Return the slowdown of each step: bars from 1.0, the job dashed, seconds at the right."""
    steps, slowdowns = report.steps.analyzed, step_slowdowns(report)
    total = report.headline.slowdown
    reference_s = _mean(report.step_times.simulated) / total
    top = max(1.1, math.ceil(max(*slowdowns, total) * 10 + 0.01) / 10)
    tick = nice_tick(top - 1, 3)
    values = [1 + index * tick for index in range(int((top - 1) / tick + 1e-9) + 1)]
    return StepBars(
        values=[rounded(value) for value in slowdowns],
        base=1.0,
        range=(1.0, top),
        ticks=[(value, times(value, 2 if tick < 0.1 else 1)) for value in values],  # noqa: PLR2004
        words=[
            f"Step {step}: {times(value, 3)}, {seconds(time_s)} recorded"
            for step, value, time_s in zip(
                steps, slowdowns, report.step_times.recorded, strict=True
            )
        ],
        right=tuple((value, seconds(value * reference_s)) for value in values),
        level=Level(total, times(total), rounded(_label_shift(values, top, total)) or 0.0),
        starts=tuple(stretch_starts(steps)),
    )


def recorded_times(report: Report) -> StepBars:
    """Return recorded and replayed time of each step, seconds from 0: what is left without S."""
    recorded, simulated = report.step_times.recorded, report.step_times.simulated
    ticks = _ticks(0.0, max(*recorded, *simulated))
    return StepBars(
        values=[rounded(value) for value in recorded],
        base=0.0,
        range=(0.0, ticks[-1][0]),
        ticks=ticks,
        words=[
            f"Step {step}: {seconds(real)} recorded, {seconds(replayed)} replayed"
            for step, real, replayed in zip(report.steps.analyzed, recorded, simulated, strict=True)
        ],
        unit="seconds",
        marks=tuple(rounded(value) for value in simulated),
        starts=tuple(stretch_starts(report.steps.analyzed)),
    )


def launch_delays(report: Report) -> StepBars:
    """Return what the launch delays add to each step, per cent of its replay without them."""
    shares = [value - 1 for value in report.per_step.launch_slowdown]
    values = [100 * share for share in shares]
    low, high = min(0.0, *values), max(0.1, *values)
    ticks = _ticks(low, high)
    return StepBars(
        values=[rounded(value) for value in values],
        base=0.0,
        range=(min(low, ticks[0][0]), ticks[-1][0]),
        ticks=ticks,
        words=[
            f"Step {step}: {percent(share, 2)}"
            for step, share in zip(report.steps.analyzed, shares, strict=True)
        ],
        unit=f"%{NBSP}of the step",
    )


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


def _ticks(low: float, high: float) -> list[Label]:
    """Return round values from below `low` to above `high`, with 0 among them."""
    tick = nice_tick(high - low, 3)
    first, last = math.floor(low / tick + 1e-9), math.ceil(high / tick - 1e-9)
    values = [round(index * tick, 9) for index in range(first, last + 1)]
    return [(value, f"{value:g}".replace("-", MINUS)) for value in values]


def _label_shift(values: Sequence[float], top: float, total: float) -> float:
    """Return by how much the label of the dashed line is above it, to cover no other."""
    at = _height(total, top)
    return _free([_height(value, top) for value in values], at) - at


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
