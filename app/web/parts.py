"""Parts that several pages share: states as glyph and word, facts, sparklines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from app.platform.database.states import SessionState
from app.web.format import SCALE_HIGH, SCALE_LOW, heat_color

SPARK_WIDTH: Final = 112
SPARK_HEIGHT: Final = 18
_SPARK_TOP: Final = 3.0
_SPARK_BASE: Final = SPARK_HEIGHT - 2.0
_SPARK_EDGE: Final = 4.0


@dataclass(frozen=True, slots=True)
class StateLabel:
    """A state as pages show it; states with a smaller `order` need attention first."""

    glyph: str
    word: str
    order: int
    quiet: bool = False


STATES: Final = {
    SessionState.OPEN: StateLabel("wait", "Arriving", 3),
    SessionState.QUEUED: StateLabel("wait", "Waiting", 3),
    SessionState.ANALYZING: StateLabel("run", "Analyzing", 3),
    SessionState.NO_VERDICT: StateLabel("none", "No verdict", 2),
    SessionState.DISCARDED: StateLabel("none", "Discarded", 2),
    SessionState.FAILED: StateLabel("fail", "Analysis failed", 1),
}
SLOW_STATE: Final = StateLabel("slow", "Slow", 0)
QUIET_STATE: Final = StateLabel("ok", "Watching", 4, quiet=True)
ANALYZED_STATE: Final = StateLabel("done", "Analyzed", 4)
SILENT_STATE: Final = StateLabel("warn", "Silent", 5)
FINISHED_STATE: Final = StateLabel("done", "Finished", 6, quiet=True)


def job_state(state: SessionState, *, slow: bool) -> StateLabel:
    """Return the state of a job according to its latest session."""
    if state == SessionState.ANALYZED:
        return SLOW_STATE if slow else QUIET_STATE
    return STATES[state]


@dataclass(frozen=True, slots=True)
class Fact:
    """A labeled value with a line of context; `moment` shows the value as an age that updates."""

    label: str
    value: str
    note: str = ""
    hint: str = ""
    moment: datetime | None = None
    spark: Sparkline | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a table of label, value and remark."""

    label: str
    value: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class Sparkline:
    """Slowdowns over a job's sessions as a small line; its scale is always 1.0 to 1.5."""

    lines: tuple[str, ...]  # SVG paths, one for each run of sessions with a verdict
    # tuple of (float, float): x and width of each run of sessions without a verdict, drawn hatched
    gaps: tuple[tuple[float, float], ...]
    above: tuple[str, ...]  # SVG paths of the marks of sessions above 1.5
    # (float, float, str) or None: x, y and color of the latest session; None if it has no verdict
    dot: tuple[float, float, str] | None
    label: str  # for readers who cannot see it


def sparkline(values: Sequence[float | None]) -> Sparkline:
    """Return the sparkline of slowdowns in session order; None for a session without a verdict."""
    step = (SPARK_WIDTH - 2 * _SPARK_EDGE) / max(1, len(values) - 1)
    # A single session is drawn at the right end, where the latest session always is.
    first = SPARK_WIDTH - _SPARK_EDGE if len(values) == 1 else _SPARK_EDGE
    xs = [first + index * step for index in range(len(values))]
    lines: list[str] = []
    gaps: list[tuple[float, float]] = []
    run: list[str] = []
    for x, value in zip(xs, values, strict=True):
        if value is None:
            left = max(0.0, x - step / 2)
            width = min(step, SPARK_WIDTH - left)
            if gaps and abs(gaps[-1][0] + gaps[-1][1] - left) < 0.1:  # noqa: PLR2004 - rounding
                gaps[-1] = (gaps[-1][0], round(left + width - gaps[-1][0], 1))
            else:
                gaps.append((round(left, 1), round(width, 1)))
            if run:
                lines.append("".join(run))
                run = []
            continue
        run.append(f"{'L' if run else 'M'}{x:.1f} {_height(value):.1f}")
    if run:
        lines.append("".join(run))
    points = [(x, value) for x, value in zip(xs, values, strict=True) if value is not None]
    latest = values[-1] if values else None
    return Sparkline(
        lines=tuple(lines),
        gaps=tuple(gaps),
        above=tuple(
            f"M{x - 2.5:.1f} {_SPARK_TOP + 1.5}l2.5-3.5 2.5 3.5z"
            for x, value in points
            if value > SCALE_HIGH
        ),
        dot=None
        if latest is None
        else (round(xs[-1], 1), round(_height(latest), 1), heat_color(latest)),
        label=_spark_label(values),
    )


def _height(value: float) -> float:
    share = (min(max(value, SCALE_LOW), SCALE_HIGH) - SCALE_LOW) / (SCALE_HIGH - SCALE_LOW)
    return _SPARK_BASE - share * (_SPARK_BASE - _SPARK_TOP)


def _spark_label(values: Sequence[float | None]) -> str:
    slowdowns = [value for value in values if value is not None]
    if not slowdowns:
        return f"Slowdown of the last {len(values)} sessions: none has a verdict"
    low, high = min(slowdowns), max(slowdowns)
    return f"Slowdown of the last {len(values)} sessions, from {low:.2f} to {high:.2f}"
