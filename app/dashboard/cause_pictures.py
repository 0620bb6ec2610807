"""The small picture beside a cause: what the diagnosis kept of its sign, as rectangles."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from app.dashboard.format import (
    heat_color,
    percent,
    plural,
    rough_percent,
    seconds,
    times,
    worker,
)

Document = Mapping[str, Any]
T = TypeVar("T")

WIDTH: Final = 240
HEIGHT: Final = 40
# More bars, or rows of a matrix, than this do not show: each one is then the worst of several.
MOST_BARS: Final = 60
MOST_ROWS: Final = 10
# Marks of this width and more have a gap of a pixel between them.
_WITH_GAP: Final = 3.0
_MARK: Final = "var(--mark)"
_DOT: Final = 2.0
_DOTS: Final = 240
_LISTED: Final = 16


@dataclass(frozen=True, slots=True)
class Mark:
    """A rectangle of a picture of 240 × 40."""

    x: float
    y: float
    width: float
    height: float
    color: str


@dataclass(frozen=True, slots=True)
class Picture:
    """Marks with a caption; `label` says in words what they show, `line` is a height to compare."""

    caption: str
    label: str
    marks: tuple[Mark, ...]
    line: float | None = None


def cause_picture(document: Document, cause: Document) -> Picture | None:
    """Return the picture of a cause; None where there is nothing to draw.

    Reports of earlier versions have fewer of them.
    """
    figure = cause.get("figure") or {}
    draw = _PICTURES.get(figure.get("kind", ""))
    return None if draw is None else draw(figure, document)


def _worker_steps(figure: Document, _: Document) -> Picture:
    name, ratio = worker(*figure["worker"]), figure["ratio"]
    low, high = times(min(ratio)), times(max(ratio))
    bars, of = _worst(ratio, MOST_BARS)
    return Picture(
        caption=f"Worker {name} ÷ its peers in each step, from 1.0: {low} to {high}{of}",
        label=f"Bars of {plural(len(ratio), 'step')}: worker {name} takes {low} to {high} "
        "the time of its stage's peers",
        marks=_bars(bars, base=1.0, color=heat_color),
    )


def _stage_load(figure: Document, _: Document) -> Picture:
    relative = figure["relative"]
    bars, of = _worst(relative, MOST_BARS)
    listed = ", ".join(times(value) for value in relative[:_LISTED])
    rest = len(relative) - _LISTED
    return Picture(
        caption=f"Computation of stages 0 to {len(relative) - 1}, from 0; line: their mean{of}",
        label=f"Bars of {plural(len(relative), 'stage')} against their mean: {listed}"
        + (f" and {rest} more" if rest > 0 else ""),
        marks=_bars(bars, base=0.0, color=heat_color),
        line=round(HEIGHT * (1 - 1 / max(bars)), 1),
    )


def _waits(what: str, by_step_s: Sequence[float], *, added: bool = False) -> Picture:
    """Draw the wait in each step; `added` over all workers it may be longer than the step."""
    bars, of = _worst(by_step_s, MOST_BARS)
    within = "each step, all workers added" if added else "each step"
    high = seconds(max(by_step_s))
    mean = seconds(sum(by_step_s) / len(by_step_s))
    return Picture(
        caption=f"{what} in {within}, from 0: up to {high}{of}",
        label=f"Bars of {plural(len(by_step_s), 'step')}: {what.lower()} in {within}, "
        f"{mean} on average, {high} at most",
        marks=_bars(bars, base=0.0, color=lambda _: _MARK),
    )


def _links(figure: Document, _: Document) -> Picture:
    ends, ratio = figure["ends"], figure["ratio"]
    worst = max((value, row, dp) for row, line in enumerate(ratio) for dp, value in enumerate(line))
    rows = [[max(column) for column in zip(*group, strict=True)]
            for group in _grouped(ratio, MOST_ROWS)]  # fmt: skip
    matrix = [_worst(row, MOST_BARS)[0] for row in rows]
    width, height = WIDTH / len(matrix[0]), HEIGHT / len(matrix)
    between = f"stages {ends[worst[1]][0]} and {ends[worst[1]][1]}"
    return Picture(
        caption="Links between stages (rows) of DP ranks (columns): transfers ÷ median, colors as "
        "in the map",
        label=f"Matrix of {plural(len(ends), 'link')} of {plural(len(ratio[0]), 'DP rank')}: the "
        f"slowest, between {between} of DP rank {worst[2]}, takes {times(worst[0])} the median",
        marks=tuple(
            _mark(column * width, row * height, width, height - 1, heat_color(value))
            for row, line in enumerate(matrix)
            for column, value in enumerate(line)
        ),
    )


def _late_ranks(figure: Document, _: Document) -> Picture:
    name, ranks, share = worker(*figure["worker"]), figure["ranks"], figure["share"]
    bars, of = _worst(share, MOST_BARS)
    worst = max(range(len(share)), key=share.__getitem__)
    shares = ", ".join(
        f"{rank} {percent(part, 0)}"
        for rank, part in zip(ranks[:_LISTED], share[:_LISTED], strict=True)
    )
    return Picture(
        caption=f"For which rank of worker {name} its group waits; rank {ranks[worst]}: "
        f"{rough_percent(share[worst])}{of}",
        label=f"Bars of the ranks of worker {name}, share of the waiting: {shares}",
        marks=_bars(bars, base=0.0, color=lambda _: _MARK),
    )


def _scatter(_: Document, document: Document) -> Picture | None:
    sample, r = document["fb_correlation"]["sample"], document["fb_correlation"]["pearson"]
    every = max(1, -(-len(sample["forward_s"]) // _DOTS))
    across, up = sample["forward_s"][::every], sample["backward_s"][::every]
    if r is None or not across:
        return None
    return Picture(
        caption=f"Forward (across) against backward (up) of microbatches: r = {r:.2f}",
        label=f"Points of {plural(len(across), 'microbatch', 'microbatches')}: forward takes "
        f"{seconds(min(across))} to {seconds(max(across))}, backward {seconds(min(up))} to "
        f"{seconds(max(up))}, r = {r:.2f}",
        marks=tuple(
            Mark(
                x=round(x * (WIDTH - _DOT), 1),
                y=round((1 - y) * (HEIGHT - _DOT), 1),
                width=_DOT,
                height=_DOT,
                color=_MARK,
            )
            for x, y in zip(_unit(across), _unit(up), strict=True)
        ),
    )


_PICTURES: Final[dict[str, Callable[[Document, Document], Picture | None]]] = {
    "worker_steps": _worker_steps,
    "stage_load": _stage_load,
    "stalls": lambda figure, _: _waits("Stalled forwards", figure["by_step_s"], added=True),
    "late_launches": lambda figure, _: _waits(
        "Wait before the first operation", figure["by_step_s"]
    ),
    "held_launches": lambda figure, _: _waits(
        "Computations held up", figure["by_step_s"], added=True
    ),
    "links": _links,
    "late_ranks": _late_ranks,
    "scatter": _scatter,
}


def _unit(values: Sequence[float]) -> list[float]:
    """Return values from 0, the smallest, to 1."""
    low, high = min(values), max(values)
    return [(value - low) / ((high - low) or 1.0) for value in values]


def _grouped(values: Sequence[T], most: int) -> list[Sequence[T]]:
    """Return neighbors together, so that there are at most so many groups."""
    size = -(-len(values) // most)
    return [values[i : i + size] for i in range(0, len(values), size)]


def _worst(values: Sequence[float], most: int) -> tuple[list[float], str]:
    """Return the largest of each group, and what to say of that."""
    groups = _grouped(values, most)
    size = len(groups[0])
    return [max(group) for group in groups], f"; a bar is the worst of {size}" if size > 1 else ""


def _bars(
    values: Sequence[float], *, base: float, color: Callable[[float], str]
) -> tuple[Mark, ...]:
    """Return bars from `base`, the longest as high as the picture."""
    width = WIDTH / len(values)
    span = max(max(values) - base, 1e-9)
    marks = []
    for index, value in enumerate(values):
        height = HEIGHT * max(0.0, value - base) / span
        if height:
            marks.append(_mark(index * width, HEIGHT - height, width, height, color(value)))
    return tuple(marks)


def _mark(x: float, y: float, width: float, height: float, color: str) -> Mark:
    gap = 1.0 if width >= _WITH_GAP else 0.0
    return Mark(round(x, 2), round(y, 2), round(width - gap, 2), round(height, 2), color)
