"""Gaps between the steps of a session: recorded operations, and lost idle time.

Ranks may record operations between steps. The rest of a gap is idle time, which is usually short
and constant; idle time above the usual is lost.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from app.analysis.quantities import NS, BoolArray, FloatArray, IntArray
from app.analysis.replay.host_delays import FEWEST_TURNS, Turns, turns_of
from app.analysis.replay.layout.host_operations import HostOperations
from app.analysis.replay.robust_statistics import median
from app.analysis.replay.session import Replayed
from app.analysis.trace.model import BETWEEN_STEPS, GC, OPTIMIZER


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Thresholds that decide whether time between steps is lost."""

    # A gap is lost when it exceeds the usual gap by this share of a typical step and its gap …
    above: float = 0.05
    to_scatter: float = 8.0  # …and by this many standard deviations of gaps
    # The usual gap is lost too when it takes this share of a step and its gap …
    usual: float = 0.2
    least_usual_ns: float = 1e8  # …and is as long; short steps of a trial are mostly overhead
    # A cause between steps is named when it costs this share of a step and its gap.
    worth: float = 0.025


THRESHOLDS: Final = Thresholds()


@dataclass(frozen=True, slots=True, eq=False)
class StepGaps:
    """The gap before each step; arrays have the shape (steps,), in ns, and are 0 if unknown."""

    turns: Turns
    host_operations: HostOperations
    # by operation type: the part of the gap in which any rank recorded it
    recorded_ns: Mapping[str, FloatArray]
    stalled_ns: FloatArray  # unrecorded idle time above the usual, in long gaps only
    # longest garbage collection of any worker in the previous step
    collected_ns: FloatArray
    usual_ns: float  # median unrecorded idle time
    optimizes: bool  # whether optimizers are recorded; otherwise they are part of `usual_ns`
    period_ns: float  # mean step with the gap before it

    @property
    def steps(self) -> IntArray:
        """Return the steps whose previous step is recorded."""
        return self.turns.steps[self.turns.known]

    @property
    def has_usual(self) -> bool:
        """Return whether enough steps have a recorded previous step to know the usual gap."""
        return len(self.steps) >= FEWEST_TURNS

    def cost_s(self, lost_ns: FloatArray) -> float:
        """Return the mean loss per step, seconds, given the loss before each step, ns."""
        return float(np.mean(lost_ns[self.turns.known])) * NS if len(self.steps) else 0.0

    def is_worth_naming(self, lost_ns: FloatArray) -> bool:
        """Return whether a loss before steps costs enough to be named as a cause."""
        cost_ns = self.cost_s(lost_ns) / NS
        return cost_ns > 0 and cost_ns >= THRESHOLDS.worth * self.period_ns

    @property
    def usual_is_lost(self) -> bool:
        """Return whether the usual gap is long enough to count as lost."""
        least_ns = max(THRESHOLDS.usual * self.period_ns, THRESHOLDS.least_usual_ns)
        return self.optimizes and self.usual_ns >= least_ns


def step_gaps_of(replayed: Replayed, recorded_s: FloatArray) -> StepGaps:
    """Return the gaps between the steps of a session; `recorded_s` are the steps' durations."""
    turns = turns_of(replayed)
    has_gap = turns.known
    gap_ns = np.where(has_gap, np.maximum(turns.gap_ns, 0.0), 0.0)
    recorded_ns: dict[str, FloatArray] = {}
    rest_ns = gap_ns
    if len(replayed.host_operations):
        covered = {
            name: _covered(turns, replayed.host_operations.of(name)) for name in BETWEEN_STEPS
        }
        total = np.sum(list(covered.values()), axis=0)
        # Times are scaled down to the gap, as operations of two types may overlap.
        share = np.divide(gap_ns, total, out=np.ones_like(total), where=total > gap_ns)
        recorded_ns = {name: time_ns * share for name, time_ns in covered.items() if time_ns.any()}
        rest_ns = gap_ns - np.minimum(total, gap_ns)
    # A chained step begins when the previous step ends, so its duration includes the gap.
    turn = recorded_s / NS + (0.0 if replayed.graph.chained else gap_ns)
    parts = (turns, replayed.host_operations, recorded_ns)
    optimizes = bool(replayed.layout.of_types(OPTIMIZER).any())
    if has_gap.sum() < FEWEST_TURNS:
        nothing = np.zeros_like(gap_ns)
        return StepGaps(*parts, nothing, nothing, 0.0, optimizes, _mean(turn, has_gap))
    usual_ns = float(median(rest_ns[has_gap]))
    above = rest_ns - usual_ns
    scatter = 1.4826 * float(median(np.abs(above[has_gap])))
    least = max(THRESHOLDS.above * float(median(turn[has_gap])), THRESHOLDS.to_scatter * scatter)
    stalled_ns = np.where(has_gap & (above > least), above, 0.0)
    collected_ns = np.roll(
        replayed.over_steps(
            lambda group: np.asarray(
                group.layout.duration_ns[group.layout.of_types(GC)].max(axis=(0, 2), initial=0.0)
            )
        ),
        1,
    )
    return StepGaps(*parts, stalled_ns, collected_ns, usual_ns, optimizes, _mean(turn, has_gap))


def _mean(values: FloatArray, has_gap: BoolArray) -> float:
    return float(np.mean(values[has_gap])) if has_gap.any() else 0.0


def _covered(turns: Turns, host_operations: HostOperations) -> FloatArray:
    """Return the time of the gap before each step that any operation covers, (steps,), ns."""
    covered = np.zeros(len(turns.steps))
    gaps = np.flatnonzero(turns.known & (turns.gap_ns > 0))
    if not len(host_operations) or not len(gaps):
        return covered
    until = turns.begins_ns[gaps].min(axis=(1, 2))
    since = until - turns.gap_ns[gaps]
    # Each operation counts in the first gap that ends after the operation's start, and only there,
    # even if it is longer.
    gap = np.searchsorted(until, host_operations.start_ns, side="right")
    inside = gap < len(gaps)
    gap, start, end = gap[inside], host_operations.start_ns[inside], host_operations.end_ns[inside]
    start, end = np.maximum(start, since[gap]), np.minimum(end, until[gap])
    inside = end > start
    gap, start, end = gap[inside], start[inside], end[inside]
    order = np.lexsort((start, gap))
    gap, start, end = gap[order], start[order], end[order]
    # Operations are sorted by gap, so the time covered so far never extends into a later gap.
    before = np.concatenate(([-np.inf], np.maximum.accumulate(end)[:-1])) if len(end) else end
    np.add.at(covered, gaps[gap], np.maximum(end - np.maximum(start, before), 0.0))
    return covered
