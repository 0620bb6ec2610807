"""What passes between a step and the next: of the job, and of each worker.

Only where both steps are recorded and follow one another: what passes between recorded windows is
unknown, and no time is lost in it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from app.analysis.replay.layout.dense import FloatArray, IntArray
from app.analysis.replay.medians import median
from app.analysis.replay.session import Replayed, ShapeGroup, ends_of, follows_of

# Of fewer turns no median tells what usually passes.
FEWEST_TURNS: Final = 4


@dataclass(frozen=True, slots=True, eq=False)
class Turns:
    """What passes before each step, ns; NaN where the step before is not recorded."""

    steps: IntArray  # (steps,): ascending
    # (steps,): from the last end of any worker in the step before to the first start of any;
    # negative where steps overlap. Where ranks go on by themselves, what regularly passes at most:
    # a launch after that is late.
    gap_ns: FloatArray
    # (steps, pp, dp): from a worker's last end in the step before to its own first start
    by_worker_ns: FloatArray
    # begins_ns, ends_ns: (steps, pp, dp): a worker's first start and last end, ns of the epoch
    begins_ns: FloatArray
    ends_ns: FloatArray

    @property
    def known(self) -> NDArray[np.bool_]:
        """Return which steps follow a recorded one."""
        return np.asarray(np.isfinite(self.gap_ns))

    @property
    def usual_ns(self) -> float:
        """Return what passes between steps in the median; 0 where that is not known."""
        known = self.gap_ns[self.known]
        return max(float(median(known)), 0.0) if len(known) else 0.0


def turns_of(replayed: Replayed) -> Turns:
    """Return what passes between the steps of a session, those of all shapes.

    Nothing is known where starts are no readings of clocks, and where stages go on to the next step
    by themselves at once: there a step takes from the end of the one before to its own.
    """
    groups = replayed.groups
    order = np.argsort(np.concatenate([group.layout.steps for group in groups]))
    steps = replayed.steps
    begins, ends = (
        np.concatenate([bounds(group) for group in groups], axis=1)[:, order].transpose(1, 0, 2)
        for bounds in (_begins, _finishes)
    )
    following = np.diff(steps, prepend=steps[0] - 2) == 1
    chained, regularly_ns = replayed.graph.chained, replayed.graph.turn_ns
    if not replayed.absolute or (chained and not regularly_ns):
        following[:] = False
    gap, by_worker = np.full(len(steps), np.nan), np.full(begins.shape, np.nan)
    gap[1:] = begins.min(axis=(1, 2))[1:] - ends.max(axis=(1, 2))[:-1]
    if chained:
        gap = np.minimum(gap, regularly_ns)
    by_worker[1:] = begins[1:] - ends[:-1]
    gap[~following], by_worker[~following] = np.nan, np.nan
    return Turns(steps, gap, by_worker, begins, ends)


def between_steps_ns(replayed: Replayed) -> float:
    """Return what usually passes between the end of a step and the begin of the next, ns.

    0 where steps overlap, where it is part of each step, where the recording does not tell, for a
    single worker, and in pipelines, whose stages fill and drain in each step.
    """
    layout = replayed.layout
    if layout.pp > 1 or layout.dp == 1 or replayed.graph.chained:
        return 0.0
    return turns_of(replayed).usual_ns


def _begins(group: ShapeGroup) -> FloatArray:
    """Return when each stage begins a step, shape (pp, steps, dp), ns of the epoch."""
    layout = group.layout
    begins = np.empty((layout.pp, *layout.start_ns.shape[1:]))
    # What follows nothing comes first; and what is launched first, where the dependency model has
    # another order than the job.
    roots = np.array([node for node, after in group.once(follows_of).items() if not after])
    for stage, own in enumerate(begins):
        mine = layout.nodes.on(stage)
        first = mine[layout.launch[mine].argmin()]
        nodes = np.append(roots[layout.nodes.pp[roots] == stage], first)
        own[:] = layout.start_ns[nodes].min(axis=0)
    return begins + layout.begin_ns[:, None]


def _finishes(group: ShapeGroup) -> FloatArray:
    """Return when each stage ends a step, shape (pp, steps, dp), ns of the epoch."""
    return ends_of(group) + group.layout.begin_ns[:, None]
