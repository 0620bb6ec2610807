"""The step times of two sessions on one axis."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from app.dashboard.ui.format import seconds

WIDTH: Final = 420
HEIGHT: Final = 132
LEFT: Final = 8
TOP: Final = 40
BASE: Final = HEIGHT - 20
BINS: Final = 48
TICKS: Final = 4
# Of the range that is added on either side, so that no bar stands at an edge.
_MARGIN: Final = 0.06


@dataclass(frozen=True, slots=True)
class Bar:
    """Steps of one session that took about as long."""

    x: float
    y: float
    width: float
    height: float
    after: bool
    hint: str


@dataclass(frozen=True, slots=True)
class Label:
    """A word at a place of the axis."""

    x: float
    text: str
    anchor: str = "middle"


@dataclass(frozen=True, slots=True)
class Histogram:
    """The figure; `predicted` is where the mean was predicted to be."""

    bars: Sequence[Bar]
    ticks: Sequence[Label]
    before: Label
    after: Label
    predicted: Label | None


def histogram(
    before: Sequence[float], after: Sequence[float], predicted_s: float | None
) -> Histogram:
    """Return the step times of two sessions, counted in bins of equal width.

    Parameters
    ----------
    before, after : sequence of float
        Seconds.
    predicted_s : float or None
        Step time that a fix was predicted to bring.
    """
    shown = [*before, *after, *([] if predicted_s is None else [predicted_s])]
    low, high = min(shown), max(shown)
    room = (high - low) * _MARGIN or high * _MARGIN
    low, high = low - room, high + room
    scale = (WIDTH - 2 * LEFT) / (high - low)

    def place(value: float) -> float:
        return round(LEFT + (value - low) * scale, 1)

    counts = [_counts(side, low, high) for side in (before, after)]
    most = max(max(side) for side in counts)
    width = (WIDTH - 2 * LEFT) / BINS
    bars = [
        Bar(
            x=round(LEFT + at * width, 1),
            y=round(BASE - number / most * (BASE - TOP), 1),
            width=round(width - 1, 1),
            height=round(number / most * (BASE - TOP), 1),
            after=bool(side),
            hint=f"{number} of {sum(counts[side])} steps at {_time(low, high, at)}",
        )
        for side in (0, 1)
        for at, number in enumerate(counts[side])
        if number
    ]
    means = [math.fsum(side) / len(side) for side in (before, after)]
    return Histogram(
        bars=bars,
        ticks=[Label(place(value), seconds(value), anchor) for value, anchor in _ticks(low, high)],
        before=_label(place(means[0]), f"before {seconds(means[0])}"),
        after=_label(place(means[1]), f"after {seconds(means[1])}"),
        predicted=None
        if predicted_s is None
        else _label(place(predicted_s), f"predicted {seconds(predicted_s)}"),
    )


def _counts(values: Sequence[float], low: float, high: float) -> list[int]:
    found = [0] * BINS
    for value in values:
        found[min(int((value - low) / (high - low) * BINS), BINS - 1)] += 1
    return found


def _time(low: float, high: float, at: int) -> str:
    return seconds(low + (high - low) * (at + 0.5) / BINS)


def _ticks(low: float, high: float) -> list[tuple[float, str]]:
    anchors = ["start", *["middle"] * (TICKS - 1), "end"]
    return [(low + (high - low) * at / TICKS, anchor) for at, anchor in enumerate(anchors)]


def _label(x: float, text: str) -> Label:
    """Return a label that stays within the figure."""
    third = WIDTH / 3
    anchor = "start" if x < third else "end" if x > 2 * third else "middle"
    return Label(x, text, anchor)
