"""Scatter plots as SVG text: enough for the figures of the docs, readable in light and dark."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

_WIDTH: Final = 560
_HEIGHT: Final = 380
_LEFT: Final = 64
_BOTTOM: Final = 52
_TOP: Final = 44
_RIGHT: Final = 18

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

    def across(value: float) -> float:
        return _LEFT + x.share(value) * (_WIDTH - _LEFT - _RIGHT)

    def up(value: float) -> float:
        return _HEIGHT - _BOTTOM - y.share(value) * (_HEIGHT - _BOTTOM - _TOP)

    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
            f'aria-label="{escape(title)}" font-family="system-ui, sans-serif" font-size="12">'
        ),
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#ffffff"/>',
        f'<text x="{_LEFT}" y="20" font-size="14" fill="#1a1a1a">{escape(title)}</text>',
    ]
    for tick in x.ticks:
        at = across(tick)
        parts += [
            _line(at, up(y.low), at, up(y.high), "#e4e4e4"),
            (
                f'<text x="{at:.1f}" y="{_HEIGHT - _BOTTOM + 16}" text-anchor="middle" '
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
            f'<text x="{(_LEFT + _WIDTH - _RIGHT) / 2}" y="{_HEIGHT - 12}" text-anchor="middle" '
            f'fill="#1a1a1a">{escape(x.label)}</text>'
        ),
        (
            f'<text transform="translate(16 {(_TOP + _HEIGHT - _BOTTOM) / 2}) rotate(-90)" '
            f'text-anchor="middle" fill="#1a1a1a">{escape(y.label)}</text>'
        ),
    ]
    for number, one in enumerate(series):
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
        row = _TOP + 14 + 18 * number
        parts += [
            f'<rect x="{_LEFT + 12}" y="{row - 9}" width="10" height="10" fill="{one.color}"/>',
            f'<text x="{_LEFT + 28}" y="{row}" fill="#1a1a1a">{escape(one.name)}</text>',
        ]
    return "\n".join([*parts, "</svg>", ""])


def _line(x1: float, y1: float, x2: float, y2: float, color: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{color}"/>'
