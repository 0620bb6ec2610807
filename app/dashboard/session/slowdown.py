"""How slow a session is: one number wherever the page says it, and what stands behind it."""

from __future__ import annotations

from typing import Final

from markupsafe import Markup

from app.analysis.diagnosis.headline import (
    WHY_S_DIFFERS,
    Headline,
    HeadlineKind,
    why_published,
)
from app.analysis.replay.confidence import Interval
from app.analysis.report.document import Report
from app.dashboard.ui.format import NBSP, interval, percent, times, worker
from app.dashboard.ui.parts import Row

# Digits behind the point of the slowdown and of its interval, and of exact figures.
SHOWN_DIGITS: Final = 2
EXACT_DIGITS: Final = 3


def shown_interval(shown: Headline) -> str:
    """Return the interval of the slowdown, rounded as the slowdown is."""
    if shown.ci95 is None:
        return "no interval"
    text = interval(*shown.ci95, SHOWN_DIGITS)
    low, high = (f"{bound:.{SHOWN_DIGITS}f}" for bound in shown.ci95)
    return f"95{NBSP}%: {'within 0.01' if low == high else text}"


def whole(shown: Headline) -> str:
    """Return the slowdown in all its digits, with its interval or why it has none."""
    if shown.ci95 is None:
        why = f", no interval: {shown.ci95_reason}" if shown.ci95_reason else ", no interval"
        return f"{times(shown.slowdown, EXACT_DIGITS)}{why}"
    return f"{times(shown.slowdown, EXACT_DIGITS)}, {_exact(shown.ci95)}"


def against(shown: Headline) -> str:
    """Return what the slowdown is held against."""
    if shown.kind.without_causes:
        return "step time \N{DIVISION SIGN} step time without its causes"
    return "step time as replayed \N{DIVISION SIGN} step time with all durations ideal"


def step_slowdowns(report: Report) -> list[float]:
    """Return the slowdown of each step, of which that of the job is the mean.

    Reports have simulated time ÷ ideal time, whose mean is S. Where the slowdown is counted
    against the job without its causes, an ideal step is as much too long in every step.
    """
    factor = report.headline.slowdown / report.slowdown
    return [value * factor for value in report.step_slowdown]


def exact_rows(report: Report) -> tuple[Row, ...]:
    """Return what the slowdown is made of: exact figures, their intervals and definitions."""
    shown = report.headline
    published = shown.kind is HeadlineKind.PUBLISHED
    why = f"; it is the published S: {why_published(named=bool(report.causes))}"
    rows = [
        Row(
            "Slowdown",
            times(shown.slowdown, EXACT_DIGITS),
            _note(_interval_or_why(shown), against(shown) + (why if published else "")),
        )
    ]
    if not published:
        rows.append(
            Row(
                "S, as published",
                times(report.slowdown, EXACT_DIGITS),
                _note(
                    "" if report.slowdown_ci95 is None else _exact(report.slowdown_ci95),
                    "step time as replayed \N{DIVISION SIGN} step time with all durations ideal; "
                    f"{WHY_S_DIFFERS}",
                ),
            )
        )
    slowdown, dp, pp = report.worst_worker()
    between = {item.worker: item.ci95 for item in report.by_worker.worst}.get((dp, pp))
    rows += [
        Row(
            Markup("S<sub>w</sub> of worker {}, the highest").format(worker(dp, pp)),
            times(slowdown, EXACT_DIGITS),
            _note(
                "" if between is None else _exact(between),
                "S of the job if only this worker kept its recorded durations; the map and the "
                "table have that of each worker",
            ),
        ),
        Row(
            "Lost of each step",
            percent(shown.waste),
            "1 \N{MINUS SIGN} 1 \N{DIVISION SIGN} slowdown; no fix saves more",
        ),
        Row(
            "Each step",
            f"{times(min(step_slowdowns(report)), EXACT_DIGITS)} to "
            f"{times(max(step_slowdowns(report)), EXACT_DIGITS)}",
            "step time as replayed \N{DIVISION SIGN} ideal step time"
            + (
                ""
                if published
                else f", times {shown.slowdown / report.slowdown:.{EXACT_DIGITS}f}: the ideal "
                "contains the causes"
            ),
        ),
    ]
    return tuple(rows)


def _interval_or_why(shown: Headline) -> str:
    if shown.ci95 is not None:
        return _exact(shown.ci95)
    return f"no interval: {shown.ci95_reason}" if shown.ci95_reason else "no interval"


def _exact(ci95: Interval) -> str:
    return f"95{NBSP}%: {interval(*ci95, EXACT_DIGITS)}"


def _note(*parts: str) -> str:
    return "; ".join(filter(None, parts))
