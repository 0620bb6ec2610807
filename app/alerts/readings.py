"""Readings: whether a condition holds for one session, does not, or cannot be told."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final, assert_never

from app.alerts.facts import Facts
from app.alerts.rules import CauseFound, Hanging, NoData, Noticed, Rule, Threshold, Weekly
from app.analysis.budget.document import Shares
from app.analysis.diagnosis.finding import UNKNOWN
from app.analysis.report.verdict import SuspectedCause

# What a job usually does is the median of the first number of sessions; fewer than the second
# number say nothing yet.
BASELINE_SESSIONS: Final = 10
MIN_BASELINE: Final = 3

REGRESSION_CAUSE: Final = "regression"
LOW_QUALITY_CAUSE: Final = "low_trace_quality"
NO_DATA_CAUSE: Final = "no_data"
HANG_CAUSE: Final = "hang"
# What all workers lose, where the diagnosis names no cause of it.
BETWEEN_STEPS_CAUSE: Final = "time_between_steps"
ALL_SLOW_CAUSE: Final = "all_workers_slow"


class Level(StrEnum):
    """Where a number stands between a rule's two thresholds."""

    BREACH = "breach"
    BETWEEN = "between"
    CLEAR = "clear"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Reading:
    """A condition on one session."""

    level: Level
    value: float | None = None  # the number that was compared
    # What an incident would be about; causes of a clear session are left out.
    blamed: tuple[SuspectedCause, ...] = ()
    baseline_s: float | None = None  # what a step was compared with


_UNKNOWN: Final = Reading(Level.UNKNOWN)


def read_history(
    rule: Rule, history: Sequence[Facts], baselines_s: Mapping[str, float]
) -> list[Reading]:
    """Return what a rule says of each session.

    Parameters
    ----------
    rule : Rule
        Of any condition but `NoData`, `Hanging` and `Noticed`, which are about no session.
    history : sequence of Facts
        Sessions of one job, the oldest first.
    baselines_s : mapping of str to float
        By layout: what regressions that last are measured against. They may be older than the
        history, whose first sessions would otherwise be taken for the baseline.
    """
    condition = rule.condition
    match condition:
        case Threshold(kind="regression"):
            return _regressions(condition, history, baselines_s)
        case Threshold():
            return [_number(condition, facts) for facts in history]
        case CauseFound():
            return [_cause(condition, facts) for facts in history]
        case NoData() | Hanging() | Noticed() | Weekly():
            return [_UNKNOWN for _ in history]
        case _:
            assert_never(condition)


def silent_for(condition: NoData, received: Sequence[datetime]) -> timedelta | None:
    """Return how long a job may be silent, or None where that cannot be said yet.

    Parameters
    ----------
    received : sequence of datetime
        When its latest sessions came, the oldest first.
    """
    limits = []
    if condition.minutes is not None:
        limits.append(timedelta(minutes=condition.minutes))
    if condition.intervals is not None:
        gaps = [
            (later - earlier).total_seconds() for earlier, later in itertools.pairwise(received)
        ]
        if len(gaps) < MIN_BASELINE - 1:
            return None
        usual_s = statistics.median(gaps[-BASELINE_SESSIONS:])
        limits.append(timedelta(seconds=max(0.0, usual_s) * condition.intervals))
    return max(limits)


def _number(condition: Threshold, facts: Facts) -> Reading:
    value: float | None
    match condition.kind:
        case "headline":
            if facts.withheld is not None:
                return _at_least(condition, facts.withheld.slowdown, facts.leading_cause)
            value = facts.headline.slowdown if facts.headline else None
        case "slowdown":
            value = facts.slowdown
        case "waste":
            value = facts.waste
        case "gpu_hours_lost":
            value = facts.gpu_hours_lost
        case "discrepancy" if facts.known is not None and facts.slowdown is None:
            # What the recording has and the replay of durations has not is what the causes cost.
            return Reading(Level.CLEAR, facts.discrepancy)
        case "discrepancy":
            return _graded(condition, facts.discrepancy, SuspectedCause(LOW_QUALITY_CAUSE))
        case "budget.between_steps" | "budget.slow_together":
            return _of_all(condition, facts.shares)
        case "regression":
            raise ValueError("a regression is read from the whole history")
        case _:
            assert_never(condition.kind)
    return _graded(condition, value, facts.leading_cause)


def _of_all(condition: Threshold, shares: Shares | None) -> Reading:
    """Read what all workers lose."""
    if shares is None:
        return _UNKNOWN
    if condition.kind == "budget.between_steps":
        between = SuspectedCause(BETWEEN_STEPS_CAUSE)
        return _graded(condition, shares.between_steps_above, between)
    return _graded(condition, shares.slow_together, SuspectedCause(ALL_SLOW_CAUSE))


def _graded(condition: Threshold, value: float | None, blamed: SuspectedCause) -> Reading:
    if value is None:
        return _UNKNOWN
    if value >= condition.at_least:
        return Reading(Level.BREACH, value, (blamed,))
    if value >= condition.clears_below:
        return Reading(Level.BETWEEN, value, (blamed,))
    return Reading(Level.CLEAR, value)


def _at_least(condition: Threshold, value: float, blamed: SuspectedCause) -> Reading:
    """Read a number that may be larger: a small one does not say that the condition is over."""
    return _graded(condition, value, blamed) if value >= condition.clears_below else _UNKNOWN


def _cause(condition: CauseFound, facts: Facts) -> Reading:
    if facts.known is None:
        return _UNKNOWN
    meant = [
        cause
        for cause in facts.causes
        if cause.confidence is not None
        and cause.cause != UNKNOWN
        and (not condition.causes or cause.cause in condition.causes)
    ]
    value = max((cause.confidence or 0.0 for cause in meant), default=None)
    sure = tuple(c for c in meant if (c.confidence or 0.0) >= condition.confidence)
    if sure:
        return Reading(Level.BREACH, value, sure)
    likely = tuple(c for c in meant if (c.confidence or 0.0) >= condition.clears_below)
    if likely:
        return Reading(Level.BETWEEN, value, likely)
    return Reading(Level.CLEAR, value) if facts.headline is not None else _UNKNOWN


def _regressions(
    condition: Threshold, history: Sequence[Facts], baselines_s: Mapping[str, float]
) -> list[Reading]:
    """Compare each session with those before it that were not regressions themselves.

    Otherwise a step that became slower for good would be the new baseline after five sessions, and
    the incident over although nothing was repaired.
    """
    usual = {layout: [step_s] * MIN_BASELINE for layout, step_s in baselines_s.items()}
    readings = []
    for facts in history:
        if facts.step_time_s is None:
            readings.append(_UNKNOWN)
            continue
        before = usual.setdefault(facts.layout, [])
        if len(before) < MIN_BASELINE:
            before.append(facts.step_time_s)
            readings.append(_UNKNOWN)
            continue
        baseline_s = statistics.median(before[-BASELINE_SESSIONS:])
        blamed = facts.causes[0] if facts.causes else SuspectedCause(REGRESSION_CAUSE)
        reading = _graded(condition, facts.step_time_s / baseline_s - 1, blamed)
        if reading.level is not Level.BREACH:
            before.append(facts.step_time_s)
        readings.append(replace(reading, baseline_s=baseline_s))
    return readings
