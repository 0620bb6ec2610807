"""Time between the steps of a session: recorded operations and unexplained idle time.

Ranks may record what they do between steps. The rest is idle: usually short and constant; time
above the usual idle time is lost.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from app.analysis.replay.host_delays import FEWEST_TURNS, Turns, turns_of
from app.analysis.replay.layout.dense import FloatArray, IntArray
from app.analysis.replay.layout.host_operations import HostOperations
from app.analysis.replay.robust_statistics import median
from app.analysis.replay.session import Replayed, ShapeGroup
from app.analysis.trace.model import BETWEEN_STEPS, GC, OPTIMIZER

NS: Final = 1e-9


@dataclass(frozen=True, slots=True)
class Thresholds:
    """What decides whether time between steps is lost."""

    # A gap stands out that is above the usual one by this share of what a step and its gap
    # usually take…
    above: float = 0.05
    to_scatter: float = 8.0  # …and by this many standard deviations of gaps
    # What passes before every step is lost as well when it takes this share of that.
    usual: float = 0.2
    least_usual_ns: float = 1e8  # …and is as long; short steps of a trial are mostly overhead
    # A cause between steps is named when it costs this share of what they take together.
    worth: float = 0.025


THRESHOLDS: Final = Thresholds()


@dataclass(frozen=True, slots=True, eq=False)
class StepGaps:
    """What passes before each step; arrays are of shape (steps,), ns, 0 where nothing is known."""

    turns: Turns
    host_operations: HostOperations
    # By operation type: how much of the gap any rank is recorded to do that.
    recorded_ns: Mapping[str, FloatArray]
    stalled_ns: FloatArray  # what nothing recorded explains, above the usual, where it stands out
    # How long a worker collects garbage at the end of the step before, at most.
    collected_ns: FloatArray
    usual_ns: float  # what usually passes unexplained
    optimizes: bool  # whether optimizers are recorded; else they are among what usually passes
    period_ns: float  # what a step and the gap before it take, on average

    @property
    def steps(self) -> IntArray:
        """Return the steps that follow a recorded one."""
        return self.turns.steps[self.turns.known]

    @property
    def has_usual(self) -> bool:
        """Return whether enough steps follow a recorded one to say what usually passes."""
        return len(self.steps) >= FEWEST_TURNS

    def cost_s(self, lost_ns: FloatArray) -> float:
        """Return what is lost for each step on average, seconds, given that before each step."""
        return float(np.mean(lost_ns[self.turns.known])) * NS if len(self.steps) else 0.0

    def is_worth_naming(self, lost_ns: FloatArray) -> bool:
        """Return whether what is lost costs enough to be a cause."""
        cost_ns = self.cost_s(lost_ns) / NS
        return cost_ns > 0 and cost_ns >= THRESHOLDS.worth * self.period_ns

    @property
    def usual_is_lost(self) -> bool:
        """Return whether so much passes before every step that it is lost, too."""
        least_ns = max(THRESHOLDS.usual * self.period_ns, THRESHOLDS.least_usual_ns)
        return self.optimizes and self.usual_ns >= least_ns


def step_gaps_of(replayed: Replayed, recorded_s: FloatArray) -> StepGaps:
    """Return what passes between the steps of a session, given how long each step took."""
    turns = turns_of(replayed)
    known = turns.known
    gap_ns = np.where(known, np.maximum(turns.gap_ns, 0.0), 0.0)
    named, rest_ns = _named(turns, replayed.host_operations, gap_ns)
    # Steps that are chained begin with the end of the one before.
    turn = recorded_s / NS + (0.0 if replayed.graph.chained else gap_ns)
    parts = (turns, replayed.host_operations, named)
    optimizes = bool(replayed.layout.of_types(OPTIMIZER).any())
    if known.sum() < FEWEST_TURNS:
        nothing = np.zeros_like(gap_ns)
        return StepGaps(*parts, nothing, nothing, 0.0, optimizes, _mean(turn, known))
    usual_ns = float(median(rest_ns[known]))
    above = rest_ns - usual_ns
    scatter = 1.4826 * float(median(np.abs(above[known])))
    least = max(THRESHOLDS.above * float(median(turn[known])), THRESHOLDS.to_scatter * scatter)
    stalled_ns = np.where(known & (above > least), above, 0.0)
    collected_ns = np.roll(replayed.over_steps(_collected), 1)
    return StepGaps(*parts, stalled_ns, collected_ns, usual_ns, optimizes, _mean(turn, known))


def _named(
    turns: Turns, host_operations: HostOperations, gap_ns: FloatArray
) -> tuple[dict[str, FloatArray], FloatArray]:
    """Return how much of the gaps what is recorded takes, by type, and what is left of them, ns."""
    if not len(host_operations):
        return {}, gap_ns
    covered = {name: _covered(turns, host_operations.of(name)) for name in BETWEEN_STEPS}
    total = np.sum(list(covered.values()), axis=0)
    # Two kinds may be done side by side.
    share = np.divide(gap_ns, total, out=np.ones_like(total), where=total > gap_ns)
    named = {name: time_ns * share for name, time_ns in covered.items() if time_ns.any()}
    return named, gap_ns - np.minimum(total, gap_ns)


def _collected(group: ShapeGroup) -> FloatArray:
    """Return how long a worker collects garbage in each step at most, ns."""
    layout = group.layout
    nodes = np.flatnonzero(layout.of_types(GC))
    return np.asarray(layout.duration_ns[nodes].max(axis=(0, 2), initial=0.0))


def _mean(values: FloatArray, known: NDArray[np.bool_]) -> float:
    return float(np.mean(values[known])) if known.any() else 0.0


def _covered(turns: Turns, host_operations: HostOperations) -> FloatArray:
    """Return how much of the gap before each step some operations cover together, ns."""
    covered = np.zeros(len(turns.steps))
    known = np.flatnonzero(turns.known & (turns.gap_ns > 0))
    if not len(host_operations) or not len(known):
        return covered
    until = turns.begins_ns[known].min(axis=(1, 2))
    since = until - turns.gap_ns[known]
    # The first gap that ends after it began; a longer one counts there only.
    gap = np.searchsorted(until, host_operations.start_ns, side="right")
    inside = gap < len(known)
    gap, start, end = gap[inside], host_operations.start_ns[inside], host_operations.end_ns[inside]
    start, end = np.maximum(start, since[gap]), np.minimum(end, until[gap])
    inside = end > start
    gap, start, end = gap[inside], start[inside], end[inside]
    order = np.lexsort((start, gap))
    gap, start, end = gap[order], start[order], end[order]
    # Gaps follow one another, so that what is covered so far never reaches into a later one.
    before = np.concatenate(([-np.inf], np.maximum.accumulate(end)[:-1])) if len(end) else end
    np.add.at(covered, known[gap], np.maximum(end - np.maximum(start, before), 0.0))
    return covered
