"""Figure of a job over time: panels of measurements, marks, and a first drawing without scripts."""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from math import ceil
from typing import Final

from app.jobs.time_axis import JobAxis, JobChange, Mark, MarkKind, TimePoint
from app.web.figures import (
    BASE,
    TEXT,
    TEXT_2,
    Figure,
    axis,
    base_layout,
    color_scale,
    corner,
    level,
    rounded,
)
from app.web.format import (
    NBSP,
    SCALE_HIGH,
    SCALE_LOW,
    TIMES,
    exact_time,
    heat_color,
    interval,
    seconds,
    times,
)


def compare_url(before: uuid.UUID, after: uuid.UUID) -> str:
    """Return the address of the comparison of two sessions."""
    return f"/compare?a={before}&b={after}"


def around_moment(points: Sequence[TimePoint], at: datetime) -> str:
    """Return the address of the comparison of the sessions before and after a time.

    The address is empty if there is no session before or after the time.

    Parameters
    ----------
    points : sequence of TimePoint
        Oldest first; sessions without a verdict are skipped.
    """
    measured = [point for point in points if point.slowdown is not None]
    before = [point for point in measured if point.received_at < at]
    after = [point for point in measured if point.received_at >= at]
    return compare_url(before[-1].id, after[0].id) if before and after else ""


def around_change(points: Sequence[TimePoint], change: JobChange) -> str:
    """Return the address of the comparison of a change's first session with the one before it."""
    return around_moment(points, change.at)


# Plotly symbol and name of each kind of mark.
SYMBOLS: Final = {
    MarkKind.ATTEMPT: "triangle-right-open",
    MarkKind.INCIDENT: "circle",
    MarkKind.FIX: "diamond-open",
    MarkKind.NOTE: "square-open",
    MarkKind.DEPLOYMENT: "triangle-up-open",
    MarkKind.CONFIG_CHANGE: "hexagon-open",
    MarkKind.CHECKPOINT: "triangle-down-open",
    MarkKind.MAINTENANCE: "cross-open",
}
NAMES: Final = {
    MarkKind.ATTEMPT: "Attempt",
    MarkKind.INCIDENT: "Incident",
    MarkKind.FIX: "Fix",
    MarkKind.NOTE: "Note",
    MarkKind.DEPLOYMENT: "Deployment",
    MarkKind.CONFIG_CHANGE: "Configuration",
    MarkKind.CHECKPOINT: "Checkpoint",
    MarkKind.MAINTENANCE: "Maintenance",
}
# Largest number of characters of a mark's text on hover; the table has the full text.
_HOVER_CHARS: Final = 80
# Largest number of vertical lines for marks; more would hide the measurements.
_MOST_LINES: Final = 40
_MIN_TOP: Final = 1.1
_MARKS_SHARE: Final = 0.07
_GAP: Final = 0.07


@dataclass(frozen=True, slots=True)
class MarkRow:
    """A mark as a row of the table."""

    at: datetime
    kind: str
    words: str
    url: str
    by: str
    note: int | None
    compare_url: str  # comparison of the sessions around it; "" if there are none


@dataclass(frozen=True, slots=True)
class Panel:
    """A quantity with a panel of its own below the slowdown's panel."""

    unit: str
    value: Callable[[TimePoint], float | None]
    text: Callable[[float], str]
    suffix: str = ""


LOST: Final = Panel(
    "GPU-hours lost an hour", lambda point: point.gpu_hours_lost_per_hour, lambda v: f"{v:,.1f}"
)
_STEP: Final = Panel("seconds a step", lambda point: point.step_time_s, seconds)
_TOKENS: Final = Panel("tokens a second", lambda point: point.tokens_per_s, lambda v: f"{v:,.0f}")


def panels_of(history: JobAxis) -> int:
    """Return the number of panels of the figure."""
    return 1 + len(known_panels(history))


def axis_figure(history: JobAxis) -> Figure:
    """Return the figure of a job's slowdown, step time, cost and tokens over time, with marks."""
    panels = known_panels(history)
    count = 1 + len(panels)
    height = height_of(count)
    layout = base_layout(margin={"l": 48, "r": 16, "t": 8, "b": 36})
    span = span_of(history)
    layout |= {
        "hovermode": "closest",
        "xaxis": axis(
            type="date",
            title="UTC",
            nticks=6,
            anchor="y",
            **({} if span is None else {"range": [_x(moment) for moment in span]}),
        ),
        "yaxis": axis(range=[-1, 1], domain=[1 - _MARKS_SHARE, 1], showticklabels=False),
        "yaxis2": axis(
            range=[0.98, 1 + (top_of(history.points) - 1) * 1.1],
            domain=domain_of(0, height),
            showgrid=True,
            nticks=4,
            ticksuffix=TIMES,
            ticklabelstandoff=4,
            tickformat=".2f",
        ),
        "annotations": [_unit("slowdown", 0, height)],
    }
    level_at_one = level(1.0, BASE)
    layout["shapes"] = [level_at_one | {"yref": "y2"}, *_lines(history)]
    # Computed once for all panels, since formatting times is slow.
    at = [_x(point.received_at) for point in history.points]
    urls = [f"/sessions/{point.id}" for point in history.points]
    data: list[Figure] = [_slowdown(history.points, at, urls)]
    for place, panel in enumerate(panels, start=1):
        name = place + 2
        layout[f"yaxis{name}"] = axis(
            rangemode="tozero" if panel is LOST else "normal",
            domain=domain_of(place, height),
            showgrid=True,
            nticks=4,
            ticklabelstandoff=4,
            tickformat="~s" if panel is _TOKENS else ",~g",
        )
        layout["annotations"].append(_unit(panel.unit, place, height))
        data.append(_line(history.points, at, urls, panel=panel, name=f"y{name}"))
    # Distance between panels for the lowest label of the panel above, half of which is below its
    # axis.
    layout["xaxis"] |= {"anchor": f"y{count + 1}", "ticklabelstandoff": 6}
    data.append(_marks(history.marks))
    return {"data": data, "layout": layout}


def mark_rows(history: JobAxis) -> list[MarkRow]:
    """Return the marks as a table shows them, newest first."""
    return [
        MarkRow(
            at=mark.at,
            kind=NAMES[mark.kind],
            words=mark.words,
            url=mark.path or "",
            by=mark.author or "",
            note=mark.note,
            # The page of an incident has a comparison of its own.
            compare_url=""
            if mark.kind is MarkKind.INCIDENT
            else around_moment(history.points, mark.at),
        )
        for mark in history.marks
    ]


def known_panels(history: JobAxis) -> list[Panel]:
    """Return the panels below the slowdown that have a value in any session."""
    return [
        panel
        for panel in (_STEP, LOST, _TOKENS)
        if any(panel.value(point) is not None for point in history.points)
    ]


def height_of(count: int) -> float:
    """Return the height of each of `count` panels as a share of the figure's height."""
    return (1 - _MARKS_SHARE - _GAP * count) / count


def domain_of(place: int, height: float) -> list[float]:
    """Return the lower and upper end of a panel as shares of the figure, from its bottom."""
    top = 1 - _MARKS_SHARE - _GAP - place * (height + _GAP)
    return [max(0.0, top - height), top]


def _unit(text: str, place: int, height: float) -> Figure:
    return corner(text) | {"y": domain_of(place, height)[1]}


def span_of(history: JobAxis) -> tuple[datetime, datetime] | None:
    """Return the period that the figure shows, with a margin; None without sessions and marks."""
    moments = [point.received_at for point in history.points] + [mark.at for mark in history.marks]
    if not moments:
        return None
    first, last = min(moments), max(moments)
    # A single time has no width, so the figure shows an hour on either side.
    room = (last - first) * 0.04 or _HOUR
    return first - room, last + room


_HOUR: Final = datetime(2000, 1, 1, 1, tzinfo=UTC) - datetime(2000, 1, 1, tzinfo=UTC)


def _x(moment: datetime) -> str:
    """Return a time in UTC without an offset, since plotly ignores offsets."""
    return moment.astimezone(UTC).replace(tzinfo=None).isoformat(" ", "seconds")


def top_of(points: Sequence[TimePoint]) -> float:
    """Return the upper end of the slowdown's axis."""
    return max([_MIN_TOP, *(max(point.slowdown or 1, point.high or 1) for point in points)])


def _slowdown(points: Sequence[TimePoint], at: Sequence[str], urls: Sequence[str]) -> Figure:
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "x": at,
        "y": [rounded(point.slowdown) for point in points],
        "yaxis": "y2",
        "connectgaps": False,
        "line": {"color": TEXT_2, "width": 1.25},
        "marker": {
            "size": 8,
            "color": [min(max(point.slowdown or 1, SCALE_LOW), SCALE_HIGH) for point in points],
            "cmin": SCALE_LOW,
            "cmax": SCALE_HIGH,
            "colorscale": color_scale(),
            "line": {"color": TEXT_2, "width": 1},
        },
        "error_y": {
            "type": "data",
            "symmetric": False,
            "array": [_distance(point.high, point.slowdown) for point in points],
            "arrayminus": [_distance(point.slowdown, point.low) for point in points],
            "color": TEXT_2,
            "thickness": 1,
            "width": 3,
        },
        "customdata": [
            [point.number, _slowdown_text(point), url]
            for point, url in zip(points, urls, strict=True)
        ],
        "hovertemplate": "Session %{customdata[0]}: %{customdata[1]}<extra></extra>",
    }


def _line(
    points: Sequence[TimePoint], at: Sequence[str], urls: Sequence[str], *, panel: Panel, name: str
) -> Figure:
    values = [panel.value(point) for point in points]
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "x": at,
        "y": values,
        "yaxis": name,
        "connectgaps": False,
        "line": {"color": TEXT, "width": 1.25},
        "marker": {"size": 4, "color": TEXT},
        "customdata": [
            [point.number, "" if value is None else panel.text(value), url]
            for point, value, url in zip(points, values, urls, strict=True)
        ],
        "hovertemplate": f"Session %{{customdata[0]}}: %{{customdata[1]}} {panel.unit}"
        "<extra></extra>"
        if panel is not _STEP
        else "Session %{customdata[0]}: %{customdata[1]} a step<extra></extra>",
    }


def _marks(marks: Sequence[Mark]) -> Figure:
    return {
        "type": "scatter",
        "mode": "markers",
        "x": [_x(mark.at) for mark in marks],
        "y": [0 for _ in marks],
        "yaxis": "y",
        "cliponaxis": False,
        "marker": {
            "size": 10,
            "symbol": [SYMBOLS[mark.kind] for mark in marks],
            "color": [
                "var(--firing)" if mark.kind is MarkKind.INCIDENT else TEXT for mark in marks
            ],
        },
        "customdata": [["", _hover(mark), mark.path or ""] for mark in marks],
        "hovertemplate": "%{customdata[1]}<extra></extra>",
    }


def _lines(history: JobAxis) -> list[Figure]:
    """Return the vertical lines of marks and of lasting changes through all panels."""
    at = [(mark.at, "1px,3px") for mark in history.marks[:_MOST_LINES]]
    at += [(change.at, "4px,3px") for change in history.changes]
    return [
        {
            "type": "line",
            "xref": "x",
            "yref": "paper",
            "x0": _x(moment),
            "x1": _x(moment),
            "y0": 0,
            "y1": 1 - _MARKS_SHARE,
            "line": {"color": BASE, "width": 1, "dash": dash},
            "layer": "below",
        }
        for moment, dash in at
    ]


def _hover(mark: Mark) -> str:
    words = mark.words if len(mark.words) <= _HOVER_CHARS else mark.words[:_HOVER_CHARS] + "…"
    # Escaped, since plotly interprets markup in texts.
    plain = words.replace("&", "&amp;").replace("<", "&lt;").replace("\n", " ")
    return f"{NAMES[mark.kind]}: {plain}<br>{exact_time(mark.at)}"


def _slowdown_text(point: TimePoint) -> str:
    if point.slowdown is None:
        return "no verdict"
    text = times(point.slowdown, 3)
    if point.low is not None and point.high is not None:
        text += f", 95{NBSP}% {interval(point.low, point.high)}"
    if point.published is not None:
        text += f"; S {times(point.published, 3)}"
    return f"{text}<br>{exact_time(point.received_at)}"


def _distance(high: float | None, low: float | None) -> float:
    return 0.0 if high is None or low is None else max(0.0, high - low)


# Size of a panel's SVG in its own units; the page stretches the drawing.
WIDTH: Final = 1000
HEIGHT: Final = 100
_ROOM: Final = 0.05
# Largest number of drawn sessions; of neighboring sessions only the slowest is drawn.
MOST_POINTS: Final = 250


@dataclass(frozen=True, slots=True)
class FirstPanel:
    """A panel as SVG, drawn on the server; the scripts replace it."""

    top: float  # per cent of the height of the figure
    height: float
    words: str  # quantity and its range
    line: str  # SVG path, interrupted at sessions without a value
    dots: tuple[tuple[str, str], ...]  # color, SVG path of all dots of that color


def first_axis(history: JobAxis) -> tuple[FirstPanel, ...]:
    """Return the panels as SVG; empty without sessions and marks."""
    span = span_of(history)
    if span is None:
        return ()
    panels = known_panels(history)
    height = height_of(1 + len(panels))
    size = ceil(len(history.points) / MOST_POINTS) or 1
    points = [
        max(history.points[begin : begin + size], key=lambda point: point.slowdown or 0.0)
        for begin in range(0, len(history.points), size)
    ]
    first, last = span
    at = [WIDTH * ((point.received_at - first) / (last - first)) for point in points]
    slowdowns = [point.slowdown for point in points]
    drawn = [
        _panel(
            0,
            height,
            f"slowdown, {_from_to([times(value) for value in _sorted(slowdowns)])}",
            at,
            values=slowdowns,
            limits=(0.98, 1 + (top_of(history.points) - 1) * 1.1),
            colored=True,
        )
    ]
    for place, panel in enumerate(panels, start=1):
        values = [panel.value(point) for point in points]
        ordered = _sorted(values)
        room = _ROOM * (ordered[-1] - ordered[0]) or abs(ordered[0]) * _ROOM or 1.0
        low = 0.0 if panel is LOST else ordered[0] - room
        words = f"{panel.unit}, {_from_to([panel.text(value) for value in ordered])}"
        limits = (low, ordered[-1] + room)
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


def _sorted(values: Sequence[float | None]) -> list[float]:
    return sorted(value for value in values if value is not None)


def _from_to(texts: Sequence[str]) -> str:
    low, high = texts[0], texts[-1]
    return low if low == high else f"{low} to {high}"
