"""Lines over steps as SVG, drawn on the server: the times of a group's ranks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from app.analysis.mitigation.tensor.document import Method
from app.dashboard.ui.format import count
from app.services.tensor.read import PlanRow, ReportRow

# Of the drawing, in its own units; it is stretched to the page.
WIDTH: Final = 1000.0
HEIGHT: Final = 120.0
# Room above the highest and below the lowest value, as a share of their distance.
_MARGIN: Final = 0.08
_TICKS: Final = 4
_STEP_TICKS: Final = 4
# A reports' gap that is longer than this multiple of the typical one is no line.
_GAP: Final = 5.0
# Versions that were applied, newest first.
_MOST_MARKS: Final = 6
# Labels right of this are written to the left of what they belong to, in per cent.
_LATE: Final = 70.0


@dataclass(frozen=True, slots=True)
class Tick:
    """A label of an axis, in per cent of its length."""

    at: float
    label: str


@dataclass(frozen=True, slots=True)
class Mark:
    """A vertical line, in per cent of the width."""

    at: float
    label: str

    @property
    def late(self) -> bool:
        """Return whether the label belongs to the left of the line."""
        return self.at > _LATE


@dataclass(frozen=True, slots=True)
class TimesFigure:
    """T of the slow rank, of the others, and what was predicted."""

    # slow, others: SVG paths in `WIDTH` × `HEIGHT`; others is the mean of all other ranks
    slow: str
    others: str
    predicted: str  # the prediction of each version while it was in force
    values: tuple[Tick, ...]
    steps: tuple[Tick, ...]
    marks: tuple[Mark, ...]
    from_s: float


@dataclass(frozen=True, slots=True)
class _Scale:
    """Where steps and times stand, as shares of the drawing; times count from above."""

    first: int
    span: int
    low: float
    high: float

    def x(self, step: float) -> float:
        return (step - self.first) / self.span

    def within(self, step: float) -> float:
        return min(max(self.x(step), 0.0), 1.0)

    def y(self, value: float) -> float:
        return 1 - (value - self.low) / (self.high - self.low)


def times_figure(
    reports: Sequence[ReportRow], slow: int, plans: Sequence[PlanRow]
) -> TimesFigure | None:
    """Return the times over steps; None of a single report."""
    if len(reports) == 1:
        return None
    steps = [report.step for report in reports]
    own = [report.times_s[slow] for report in reports]
    rest = [(sum(r.times_s) - r.times_s[slow]) / (len(r.times_s) - 1) for r in reports]
    ticks = _nice(min(*own, *rest), max(*own, *rest))
    scale = _Scale(steps[0], steps[-1] - steps[0], ticks[0], ticks[-1])
    return TimesFigure(
        slow=_path(scale, steps, own),
        others=_path(scale, steps, rest),
        predicted=_predictions(scale, plans),
        values=tuple(Tick(100 * scale.y(value), f"{value:g}") for value in ticks),
        steps=tuple(
            Tick(100 * n / _STEP_TICKS, count(round(scale.first + scale.span * n / _STEP_TICKS)))
            for n in range(_STEP_TICKS + 1)
        ),
        marks=_marks(scale, plans),
        from_s=scale.low,
    )


def _path(scale: _Scale, steps: Sequence[int], values: Sequence[float]) -> str:
    between = sorted(b - a for a, b in pairwise(steps))
    longest = _GAP * between[(len(between) - 1) // 2]
    parts, before = [], None
    for step, value in zip(steps, values, strict=True):
        joined = before is not None and step - before <= longest
        place = f"{scale.x(step) * WIDTH:.1f} {scale.y(value) * HEIGHT:.1f}"
        parts.append(("L" if joined else "M") + place)
        before = step
    return "".join(parts)


def _predictions(scale: _Scale, plans: Sequence[PlanRow]) -> str:
    parts = []
    for plan in plans:
        if plan.method is Method.NONE or plan.applied_step is None:
            continue
        begin = scale.within(plan.applied_step)
        end = 1.0 if plan.ended_step is None else scale.within(plan.ended_step)
        if end > begin and scale.low <= plan.predicted_time_s <= scale.high:
            level = scale.y(plan.predicted_time_s) * HEIGHT
            parts.append(f"M{begin * WIDTH:.1f} {level:.1f}H{end * WIDTH:.1f}")
    return "".join(parts)


def _marks(scale: _Scale, plans: Sequence[PlanRow]) -> tuple[Mark, ...]:
    return tuple(
        Mark(
            100 * scale.x(plan.applied_step),
            "withdrawn" if plan.method is Method.NONE else f"plan {plan.version}",
        )
        for plan in plans
        if plan.applied_step is not None and 0 <= scale.x(plan.applied_step) <= 1
    )[:_MOST_MARKS]


def _nice(low: float, high: float) -> list[float]:
    """Return ticks around values, at 1, 2 or 5 times a power of ten."""
    margin = _MARGIN * (high - low) or 0.05 * high
    low, high = max(low - margin, 0.0), high + margin
    rough = (high - low) / _TICKS
    power = 10 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough)
    first, last = math.floor(low / step), math.ceil(high / step)
    return [round(number * step, 12) for number in range(first, last + 1)]
