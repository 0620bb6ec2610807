"""The figure of a job's history: the slowdown of its sessions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from app.analysis.diagnosis.headline import differs
from app.dashboard.look.figure_parts import (
    BASE,
    TEXT_2,
    Figure,
    axis,
    base_layout,
    color_scale,
    level,
)
from app.dashboard.look.format import (
    NBSP,
    SCALE_HIGH,
    SCALE_LOW,
    TIMES,
    count,
    interval,
    times,
)

if TYPE_CHECKING:
    from app.services.alerts.onset import Onset
    from app.services.sessions.history import JobHistory

MIN_HISTORY_TOP: Final = 1.1
HISTORY_TICKS: Final = 24


@dataclass(frozen=True, slots=True)
class HistoryPoint:
    """How slow one session of a job was; `slowdown` is None where there is no verdict.

    `published` is S beside it.
    """

    number: int
    slowdown: float | None
    low: float | None
    high: float | None
    published: float | None
    url: str


def history(points: Sequence[HistoryPoint]) -> Figure:
    """Return the slowdown of a job's sessions in order, with 95 % intervals, and S dotted.

    Parameters
    ----------
    points : sequence of HistoryPoint
        Oldest first. Sessions without a verdict leave a gap.
    """
    known = [point for point in points if point.slowdown is not None]
    trace = {
        "type": "scatter",
        "mode": "lines+markers",
        "x": [point.number for point in points],
        "y": [point.slowdown for point in points],
        "connectgaps": False,
        "line": {"color": TEXT_2, "width": 1.25},
        "marker": {
            "size": 8,
            "color": [_clamped(point.slowdown) for point in points],
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
        "customdata": [[point.number, _history_text(point), point.url] for point in points],
        "hovertemplate": "Session %{customdata[0]}: %{customdata[1]}<extra></extra>",
    }
    beside = {
        "type": "scatter",
        "mode": "lines+markers",
        "x": [point.number for point in points],
        "y": [point.published for point in points],
        "connectgaps": False,
        "line": {"color": TEXT_2, "width": 1, "dash": "dot"},
        "marker": {"size": 4, "symbol": "line-ew-open", "color": TEXT_2},
        "hoverinfo": "skip",
    }
    tops = [
        max(point.slowdown or 1.0, point.high or 1.0, point.published or 1.0) for point in known
    ]
    first, last = points[0].number, points[-1].number
    top = max(MIN_HISTORY_TOP, *tops, 1.0) if tops else MIN_HISTORY_TOP
    layout = base_layout(margin={"l": 48, "r": 16, "t": 8, "b": 36})
    layout |= {
        "hovermode": "closest",
        "xaxis": axis(
            range=[first - 0.5, last + 0.5],
            title="session",
            tickmode="linear",
            tick0=last,
            dtick=math.ceil((last - first + 1) / HISTORY_TICKS),
        ),
        "yaxis": axis(
            range=[0.98, 1 + (top - 1) * 1.1],
            showgrid=True,
            nticks=4,
            ticksuffix=TIMES,
            ticklabelstandoff=4,
            tickformat=".2f",
        ),
        "shapes": [level(1.0, BASE)],
    }
    return {"data": [beside, trace] if _differ(known) else [trace], "layout": layout}


def _differ(points: Sequence[HistoryPoint]) -> bool:
    """Return whether S is worth drawing beside the slowdown."""
    return any(
        point.published is not None and differs(point.slowdown or 1.0, point.published)
        for point in points
    )


def _history_text(point: HistoryPoint) -> str:
    if point.slowdown is None:
        return "no verdict"
    text = times(point.slowdown, 3)
    if point.low is not None and point.high is not None:
        text += f", 95{NBSP}% {interval(point.low, point.high)}"
    return text if point.published is None else f"{text}; S {times(point.published, 3)}"


def _clamped(value: float | None) -> float:
    return SCALE_LOW if value is None else min(max(value, SCALE_LOW), SCALE_HIGH)


def _distance(high: float | None, low: float | None) -> float:
    return 0.0 if high is None or low is None else max(0.0, high - low)


def history_finding(
    found: JobHistory, latest: tuple[int, float] | None, onset: Onset | None
) -> str:
    """Return the title of a job's slowdown over its sessions.

    Parameters
    ----------
    found : JobHistory
    latest : (int, float) or None
        Number and slowdown of the latest session with a verdict.
    onset : Onset or None
        Since when the job has been slow; None where the latest session is not.
    """
    if latest is None or not found.verdicts:
        return "No session has a verdict yet"
    number, slowdown = latest
    if not found.slow:
        return f"No session is slow: none above {times(found.worst or slowdown)}"
    if onset is None:
        of_all = f"{count(found.slow)} of {count(found.verdicts)}"
        return f"{of_all} sessions were slow; session {number} is not"
    since = "the first session" if onset.was is None else f"session {onset.number}"
    return f"Slow since {since}: {times(slowdown)} in session {number}"
