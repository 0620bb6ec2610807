"""Curves of a report as SVG: distributions with the paper's points, and a trend."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from app.dashboard.ui.moments import When

WIDTH: Final = 380
HEIGHT: Final = 208
LEFT: Final = 40
RIGHT: Final = 372
TOP: Final = 10
BASE: Final = HEIGHT - 36
_TICKS: Final = (0.0, 0.25, 0.5, 0.75, 1.0)
# Curves in the order in which they are given: classes of report.css.
KINDS: Final = ("main", "accent", "dash", "soft")


@dataclass(frozen=True, slots=True)
class Line:
    """A drawn line: its path, its class, and how it is called."""

    path: str
    kind: str
    label: str


@dataclass(frozen=True, slots=True)
class Label:
    """A text at a place."""

    x: float
    y: float
    text: str
    anchor: str = "middle"
    when: When | None = None  # what the text is


@dataclass(frozen=True, slots=True)
class Dot:
    """A marked place; `hint` says what it is."""

    x: float
    y: float
    hint: str
    label: Label | None = None
    when: When | None = None  # what the hint is


@dataclass(frozen=True, slots=True)
class Plot:
    """A figure; `levels` are the lines across it, with what they are."""

    lines: Sequence[Line]
    levels: Sequence[Label]
    ticks: Sequence[Label]
    paper: Sequence[Dot]
    dots: Sequence[Dot]
    unit: str


@dataclass(frozen=True, slots=True)
class Scale:
    """An upright or lying axis."""

    low: float
    high: float
    ticks: Sequence[tuple[float, str]]

    def x(self, value: float) -> float:
        """Return the place of a value on a lying axis; beyond its ends it is at them."""
        share = (min(max(value, self.low), self.high) - self.low) / (self.high - self.low)
        return round(LEFT + share * (RIGHT - LEFT), 1)

    def y(self, value: float) -> float:
        """Return the place of a value on an upright axis."""
        share = (min(max(value, self.low), self.high) - self.low) / (self.high - self.low)
        return round(BASE - share * (BASE - TOP), 1)


SHARES: Final = Scale(0, 1, [(share, f"{share:.0%}".replace("%", "\u00a0%")) for share in _TICKS])


def distribution(
    curves: Sequence[tuple[str, Sequence[tuple[float, float]]]],
    paper: Sequence[tuple[float, float, str]],
    axis: Scale,
    unit: str,
) -> Plot:
    """Return distributions as steps.

    Parameters
    ----------
    curves : sequence of (str, points)
        Label and points: (value, share of what is at most so large).
    paper : sequence of (value, share, words)
    """
    lines = [
        Line(_steps(points, axis), KINDS[at % len(KINDS)], label)
        for at, (label, points) in enumerate(curves)
        if points
    ]
    return Plot(
        lines=lines,
        levels=[Label(LEFT - 6, SHARES.y(share), text, "end") for share, text in SHARES.ticks],
        ticks=_ticks(axis),
        paper=[
            Dot(axis.x(value), SHARES.y(share), f"the paper: {words}")
            for value, share, words in paper
        ],
        dots=(),
        unit=unit,
    )


def over_time(
    points: Sequence[tuple[float | None, When]], axis: Scale, unit: str, last: str
) -> Plot:
    """Return a trend: values of periods, the earliest first; None where there are no data.

    Parameters
    ----------
    points : sequence of (float or None, When)
        With the end of each period.
    """
    step = (RIGHT - LEFT - 40) / max(1, len(points) - 1)
    places = [
        (round(LEFT + 12 + at * step, 1), value, when) for at, (value, when) in enumerate(points)
    ]
    path: list[str] = []
    pen = "M"
    for x, value, _ in places:
        if value is None:
            pen = "M"
            continue
        path.append(f"{pen}{x} {axis.y(value)}")
        pen = "L"
    every = 1 if len(points) <= 4 else 2  # noqa: PLR2004 - labels that fit
    return Plot(
        lines=[Line("".join(path), "main", "")] if path else [],
        levels=[Label(LEFT - 6, axis.y(value), text, "end") for value, text in axis.ticks],
        ticks=[
            Label(x, BASE + 16, when.text, when=when)
            for at, (x, _, when) in enumerate(places)
            if (len(places) - 1 - at) % every == 0
        ],
        paper=(),
        dots=[
            Dot(
                x,
                axis.y(value),
                when.text,
                Label(x, axis.y(value) - 8, last, "end") if at == len(places) - 1 else None,
                when,
            )
            for at, (x, value, when) in enumerate(places)
            if value is not None
        ],
        unit=unit,
    )


def upper(values: Sequence[float], choices: Sequence[float]) -> float:
    """Return the smallest of these ends that all values are below, or else the last."""
    most = max(values, default=0.0)
    return next((end for end in choices if most <= end), choices[-1])


def _steps(points: Sequence[tuple[float, float]], axis: Scale) -> str:
    path = [f"M{axis.x(axis.low)} {SHARES.y(0)}"]
    path += [f"H{axis.x(value)}V{SHARES.y(share)}" for value, share in points]
    path.append(f"H{axis.x(axis.high)}")
    return "".join(path)


def _ticks(axis: Scale) -> list[Label]:
    last = len(axis.ticks) - 1
    return [
        Label(axis.x(value), BASE + 16, text, "end" if at == last else "middle")
        for at, (value, text) in enumerate(axis.ticks)
    ]
