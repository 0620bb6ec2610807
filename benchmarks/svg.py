"""Scatter plots as SVG text: enough for the figures of the docs, readable in light and dark."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

_WIDTH: Final = 560
# Of the area in which points lie.
_AREA: Final = 284
_LEFT: Final = 64
_BOTTOM: Final = 52
_RIGHT: Final = 18
# The legend stands below the title and above the area: within it, it would cover points.
_LEGEND_TOP: Final = 40
_LEGEND_ROW: Final = 18
_LEGEND_GAP: Final = 18
_SQUARE: Final = 16
# Of a character of 12 pixels, wide enough for any font.
_CHARACTER: Final = 6.6

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Series:
    """Points of one color; joined where `line` is true. The name stands in the legend."""

    name: str
    points: Points
    color: str
    line: bool = False


@dataclass(frozen=True, slots=True)
class Axis:
    """Range and label of an axis, with the numbers that are written."""

    label: str
    low: float
    high: float
    ticks: Sequence[float]
    log: bool = False

    def share(self, value: float) -> float:
        """Return how far along the axis a value is, 0 to 1."""
        low, high = self.low, self.high
        if self.log:
            low, high, value = math.log(low), math.log(high), math.log(value)
        return (value - low) / (high - low)


def plot(title: str, x: Axis, y: Axis, series: Sequence[Series]) -> str:
    """Return a plot as an SVG document."""
    legend, rows = _legend(series)
    top = _LEGEND_TOP + _LEGEND_ROW * (rows - 1) + 16
    height = top + _AREA + _BOTTOM

    def across(value: float) -> float:
        return _LEFT + x.share(value) * (_WIDTH - _LEFT - _RIGHT)

    def up(value: float) -> float:
        return top + _AREA - y.share(value) * _AREA

    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img" '
            f'aria-label="{escape(title)}" font-family="system-ui, sans-serif" font-size="12">'
        ),
        f'<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<text x="{_LEFT}" y="20" font-size="14" fill="#1a1a1a">{escape(title)}</text>',
    ]
    for tick in x.ticks:
        at = across(tick)
        parts += [
            _line(at, up(y.low), at, up(y.high), "#e4e4e4"),
            (
                f'<text x="{at:.1f}" y="{top + _AREA + 16}" text-anchor="middle" '
                f'fill="#555555">{tick:g}</text>'
            ),
        ]
    for tick in y.ticks:
        at = up(tick)
        parts += [
            _line(across(x.low), at, across(x.high), at, "#e4e4e4"),
            (
                f'<text x="{_LEFT - 8}" y="{at + 4:.1f}" text-anchor="end" fill="#555555">{tick:g}'
                "</text>"
            ),
        ]
    parts += [
        (
            f'<text x="{(_LEFT + _WIDTH - _RIGHT) / 2}" y="{height - 12}" text-anchor="middle" '
            f'fill="#1a1a1a">{escape(x.label)}</text>'
        ),
        (
            f'<text transform="translate(16 {top + _AREA / 2}) rotate(-90)" '
            f'text-anchor="middle" fill="#1a1a1a">{escape(y.label)}</text>'
        ),
    ]
    for one in series:
        places = [(across(px), up(py)) for px, py in one.points]
        if one.line:
            joined = " ".join(f"{px:.1f},{py:.1f}" for px, py in places)
            parts.append(
                f'<polyline points="{joined}" fill="none" stroke="{one.color}" stroke-width="2"/>'
            )
        else:
            parts += [
                f'<circle cx="{px:.1f}" cy="{py:.1f}" r="2.6" fill="{one.color}" '
                'fill-opacity="0.7"/>'
                for px, py in places
            ]
    return "\n".join([*parts, *legend, "</svg>", ""])


def _legend(series: Sequence[Series]) -> tuple[list[str], int]:
    """Return the legend, side by side as far as there is room, and its number of rows."""
    parts: list[str] = []
    at, rows = float(_LEFT), 1
    for one in series:
        wide = _SQUARE + _CHARACTER * len(one.name)
        if at > _LEFT and at + wide > _WIDTH - _RIGHT:
            at, rows = float(_LEFT), rows + 1
        row = _LEGEND_TOP + _LEGEND_ROW * (rows - 1)
        parts += [
            f'<rect x="{at:.1f}" y="{row - 9}" width="10" height="10" fill="{one.color}"/>',
            f'<text x="{at + _SQUARE:.1f}" y="{row}" fill="#1a1a1a">{escape(one.name)}</text>',
        ]
        at += wide + _LEGEND_GAP
    return parts, rows


def _line(x1: float, y1: float, x2: float, y2: float, color: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{color}"/>'
