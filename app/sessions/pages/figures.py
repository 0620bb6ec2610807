"""Figures of a session's page: time budget, data for the page's script, worker map as SVG.

bars.js draws bars over steps, so that the first screen needs no library; plotly draws scatter
plots.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

import numpy as np
from numpy.typing import NDArray

from app.analysis.budget.split import WORTH_SAYING, Part
from app.analysis.report.document import SECONDS_AN_HOUR, Report
from app.analysis.wording import hours
from app.sessions.pages.findings import step_slowdowns
from app.web.figures import (
    TEXT_2,
    Figure,
    axis,
    base_layout,
    corner,
    nice_tick,
    rounded,
    stretch_starts,
)
from app.web.format import (
    MINUS,
    NBSP,
    SCALE_HIGH,
    SCALE_LOW,
    heat_color,
    percent,
    rough_percent,
    seconds,
    times,
)

# Parts with a smaller share of the time have no row in the budget table.
_SHOWN: Final = 0.0005
# A smaller lost share of the time is called "nothing" in the title.
_NEGLIGIBLE: Final = 0.005


@dataclass(frozen=True, slots=True)
class BudgetRow:
    """A part of the time budget: its section of the bar in per cent, and its row in the table."""

    part: str
    name: str
    begin: float
    width: float
    share: str
    hours: str
    lost: bool


@dataclass(frozen=True, slots=True)
class BudgetTable:
    """The table of the time budget; losses are the last rows."""

    title: str
    note: str
    rows: tuple[BudgetRow, ...]


def budget_table(report: Report) -> BudgetTable | None:
    """Return the time budget; None in a report of an older version."""
    budget = report.budget
    if budget is None:
        return None
    shares = budget.shares
    if shares.lost < WORTH_SAYING:
        lost = "nothing" if shares.lost < _NEGLIGIBLE else rough_percent(shares.lost)
        title = f"Computing takes {rough_percent(shares.computing)} of the time; {lost} is lost"
    else:
        most = max((part for part in Part if part.lost), key=shares.of)
        title = f"{rough_percent(shares.lost)} of the time is lost, most of it by {most.words}"
    parts = sorted(Part, key=lambda part: part.lost)
    parts = [part for part in parts if shares.of(part) >= _SHOWN]
    begins = accumulate((100 * shares.of(part) for part in parts), initial=0.0)
    gpu_hours = report.sizes.world * budget.wall_s / SECONDS_AN_HOUR
    return BudgetTable(
        title=title,
        note="Of all GPUs, from the first operation to the last, without gaps in which no step was "
        "recorded",
        rows=tuple(
            BudgetRow(
                part.value,
                f"{part.words[0].upper()}{part.words[1:]}",
                begin,
                100 * shares.of(part),
                percent(shares.of(part)),
                hours(gpu_hours * shares.of(part)),
                part.lost,
            )
            for part, begin in zip(parts, begins, strict=False)
        ),
    )


# Height of the strip without its margins, and of a label right of it, in pixels.
STRIP_HEIGHT: Final = 80.0
LABEL_HEIGHT: Final = 13.0

Label = tuple[float, str]


@dataclass(frozen=True, slots=True)
class Level:
    """A dashed horizontal line across the bars; its label is `shift` pixels above the line."""

    value: float
    label: str
    shift: float


@dataclass(frozen=True, slots=True)
class StepBars:
    """A bar chart over steps, which bars.js draws."""

    values: list[float | None]
    base: float  # value at which bars begin
    range: tuple[float, float]  # of the vertical axis
    ticks: list[Label]
    words: list[str]  # hint of each bar
    unit: str = ""  # above the vertical axis
    right: tuple[Label, ...] = ()  # labels of the axis on the right, in other units
    level: Level | None = None
    marks: tuple[float | None, ...] = ()  # value of a horizontal line for each step
    starts: tuple[int, ...] = ()  # positions at which another recorded stretch begins


def strip(report: Report) -> StepBars:
    """Return the steps' slowdowns as bars from 1.0, with the job's slowdown as a dashed line."""
    steps, slowdowns = report.steps.analyzed, step_slowdowns(report)
    total = report.headline.slowdown
    simulated = report.step_times.simulated
    reference_s = sum(simulated) / len(simulated) / total
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
    """Return each step's recorded and replayed time in seconds, for pages without S."""
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
    """Return each step's launch delays, in per cent of the step's replay without them."""
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
    """Return the forward and backward times of microbatches, in milliseconds."""
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
    """Return evenly spaced round values from below `low` to above `high`, including 0."""
    tick = nice_tick(high - low, 3)
    first, last = math.floor(low / tick + 1e-9), math.ceil(high / tick - 1e-9)
    values = [round(index * tick, 9) for index in range(first, last + 1)]
    return [(value, f"{value:g}".replace("-", MINUS)) for value in values]


def _label_shift(values: Sequence[float], top: float, total: float) -> float:
    """Return the upward shift of the dashed line's label, in pixels, that avoids other labels."""
    at, taken = _height(total, top), [_height(value, top) for value in values]
    edges = [tick + side * LABEL_HEIGHT for tick in taken for side in (-1, 1)]
    free = [
        height
        for height in (at, *edges)
        if height <= STRIP_HEIGHT
        and all(abs(height - tick) >= LABEL_HEIGHT - 1e-9 for tick in taken)
    ]
    return min(free, key=lambda height: abs(height - at)) - at


def _height(value: float, top: float) -> float:
    return STRIP_HEIGHT * (value - 1) / (top - 1)


# Cells are drawn with gaps up to these numbers of workers, DP ranks and stages.
GAPPED_CELLS: Final = 1024
GAPPED_RANKS: Final = 64
GAPPED_STAGES: Final = 24
# Slowdowns are rounded to visible differences, so that cells of equal color share an SVG path.
DIGITS: Final = 2
# Limit of the SVG's characters: a longer SVG would dominate the size of the page, so the script
# draws the map instead.
MOST_CHARACTERS: Final = 100_000


@dataclass(frozen=True, slots=True)
class FirstMap:
    """The map of workers before the script runs, as SVG paths by color: columns DP, rows stages."""

    dp: int
    pp: int
    dense: bool
    paths: tuple[tuple[str, str], ...]  # color, path


def first_map(report: Report) -> FirstMap | None:
    """Return the map of mean slowdowns; None if its SVG would be too long."""
    dp, pp = report.sizes.dp, report.sizes.pp
    dense = dp * pp > GAPPED_CELLS or dp > GAPPED_RANKS or pp > GAPPED_STAGES
    by_stage = np.clip(
        np.asarray(report.by_worker.exact, dtype=np.float64).T, SCALE_LOW, SCALE_HIGH
    )
    shown = by_stage.round(DIGITS)
    if not dense:
        # Workers that are missing in the recording get no color here; the script hatches their
        # cells.
        for missing in report.coverage.missing:
            shown[missing.worker[::-1]] = np.nan
    levels, counts = np.unique(shown[~np.isnan(shown)], return_counts=True)
    paths = []
    if dense:
        # One rectangle of the most frequent color is the background, so those cells need no path.
        common = levels[counts.argmax()]
        paths.append((heat_color(float(common)), f"M0 0h{dp}v{pp}h{-dp}z"))
        levels = levels[levels != common]
    for level in levels:
        cells = shown == level
        parts = (
            _runs(cells)
            if dense
            else [f"M{rank} {stage}h1v1h-1z" for stage, rank in np.argwhere(cells).tolist()]
        )
        paths.append((heat_color(float(level)), "".join(parts)))
    if sum(len(path) for _, path in paths) > MOST_CHARACTERS:
        return None
    return FirstMap(dp, pp, dense, tuple(paths))


def _runs(chosen: NDArray[np.bool_]) -> list[str]:
    """Return the chosen cells as rectangles; neighboring cells of a stage share a rectangle."""
    edges = np.diff(np.pad(chosen, ((0, 0), (1, 1))).astype(np.int8), axis=1)
    begins, ends = np.argwhere(edges == 1).tolist(), np.argwhere(edges == -1).tolist()
    return [
        f"M{begin} {stage}h{end - begin}v1H{begin}z"
        for (stage, begin), (_, end) in zip(begins, ends, strict=True)
    ]
