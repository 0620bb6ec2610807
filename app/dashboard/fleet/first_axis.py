"""A job over time as the first response has it: lines as SVG, before any script."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from math import ceil
from typing import TYPE_CHECKING, Final

from app.dashboard.fleet.axis import (
    LOST,
    domain_of,
    height_of,
    known_panels,
    span_of,
    top_of,
)
from app.dashboard.ui.format import heat_color, times

if TYPE_CHECKING:
    from app.services.history.axis import JobAxis, TimePoint

# Each panel is drawn in a box of this size, which is stretched.
WIDTH: Final = 1000
HEIGHT: Final = 100
_ROOM: Final = 0.05
# More sessions than these cannot be told apart; of those next to each other the slowest is drawn.
MOST_POINTS: Final = 250


@dataclass(frozen=True, slots=True)
class FirstPanel:
    """A line over time."""

    top: float  # per cent of the height of the figure
    height: float
    words: str  # what it shows, from where to where
    line: str  # SVG path; it begins anew after a session of which nothing is known
    dots: tuple[tuple[str, str], ...]  # color, SVG path of all dots of that color


def first_axis(found: JobAxis) -> tuple[FirstPanel, ...]:
    """Return the panels of the figure of a job over time; none where nothing happened."""
    span = span_of(found)
    if span is None:
        return ()
    panels = known_panels(found)
    height = height_of(1 + len(panels))
    points = _fewer(found.points)
    at = [_across(point.received_at, span) for point in points]
    slowdowns = [point.slowdown for point in points]
    drawn = [
        _panel(
            0,
            height,
            f"slowdown, {_from_to([times(value) for value in _sorted(slowdowns)])}",
            at,
            values=slowdowns,
            limits=(0.98, 1 + (top_of(found.points) - 1) * 1.1),
            colored=True,
        )
    ]
    for place, panel in enumerate(panels, start=1):
        values = [panel.value(point) for point in points]
        known = _sorted(values)
        room = _ROOM * (known[-1] - known[0]) or abs(known[0]) * _ROOM or 1.0
        low = 0.0 if panel is LOST else known[0] - room
        words = f"{panel.unit}, {_from_to([panel.text(value) for value in known])}"
        limits = (low, known[-1] + room)
        drawn.append(_panel(place, height, words, at, values=values, limits=limits))
    return tuple(drawn)


def _panel(  # noqa: PLR0913 - where it is, and what is drawn
    place: int,
    height: float,
    words: str,
    at: Sequence[float],
    *,
    values: Sequence[float | None],
    limits: tuple[float, float],
    colored: bool = False,
) -> FirstPanel:
    low, high = limits
    line: list[str] = []
    dots: defaultdict[str, list[str]] = defaultdict(list)
    begun = False
    for x, value in zip(at, values, strict=True):
        if value is None:
            begun = False
            continue
        y = HEIGHT * (1 - (value - low) / (high - low))
        line.append(f"{'L' if begun else 'M'}{x:.1f} {y:.1f}")
        begun = True
        if colored:
            dots[heat_color(round(value, 2))].append(f"M{x:.1f} {y:.1f}h0")
    upper = domain_of(place, height)[1]
    return FirstPanel(
        top=round(100 * (1 - upper), 1),
        height=round(100 * height, 1),
        words=words,
        line="".join(line),
        dots=tuple((color, "".join(path)) for color, path in dots.items()),
    )


def _fewer(points: Sequence[TimePoint]) -> list[TimePoint]:
    size = ceil(len(points) / MOST_POINTS) or 1
    return [
        max(points[first : first + size], key=lambda point: point.slowdown or 0.0)
        for first in range(0, len(points), size)
    ]


def _across(moment: datetime, span: tuple[datetime, datetime]) -> float:
    first, last = span
    return WIDTH * ((moment - first) / (last - first))


def _sorted(values: Sequence[float | None]) -> list[float]:
    return sorted(value for value in values if value is not None)


def _from_to(texts: Sequence[str]) -> str:
    low, high = texts[0], texts[-1]
    return low if low == high else f"{low} to {high}"
