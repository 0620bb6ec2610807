"""The paper's figures over the jobs of this fleet: SVG plots, and titles with the findings."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, compress
from typing import Final

from app.analysis.fleet import share_from
from app.analysis.replay.metrics import HALF, STRAGGLING
from app.jobs.fleet_report import Against, Figure, Lengths, Name
from app.web import html
from app.web.format import count, percent, plural, ratio, rough_percent, times
from app.web.moments import When
from app.web.tables import Drawn, Shown, drawn

WIDTH: Final = 380
HEIGHT: Final = 208
LEFT: Final = 40
RIGHT: Final = 372
TOP: Final = 10
BASE: Final = HEIGHT - 36
_TICKS: Final = (0.0, 0.25, 0.5, 0.75, 1.0)
# CSS classes of the first, second … curve of a plot, defined in report.css.
KINDS: Final = ("main", "accent", "dash", "soft")


@dataclass(frozen=True, slots=True)
class Line:
    """A curve of a plot: SVG path, CSS class, label."""

    path: str
    kind: str
    label: str


@dataclass(frozen=True, slots=True)
class Label:
    """A text at a position of a plot."""

    x: float
    y: float
    text: str
    anchor: str = "middle"
    when: When | None = None  # the moment that the text names


@dataclass(frozen=True, slots=True)
class Dot:
    """A marked point of a plot, with a text on hover."""

    x: float
    y: float
    hint: str
    label: Label | None = None
    when: When | None = None  # the moment that the hint names


@dataclass(frozen=True, slots=True)
class Plot:
    """A plot; `levels` are the labels of its horizontal lines."""

    lines: Sequence[Line]
    levels: Sequence[Label]
    ticks: Sequence[Label]
    paper: Sequence[Dot]
    dots: Sequence[Dot]
    unit: str


@dataclass(frozen=True, slots=True)
class Scale:
    """A vertical or horizontal axis."""

    low: float
    high: float
    ticks: Sequence[tuple[float, str]]

    def x(self, value: float) -> float:
        """Return the position of a value on a horizontal axis, clipped to its ends."""
        share = (min(max(value, self.low), self.high) - self.low) / (self.high - self.low)
        return round(LEFT + share * (RIGHT - LEFT), 1)

    def y(self, value: float) -> float:
        """Return the position of a value on a vertical axis, clipped to its ends."""
        share = (min(max(value, self.low), self.high) - self.low) / (self.high - self.low)
        return round(BASE - share * (BASE - TOP), 1)


SHARES: Final = Scale(0, 1, [(share, f"{share:.0%}".replace("%", "\u00a0%")) for share in _TICKS])


def distribution(
    curves: Sequence[tuple[str, Sequence[tuple[float, float]]]],
    paper: Sequence[tuple[float, float, str]],
    axis: Scale,
    unit: str,
) -> Plot:
    """Return a plot of cumulative distributions as step functions.

    Parameters
    ----------
    curves : sequence of (str, points)
        Label and points: (value, share of the values that are at most as large).
    paper : sequence of (value, share, words)
    """
    lines = [
        Line(_scale_steps(points, axis), KINDS[at % len(KINDS)], label)
        for at, (label, points) in enumerate(curves)
        if points
    ]
    last = len(axis.ticks) - 1
    return Plot(
        lines=lines,
        levels=[Label(LEFT - 6, SHARES.y(share), text, "end") for share, text in SHARES.ticks],
        ticks=[
            Label(axis.x(value), BASE + 16, text, "end" if at == last else "middle")
            for at, (value, text) in enumerate(axis.ticks)
        ],
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
    """Return a plot of a trend: values of periods, earliest first; None without data.

    Parameters
    ----------
    points : sequence of (float or None, When)
        Value of each period, and the end of the period.
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
    """Return the smallest choice that no value exceeds; the last choice if there is none."""
    most = max(values, default=0.0)
    return next((end for end in choices if most <= end), choices[-1])


def _scale_steps(points: Sequence[tuple[float, float]], axis: Scale) -> str:
    path = [f"M{axis.x(axis.low)} {SHARES.y(0)}"]
    path += [f"H{axis.x(value)}V{SHARES.y(share)}" for value, share in points]
    path.append(f"H{axis.x(axis.high)}")
    return "".join(path)


# Thresholds of shares and of a correlation from which on the paper blames workers, a stage or
# sequence lengths.
BLAMED: Final = 0.5
CORRELATED: Final = 0.9
# Possible upper ends of an axis of shares.
ENDS: Final = (0.1, 0.2, 0.3, 0.5, 1.0)


@dataclass(frozen=True, slots=True)
class ExampleLink:
    """A job with one of the largest values of a figure."""

    url: str
    text: str
    value: str


@dataclass(frozen=True, slots=True)
class FigureView:
    """A figure and its title, which states the finding."""

    title: str
    note: str
    plot: Plot
    paper: str
    examples: Sequence[ExampleLink]


@dataclass(frozen=True, slots=True)
class AgainstView:
    """S of jobs by their size."""

    title: str
    note: str
    table: Drawn


def _percents(end: float, parts: int = 5) -> list[tuple[float, str]]:
    return [(end * at / parts, percent(end * at / parts, 0)) for at in range(parts + 1)]


def _numbers(low: float, high: float, parts: int) -> list[tuple[float, str]]:
    step = (high - low) / parts
    return [(low + at * step, ratio(low + at * step, 1)) for at in range(parts + 1)]


def figure_view(figure: Figure) -> FigureView:
    """Return a figure and its title, which states the finding."""
    title, note, axis, unit, written = _PARTS[figure.name](figure)
    return FigureView(
        title=title if figure.jobs else "Nothing to draw",
        note=note,
        plot=distribution(
            [(curve.label, curve.points) for curve in figure.curves],
            [(point.value, point.share, point.words) for point in figure.paper],
            axis,
            unit,
        ),
        paper="; ".join(point.words for point in figure.paper),
        examples=[
            ExampleLink(
                f"/sessions/{example.session}",
                f"{example.job}, session {example.number}",
                f"{example.note} {written(example.value)}".strip(),
            )
            for example in figure.examples
        ],
    )


_Parts = tuple[str, str, Scale, str, Callable[[float], str]]


def _waste(figure: Figure) -> _Parts:
    slow = sum(value >= 1 - 1 / STRAGGLING for value in figure.values)
    end = upper(figure.values, ENDS[2:])
    return (
        (
            f"{count(slow)} of {plural(figure.jobs, 'job')} straggle; half waste under "
            f"{percent(_quantile(figure.values, 0.5))}"
        ),
        "Share of jobs that waste less, each by its median session",
        Scale(0, end, _percents(end)),
        "waste by S, share of GPU-hours",
        percent,
    )


def _steps(figure: Figure) -> _Parts:
    p90 = _quantile(figure.values, 0.9)
    alike = p90 < STRAGGLING
    return (
        (
            f"Slow jobs are slow in {'every step' if alike else 'some steps'}: 90\u00a0% of steps "
            f"below {ratio(p90)}"
        ),
        f"Steps of {plural(figure.jobs, 'straggling job')}, each job counts alike",
        Scale(0.8, 1.4, _numbers(0.8, 1.4, 6)),
        "slowdown of a step ÷ S of its job",
        times,
    )


def _operations(figure: Figure) -> _Parts:
    means = {curve.label: _mean_of(curve.points) for curve in figure.curves if curve.points}
    first = max(means, key=means.__getitem__) if means else ""
    end = upper([point[0] for curve in figure.curves for point in curve.points], ENDS)
    return (
        f"{first[:1].upper()}{first[1:]} {'waste' if first.endswith('s') else 'wastes'} the most",
        "Share of jobs that waste less by this kind of operation alone",
        Scale(0, end, _percents(end)),
        "waste, share of GPU-hours",
        percent,
    )


def _blamed(
    least: float, who: str, of: str, axis: tuple[float, float, int], unit: str
) -> Callable[[Figure], _Parts]:
    """Return the function that describes a figure of blame, where blame begins at `least`."""

    def parts(figure: Figure) -> _Parts:
        share = share_from(figure.values, least)
        low, high, steps = axis
        return (
            f"{who} to blame in {rough_percent(share)} of slow jobs",
            f"{plural(figure.jobs, 'straggling job')}; {of}",
            Scale(low, high, _numbers(low, high, steps)),
            unit,
            ratio,
        )

    return parts


def _quantile(values: Sequence[float], share: float) -> float:
    """Return a quantile: the smallest value with at least this share of values up to it, or 0."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, math.ceil(share * len(ordered)) - 1)] if ordered else 0.0


def _mean_of(points: Sequence[tuple[float, float]]) -> float:
    """Return the mean of a cumulative distribution from its points."""
    before, total = 0.0, 0.0
    for value, share in points:
        total += value * (share - before)
        before = share
    return total


def against_view(against: Against, unit: str, who: str, of: str, csv: str) -> AgainstView:
    """Return S of jobs by size, with a title that states the finding.

    The bars of the table begin at S = 1 and end at the 90th percentile; a mark is at the median.
    """
    end = max((1.5, *(sizes.p90 for sizes in against.classes)))

    def position(slowdown: float) -> float:
        return 100 * (slowdown - 1) / (end - 1)

    table = drawn(
        (
            Shown(
                "Size",
                lambda sizes: f"{count(int(sizes.low))} to {count(int(sizes.high) - 1)} {unit}",
            ),
            Shown(
                "S",
                lambda sizes: html.bar(
                    position(sizes.p90), mark=min(position(sizes.median), 100 - 1.5)
                ),
                classes="b",
            ),
            Shown(
                html.element("span", "In numbers", class_="vh"),
                lambda sizes: f"{times(sizes.median)}, 90th {times(sizes.p90)}",
                classes="num",
            ),
            Shown("Jobs", lambda sizes: count(sizes.jobs), classes="num"),
        ),
        against.classes,
        csv=csv,
        classes="plain bars",
    )
    if not against.jobs:
        return AgainstView("No job says how long its sequences are", of, table)
    rho = against.correlation
    if rho is None:
        title = f"S against {unit}: too few jobs to compare"
    elif abs(rho) < 0.2:  # noqa: PLR2004 - a negligible correlation
        title = f"{who} are not slower: rank correlation {ratio(rho)}"
    else:
        title = f"{who} are {'slower' if rho > 0 else 'faster'}: rank correlation {ratio(rho)}"
    note = f"{of}, {count(against.jobs)}; median S and 90th percentile, from 1.0 to {ratio(end, 1)}"
    return AgainstView(title, note, table)


def lengths_view(lengths: Lengths, csv: str) -> AgainstView:
    """Return the histogram of sequence lengths, as the paper's figure 10; the bars are shares."""
    most = max((bar.share for bar in lengths.classes), default=1.0)
    table = drawn(
        (
            Shown("Length", lambda bar: f"{count(bar.low)} to {count(bar.high - 1)} tokens"),
            Shown("Sequences", lambda bar: html.bar(100 * bar.share / most), classes="b"),
            Shown(
                html.element("span", "In numbers", class_="vh"),
                lambda bar: rough_percent(bar.share),
                classes="num",
            ),
        ),
        lengths.classes,
        csv=csv,
        classes="plain bars",
    )
    of = "Jobs whose metadata have sequence_lengths"
    if not lengths.jobs:
        return AgainstView("No job records the lengths of its sequences", of, table)
    below = accumulate(bar.share for bar in lengths.classes)
    # Sums of shares may end a rounding below a half.
    reached = (share >= HALF - 1e-9 for share in below)
    half = next(compress(lengths.classes, reached))
    title = (
        f"Half of the sequences are shorter than {count(half.high)} tokens, "
        f"the longest up to {count(lengths.classes[-1].high - 1)}"
    )
    return AgainstView(title, f"{of}, {count(lengths.jobs)}; each job counts alike", table)


_PARTS: Final = {
    Name.WASTE: _waste,
    Name.STEPS: _steps,
    Name.OPERATIONS: _operations,
    Name.M_W: _blamed(
        BLAMED,
        "Few workers are",
        "of the lost time, what the slowest 3\u00a0% of workers account for",
        (0, 1, 5),
        "M_W",
    ),
    Name.M_S: _blamed(
        BLAMED,
        "The last stage is",
        "of the lost time, what the last stage accounts for",
        (0, 1, 5),
        "M_S",
    ),
    Name.CORRELATION: _blamed(
        CORRELATED,
        "Sequence lengths are",
        "forward against backward times, to blame from 0.9 on",
        (-0.2, 1, 6),
        "Pearson’s r",
    ),
}
