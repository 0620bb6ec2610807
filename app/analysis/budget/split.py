"""Where the time goes: a session's time on all workers, split without rest.

Ideal is here what the median of a stage's peers takes in its best stretch, and not the mean of all
as for S: what slow and fast workers lose and gain does not cancel. What passes in the recording is
measured (`app.analysis.budget.spent`), and only what a worker waits for is told by a replay: the
bubble of a schedule is what is left of its ideal step (section 3.2 of "Understanding Stragglers in
Large Model Training Using What-if Analysis") without computing and communication.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from app.analysis.budget.common_factor import CommonFactor, common_factor
from app.analysis.budget.gaps import COMPUTING
from app.analysis.budget.parts import Part
from app.analysis.budget.spent import Spent, spent_of
from app.analysis.budget.windows import Windows, windows_of
from app.analysis.replay.layout.dense import FloatArray
from app.analysis.replay.metrics import Metrics
from app.analysis.replay.session import Replayed, ShapeGroup

_NS: Final = 1e-9
# Which of its best steps stands for a worker: of computing, that may have spells of its own, and
# of communication, which scatters.
_QUARTER: Final = 0.25
_HALF: Final = 0.5
_PLACE: Final = {part: place for place, part in enumerate(Part)}


@dataclass(frozen=True, slots=True, eq=False)
class Split:
    """The time of each worker in each step, split into parts, ns; in order of steps.

    The parts add up to the wall time. One may be negative for a worker in a step, and is not of all
    workers and steps together.
    """

    wall_ns: FloatArray  # (pp, steps, dp)
    parts_ns: FloatArray  # (parts, pp, steps, dp), in the order of `Part`
    together: CommonFactor

    def of(self, part: Part) -> FloatArray:
        """Return the time of a part, shape (pp, steps, dp), ns."""
        return np.asarray(self.parts_ns[_PLACE[part]])


def split(replayed: Replayed, metrics: Metrics, together: CommonFactor | None = None) -> Split:
    """Split the time of a session.

    Parameters
    ----------
    together : CommonFactor, optional
        How slow all workers are in each step, where more is known of it than what they compute.
    """
    windows = windows_of(replayed)
    spent = _spent(replayed, windows)
    work_ns = replayed.over_steps(_ideal_computing).T
    if together is None:
        # as if all steps had the same shape
        alike_ns = spent.computing_ns * (work_ns.mean() / work_ns)[..., None]
        together = common_factor(alike_ns, replayed.steps)
    factor, best = together.by_step, together.best
    of_computing = _ideal(spent.computing_ns, work_ns * factor, best, _QUARTER)
    of_transfers = _ideal(spent.transferring_ns, work_ns, best, _HALF)
    computing, communication = (work_ns * ideal[:, None] for ideal in (of_computing, of_transfers))

    host_ns = replayed.over_steps(_regularly_late).T
    named = np.minimum(_named_ns(replayed, windows), spent.idle_ns)
    longer_ns = host_ns + _late_ns(replayed, metrics, windows)
    late = np.minimum(spent.idle_ns - named, longer_ns[..., None])
    other = (windows.between_ns + windows.missing_ns)[:, None] + named
    waiting = windows.wall_ns - spent.computing_ns - spent.transferring_ns - late - other
    # Of the replayed ideal step, which is as long as all stages take on average.
    size = float((computing / work_ns).mean())
    rest = size * (metrics.ideal_s / _NS - work_ns) - communication - host_ns
    bubble = np.maximum(rest - replayed.graph.turn_ns, 0.0)
    bubble *= min(
        1.0, float(waiting.sum()) / max(float((bubble * factor).sum()) * waiting.shape[2], 1.0)
    )

    usual = np.minimum(windows.between_ns, windows.usual_ns)[:, None]
    usual = usual + np.minimum(named, _usual(named))
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


def _usual(named_ns: FloatArray) -> FloatArray:
    """Return what something usually takes on a stage, shape (pp, 1, 1), ns.

    On its fastest worker: what others take longer in each step is lost.
    """
    if not named_ns.any():
        return np.zeros((len(named_ns), 1, 1))
    return np.asarray(np.median(named_ns, axis=1, keepdims=True).min(axis=2, keepdims=True))


def _spent(replayed: Replayed, windows: Windows) -> Spent:
    """Measure all steps, in their order."""
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
    """Return what a worker computes in the replayed ideal step, shape (steps, pp), ns."""
    layout = group.layout
    mine = layout.of_types(*COMPUTING)
    ideal_ns = np.bincount(
        layout.nodes.pp[mine], weights=group.durations.ideal_ns[mine], minlength=layout.pp
    )
    return np.broadcast_to(np.maximum(ideal_ns, 1.0), (len(layout.steps), layout.pp))


def _regularly_late(group: ShapeGroup) -> FloatArray:
    """Return what regularly passes before launches of a stage, shape (steps, pp), ns."""
    layout = group.layout
    longest: dict[int, float] = {}
    for (node, _), lag_ns in group.graph.lags_ns.items():
        longest[node] = max(longest.get(node, 0.0), lag_ns)
    total = np.zeros(layout.pp)
    for node, lag_ns in longest.items():
        total[layout.nodes.pp[node]] += lag_ns
    return np.broadcast_to(total, (len(layout.steps), layout.pp))


def _ideal(
    values_ns: FloatArray, work_ns: FloatArray, best: NDArray[np.bool_], share: float
) -> FloatArray:
    """Return what a stage's peers take in their best stretch, for each unit of work, shape (pp,).

    Of two peers the faster one is the median, as of an even number the lower one. No stage takes
    less than that on average.

    Parameters
    ----------
    values_ns : array, shape (pp, steps, dp)
    work_ns : array, shape (pp, steps)
    best : bool array, shape (steps,)
    share : float
        Which quantile of its best steps stands for a worker.
    """
    dp = values_ns.shape[2]
    relative = np.sort(values_ns[:, best] / work_ns[:, best, None], axis=1)
    own = np.sort(relative[:, int(share * (relative.shape[1] - 1))], axis=1)
    mean = values_ns.sum(axis=(1, 2)) / (work_ns.sum(axis=1) * dp)
    return np.asarray(np.minimum(own[:, (dp - 1) // 2], mean))


def _named_ns(replayed: Replayed, windows: Windows) -> FloatArray:
    """Return how long workers do within steps what belongs between them, shape (pp, steps, dp), ns.

    Batches that are loaded, checkpoints that are written, evaluation.
    """
    host_operations, inside = replayed.host_operations, np.zeros(windows.ends_ns.shape)
    if not len(host_operations):
        return inside
    step = np.searchsorted(windows.starts_ns, host_operations.start_ns, side="right") - 1
    # one that begins before a step may end within it
    for first in (step, step + 1):
        there = np.flatnonzero((first >= 0) & (first < len(windows.starts_ns)))
        at = host_operations.pp[there], first[there], host_operations.dp[there]
        begins_ns = windows.starts_ns[first[there]]
        ends_ns = np.minimum(host_operations.end_ns[there], begins_ns + windows.ends_ns[at])
        time_ns = ends_ns - np.maximum(host_operations.start_ns[there], begins_ns)
        np.add.at(inside, at, np.maximum(time_ns, 0.0))
    return inside


def _late_ns(replayed: Replayed, metrics: Metrics, windows: Windows) -> FloatArray:
    """Return by how much launches that are late make each step longer, shape (steps,), ns.

    A worker that launches later than that waits for something that is not recorded.
    """
    longer = (metrics.recorded_s - metrics.simulated_s) / _NS
    if replayed.graph.chained:
        # These steps begin with the end of the one before.
        longer[1:] -= windows.between_ns[:-1] - replayed.graph.turn_ns
    return np.asarray(np.maximum(longer, 0.0))
