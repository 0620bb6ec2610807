"""Complete split of a session's worker time into ideal time and losses.

The ideal is the median of a stage's peers in their best stretch of steps; unlike the mean in S, it
does not let fast workers cancel slow ones. Recorded time is measured
(`app.analysis.budget.recorded_time`); only waiting needs a replay. The bubble is the ideal step
(what-if paper, section 3.2) without computing and communication.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from operator import attrgetter
from typing import Final

import numpy as np

from app.analysis.budget.common_slowdown import CommonFactor, common_factor
from app.analysis.budget.recorded_time import COMPUTING, Spent, Windows, spent_of, windows_of
from app.analysis.quantities import NS, BoolArray, FloatArray
from app.analysis.replay.metrics import Metrics
from app.analysis.replay.session import Replayed, ShapeGroup


class Part(StrEnum):
    """Part of a worker's time in the split, ideal or lost."""

    COMPUTING = "computing"
    OWN_SLOWNESS = "own_slowness"
    SLOW_TOGETHER = "slow_together"
    WAITING = "waiting"
    BUBBLE = "bubble"
    COMMUNICATION = "communication"
    COMMUNICATION_ABOVE = "communication_above"
    LAUNCH_DELAYS = "launch_delays"
    BETWEEN_STEPS = "between_steps"
    BETWEEN_STEPS_ABOVE = "between_steps_above"
    MISSING = "missing"

    @property
    def words(self) -> str:
        """Return the name of the part for sentences."""
        return _WORDS[self]

    @property
    def lost(self) -> bool:
        """Return whether the part is lost time, which only stragglers and standstills cause."""
        return self in _LOST_PARTS


_WORDS: Final = {
    Part.COMPUTING: "computing",
    Part.OWN_SLOWNESS: "a worker's own slowness",
    Part.SLOW_TOGETHER: "slowness of all together",
    Part.WAITING: "waiting for stragglers",
    Part.BUBBLE: "pipeline bubble",
    Part.COMMUNICATION: "communication",
    Part.COMMUNICATION_ABOVE: "slow communication",
    Part.LAUNCH_DELAYS: "late launches",
    Part.BETWEEN_STEPS: "usual time between steps",
    Part.BETWEEN_STEPS_ABOVE: "standstills between steps",
    Part.MISSING: "steps left out",
}
_LOST_PARTS: Final = frozenset(
    {
        Part.OWN_SLOWNESS,
        Part.SLOW_TOGETHER,
        Part.WAITING,
        Part.COMMUNICATION_ABOVE,
        Part.LAUNCH_DELAYS,
        Part.BETWEEN_STEPS_ABOVE,
    }
)


# Quantiles of a worker's best steps that define its ideal: `_QUARTER` for computing, since the best
# stretch may contain slow spells of single workers, and `_HALF` for communication, whose times
# scatter.
_QUARTER: Final = 0.25
_HALF: Final = 0.5
_PLACE: Final = {part: place for place, part in enumerate(Part)}


@dataclass(frozen=True, slots=True, eq=False)
class Split:
    """Time of each worker in each step, split into parts, ns, in order of steps.

    The parts add up to the wall time. A part may be negative for a worker in a step, but not summed
    over all workers and steps.
    """

    wall_ns: FloatArray  # (pp, steps, dp)
    parts_ns: FloatArray  # (parts, pp, steps, dp), in the order of `Part`
    together: CommonFactor

    def of(self, part: Part) -> FloatArray:
        """Return the time of the given part, shape (pp, steps, dp), ns."""
        return np.asarray(self.parts_ns[_PLACE[part]])


def split(replayed: Replayed, metrics: Metrics, together: CommonFactor | None = None) -> Split:
    """Return the time of a session, split into ideal time and losses.

    Parameters
    ----------
    together : CommonFactor, optional
        Slowdown of all workers in each step; by default from their computing time.
    """
    windows = windows_of(replayed)
    spent = _spent(replayed, windows)
    work_ns = replayed.over_steps(_ideal_computing).T
    if together is None:
        # Computing times are scaled to the same amount of work in each step.
        alike_ns = spent.computing_ns * (work_ns.mean() / work_ns)[..., None]
        together = common_factor(alike_ns, replayed.steps)
    factor, best = together.by_step, together.best
    of_computing = _ideal(spent.computing_ns, work_ns * factor, best, _QUARTER)
    of_transfers = _ideal(spent.transferring_ns, work_ns, best, _HALF)
    computing, communication = (work_ns * ideal[:, None] for ideal in (of_computing, of_transfers))

    host_ns = replayed.over_steps(_regular_lags_ns).T
    named = np.minimum(_named_ns(replayed, windows), spent.idle_ns)
    # Late launches count up to the time by which they lengthen the step: longer delays are waits
    # for operations that are not recorded.
    excess_ns = (metrics.recorded_s - metrics.simulated_s) / NS
    if replayed.graph.chained:
        # A chained step begins with the end of the previous step, so its excess contains the gap.
        excess_ns[1:] -= windows.between_ns[:-1] - replayed.graph.step_gap_ns
    longer_ns = host_ns + np.maximum(excess_ns, 0.0)
    late = np.minimum(spent.idle_ns - named, longer_ns[..., None])
    other = (windows.between_ns + windows.missing_ns)[:, None] + named
    waiting = windows.wall_ns - spent.computing_ns - spent.transferring_ns - late - other
    # Ratio of the ideal computing time of this split to that of the replay
    size = float((computing / work_ns).mean())
    rest = size * (metrics.ideal_s / NS - work_ns) - communication - host_ns
    bubble = np.maximum(rest - replayed.graph.step_gap_ns, 0.0)
    bubble *= min(
        1.0, float(waiting.sum()) / max(float((bubble * factor).sum()) * waiting.shape[2], 1.0)
    )

    usual = np.minimum(windows.between_ns, windows.usual_ns)[:, None]
    # The fastest worker of each stage defines the usual time; the excess of other workers is lost.
    usual_named = np.zeros((len(named), 1, 1))
    if named.any():
        usual_named = np.median(named, axis=1, keepdims=True).min(axis=2, keepdims=True)
    usual = usual + np.minimum(named, usual_named)
    between = windows.between_ns[:, None] + named
    parts: dict[Part, FloatArray] = {
        Part.COMPUTING: computing[..., None],
        Part.OWN_SLOWNESS: spent.computing_ns - (computing * factor)[..., None],
        Part.SLOW_TOGETHER: ((computing + bubble) * (factor - 1))[..., None],
        Part.WAITING: waiting - (bubble * factor)[..., None],
        Part.BUBBLE: bubble[..., None],
        Part.COMMUNICATION: communication[..., None],
        Part.COMMUNICATION_ABOVE: spent.transferring_ns - communication[..., None],
        Part.LAUNCH_DELAYS: late,
        Part.BETWEEN_STEPS: usual,
        Part.BETWEEN_STEPS_ABOVE: between - usual,
        Part.MISSING: windows.missing_ns[:, None],
    }
    parts_ns = np.empty((len(Part), *windows.wall_ns.shape))
    for part, time_ns in parts.items():
        parts_ns[_PLACE[part]] = time_ns
    return Split(windows.wall_ns, parts_ns, together)


def _spent(replayed: Replayed, windows: Windows) -> Spent:
    """Return the recorded time of all steps by activity, in order of steps, ns."""
    if len(replayed.groups) == 1:
        return spent_of(replayed.main, windows.begins_ns, windows.ends_ns)
    of_all = Spent(*(np.empty(windows.ends_ns.shape) for _ in range(3)))
    for group in replayed.groups:
        mine = np.searchsorted(replayed.steps, group.layout.steps)
        spent = spent_of(group, windows.begins_ns[:, mine], windows.ends_ns[:, mine])
        of_all.computing_ns[:, mine] = spent.computing_ns
        of_all.transferring_ns[:, mine] = spent.transferring_ns
        of_all.idle_ns[:, mine] = spent.idle_ns
    return of_all


def _ideal_computing(group: ShapeGroup) -> FloatArray:
    """Return a worker's computing time in the replayed ideal step, shape (steps, pp), ns."""
    layout = group.layout
    mine = layout.of_types(*COMPUTING)
    ideal_ns = np.bincount(
        layout.nodes.pp[mine], weights=group.durations.ideal_ns[mine], minlength=layout.pp
    )
    return np.broadcast_to(np.maximum(ideal_ns, 1.0), (len(layout.steps), layout.pp))


def _regular_lags_ns(group: ShapeGroup) -> FloatArray:
    """Return the sum of a stage's regular launch delays in a step, shape (steps, pp), ns."""
    layout = group.layout
    longest: dict[int, float] = {}
    for (node, _), lag_ns in group.graph.lags_ns.items():
        longest[node] = max(longest.get(node, 0.0), lag_ns)
    total = np.zeros(layout.pp)
    for node, lag_ns in longest.items():
        total[layout.nodes.pp[node]] += lag_ns
    return np.broadcast_to(total, (len(layout.steps), layout.pp))


def _ideal(values_ns: FloatArray, work_ns: FloatArray, best: BoolArray, share: float) -> FloatArray:
    """Return the ideal time of each stage for a unit of work, shape (pp,), from its best steps.

    The ideal is the median over the stage's peers (the lower median of an even number) in their
    best stretch, but not more than the stage's mean.

    Parameters
    ----------
    values_ns : array, shape (pp, steps, dp) work_ns : array, shape (pp, steps) best : bool array,
    shape (steps,)
    share : float
        Quantile of a worker's best steps that counts as the worker's time.
    """
    dp = values_ns.shape[2]
    relative = np.sort(values_ns[:, best] / work_ns[:, best, None], axis=1)
    own = np.sort(relative[:, int(share * (relative.shape[1] - 1))], axis=1)
    mean = values_ns.sum(axis=(1, 2)) / (work_ns.sum(axis=1) * dp)
    return np.asarray(np.minimum(own[:, (dp - 1) // 2], mean))


def _named_ns(replayed: Replayed, windows: Windows) -> FloatArray:
    """Return each worker's time of host operations within steps, shape (pp, steps, dp), ns.

    Host operations are loading of batches, checkpoints and evaluation, which belong between steps.
    """
    host_operations, inside = replayed.host_operations, np.zeros(windows.ends_ns.shape)
    if not len(host_operations):
        return inside
    step = np.searchsorted(windows.starts_ns, host_operations.start_ns, side="right") - 1
    # An operation that begins before a step may end within the step, so both steps are tested.
    for first in (step, step + 1):
        there = np.flatnonzero((first >= 0) & (first < len(windows.starts_ns)))
        at = host_operations.pp[there], first[there], host_operations.dp[there]
        begins_ns = windows.starts_ns[first[there]]
        ends_ns = np.minimum(host_operations.end_ns[there], begins_ns + windows.ends_ns[at])
        time_ns = ends_ns - np.maximum(host_operations.start_ns[there], begins_ns)
        np.add.at(inside, at, np.maximum(time_ns, 0.0))
    return inside


# Smallest loss that sentences mention, as a share of the time.
WORTH_SAYING: Final = 0.05
# The getter is built once, since tables of a thousand jobs read the losses several times a job.
_LOST: Final = attrgetter(*(part for part in Part if part.lost))


@dataclass(frozen=True, slots=True)
class Shares:
    """Shares of the time of all workers by part; the shares add up to 1."""

    computing: float
    """Computing time up to the median of the stage's peers in their best stretch of steps."""
    own_slowness: float
    """Computing time above (or, negative, below) that median, without the slowness of all workers
    together.
    """
    slow_together: float
    """Excess time of steps in which all workers compute slower than in their best stretch."""
    waiting: float
    """Time of waiting for other workers: for stragglers."""
    bubble: float
    """Time of waiting for the pipeline to fill and drain, as in the replayed ideal step."""
    communication: float
    """Communication that no computation hides, up to the median of the stage's peers."""
    communication_above: float
    """Communication that no computation hides, beyond that median."""
    launch_delays: float
    """Time without computing and communication that makes a step longer: hosts launch late."""
    between_steps: float
    """Time from the last end of a step to the first start of the next, up to the median."""
    between_steps_above: float
    """Time from the last end of a step to the first start of the next, beyond the median."""
    missing: float
    """Steps that are not analyzed: incomplete steps between analyzed steps, and odd steps."""

    def of(self, part: Part) -> float:
        """Return the share of the given part."""
        share: float = getattr(self, part)
        return share

    @property
    def lost(self) -> float:
        """Return the sum of the shares of all lost parts."""
        parts: tuple[float, ...] = _LOST(self)
        return sum(parts)

    @property
    def stragglers(self) -> float:
        """Return the share lost to stragglers: losses that are not common to all workers."""
        return self.lost - self.slow_together - self.between_steps_above


@dataclass(frozen=True, slots=True)
class Losses:
    """Shares of the time that are lost, by cause."""

    stragglers: float
    """Losses that not all workers share."""
    between: float
    """Gaps between steps beyond the usual gap."""
    together: float
    """Slowness of all workers together."""

    @property
    def lost(self) -> float:
        """Return the sum of the three losses."""
        return self.stragglers + self.between + self.together


@dataclass(frozen=True, slots=True)
class Budget:
    """Split of a session's time from its first to its last operation, as shares by part.

    Gaps in which steps were not recorded do not count.
    """

    wall_s: float
    """Total time of each worker, seconds."""
    shares: Shares
    """Shares over all workers and steps; none is negative."""
    by_worker: dict[Part, tuple[tuple[float, ...], ...]]
    """Shares of each worker's time by part, [dp][pp]; a share may be negative."""
    by_step: dict[Part, tuple[float, ...]]
    """Shares of each step's time by part, including the gap to the next step."""
    step_wall_s: tuple[float, ...]
    """Duration of each step, including the gap to the next step, seconds."""


def budget_of(split: Split) -> Budget:
    """Return the shares of each part in a split time, in total, by worker and by step."""
    wall_ns, parts_ns = split.wall_ns, split.parts_ns
    workers = wall_ns.shape[0] * wall_ns.shape[2]
    whole_ns, step_ns = wall_ns.sum(), wall_ns.sum(axis=(0, 2))
    of_workers_ns = parts_ns.sum(axis=2)
    shares = of_workers_ns.sum(axis=(1, 2)) / max(whole_ns, 1.0)
    # A step or a worker may take no time, so the divisor is at least 1.
    by_worker = (of_workers_ns / np.maximum(wall_ns.sum(axis=1), 1.0)).swapaxes(1, 2)
    by_step = parts_ns.sum(axis=(1, 3)) / np.maximum(step_ns, 1.0)
    return Budget(
        wall_s=float(whole_ns) / workers * NS,
        # Rounding may give slightly negative sums, so shares are limited to at least 0.
        shares=Shares(*np.maximum(shares, 0.0).tolist()),
        by_worker={
            part: tuple(map(tuple, of)) for part, of in zip(Part, by_worker.tolist(), strict=True)
        },
        by_step={part: tuple(of) for part, of in zip(Part, by_step.tolist(), strict=True)},
        step_wall_s=tuple((step_ns / workers * NS).tolist()),
    )
