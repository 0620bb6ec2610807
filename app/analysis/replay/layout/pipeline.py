"""Routes of microbatches through virtual stages, and the launch order of each stage.

A model chunk of a stage is a *virtual stage*. Microbatches go forward through chunk 0 of all
stages, then through chunk 1, and so on; backwards run in reverse order. A stage without a chunk is
skipped. A placement may have another route, or two routes that begin at the two ends of the
pipeline (DualPipe).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from app.analysis.replay.layout.dense import FloatArray, Layout, Nodes, Padding
from app.analysis.trace import model as ops

COMPUTE = frozenset({ops.FORWARD_COMPUTE, ops.BACKWARD_COMPUTE, ops.WGRAD_COMPUTE})

# (pipeline stage, model chunk of this stage)
VirtualStage = tuple[int, int]
# Virtual stages in the order in which a forward passes them.
Route = tuple[VirtualStage, ...]


@dataclass(frozen=True, slots=True)
class Direction:
    """Op types of a direction (forward or backward) through the pipeline."""

    compute: str
    send: str
    recv: str


FORWARD = Direction(ops.FORWARD_COMPUTE, ops.FORWARD_SEND, ops.FORWARD_RECV)
BACKWARD = Direction(ops.BACKWARD_COMPUTE, ops.BACKWARD_SEND, ops.BACKWARD_RECV)
DIRECTIONS = (FORWARD, BACKWARD)


@dataclass(frozen=True, slots=True)
class Flow:
    """Virtual stages in forward order, and the neighbors of each."""

    stages: tuple[VirtualStage, ...]
    _source: Mapping[VirtualStage, VirtualStage]
    _target: Mapping[VirtualStage, VirtualStage]

    def chunks(self, pp: int) -> NDArray[np.int64]:
        """Return the number of chunks of each stage, shape (pp,)."""
        return np.bincount([stage for stage, _ in self.stages], minlength=pp).astype(np.int64)

    def source(self, direction: Direction, stage: VirtualStage) -> VirtualStage | None:
        """Return the virtual stage that sends the input of `stage`; None if it is the first."""
        return (self._source if direction is FORWARD else self._target).get(stage)

    def target(self, direction: Direction, stage: VirtualStage) -> VirtualStage | None:
        """Return the virtual stage that receives the result of `stage`; None if it is the last."""
        return (self._target if direction is FORWARD else self._source).get(stage)

    def links(self, direction: Direction) -> Iterator[tuple[VirtualStage, VirtualStage]]:
        """Yield the pairs (sender, receiver) of neighboring virtual stages."""
        for sender in self.stages:
            receiver = self.target(direction, sender)
            if receiver is not None:
                yield sender, receiver


def flow_of(computing: Iterable[VirtualStage], routes: Sequence[Route] = ()) -> Flow:
    """Return the flow of microbatches through the virtual stages that run forwards.

    Parameters
    ----------
    computing : iterable of (stage, chunk)
        Virtual stages that run forwards.
    routes : sequence of sequences of (stage, chunk)
        A route of all microbatches, or a route for each end of the pipeline at which they enter;
        empty if microbatches pass chunk after chunk.

    Examples
    --------
    >>> list(flow_of([(0, 0), (1, 0), (0, 1), (1, 1)]).links(FORWARD))
    [((0, 0), (1, 0)), ((1, 0), (0, 1)), ((0, 1), (1, 1))]
    """
    place = {
        stage: (route, number)
        for route, stages_of_route in enumerate(routes)
        for number, stage in enumerate(stages_of_route)
    }
    nowhere = (len(routes), 0)
    stages = tuple(
        sorted(set(computing), key=lambda stage: (place.get(stage, nowhere), stage[1], stage[0]))
    )
    target = {
        sender: receiver
        for sender, receiver in pairwise(stages)
        if place.get(sender, nowhere)[0] == place.get(receiver, nowhere)[0]
    }
    source = {receiver: sender for sender, receiver in target.items()}
    return Flow(stages, source, target)


def transferred(stage: int, neighbors: Sequence[VirtualStage | None]) -> tuple[list[int], ...]:
    """Return the possible sets of a stage's computations with a transfer, likeliest first.

    The candidates are the computations with a neighbor on another stage, those with any neighbor,
    and all computations, because some recorders write a transfer for every computation, even at the
    ends of the pipeline or the model.

    Parameters
    ----------
    neighbors : sequence
        Virtual stage on the other side of each computation; None if there is none.

    Returns
    -------
    tuple of list of int
        Sets of indices into `neighbors`.
    """
    inner = [i for i, other in enumerate(neighbors) if other is not None and other[0] != stage]
    linked = [i for i, other in enumerate(neighbors) if other is not None]
    return inner, linked, list(range(len(neighbors)))


def pair_up(
    ones: Sequence[int], others: Sequence[int], microbatch: Sequence[int]
) -> list[tuple[int, int]]:
    """Return the pairs of nodes of two virtual stages that work on the same microbatch.

    Nodes are paired by `microbatch`, the microbatch of each node. If microbatches are not recorded
    or do not match, nodes are paired in order.
    """
    by_mb = {microbatch[node]: node for node in others}
    names = {microbatch[node] for node in ones}
    named = ops.ABSENT not in names and names == by_mb.keys()
    if named and len(names) == len(ones) == len(others):
        return [(node, by_mb[microbatch[node]]) for node in ones]
    return list(zip(ones, others, strict=False))


# Number of evenly spread lanes from which the launch order is inferred if every lane lacks some
# operations.
LANES_ASKED: Final = 17
# Largest number of groups of steps with different launch orders: each group needs a graph and
# replays of its own.
MAX_GROUPS: Final = 16


def agreed_order(starts: FloatArray) -> FloatArray:
    """Return a score for each operation, such that scores ascend in launch order.

    Parameters
    ----------
    starts : float64 array, shape (operations, lanes)
        Recorded starts; NaN if a lane lacks the operation.

    Returns
    -------
    float64 array, shape (operations,)
        Sum over the other operations of the share of lanes that launch the other operation earlier.
    """
    count = starts.shape[1]
    lanes = np.unique(np.linspace(0, count - 1, min(count, LANES_ASKED)).astype(np.int64))
    with np.errstate(invalid="ignore"):
        chosen = starts[:, lanes]
        score = np.empty(len(chosen))
        for operation, row in enumerate(chosen):
            earlier = np.count_nonzero(chosen < row, axis=1)
            later = np.count_nonzero(chosen > row, axis=1)
            seen = earlier + later
            score[operation] = (earlier[seen > 0] / seen[seen > 0]).sum()
    return score


def follows(starts: FloatArray) -> NDArray[np.bool_]:
    """Return which lanes launch operations in the order of the rows, shape (lanes,).

    Parameters
    ----------
    starts : float64 array, shape (operations, lanes)
        Recorded starts, with operations in the tested order; NaN if a lane lacks an operation.
    """
    latest = np.fmax.accumulate(starts, axis=0)
    with np.errstate(invalid="ignore"):
        return np.asarray(~(starts[1:] < latest[:-1]).any(axis=0))


def launch_scores(nodes: Nodes, starts: FloatArray, padding: Padding | None = None) -> FloatArray:
    """Return a sort key by launch order within each stage, shape (nodes,), for incomplete lanes.

    Parameters
    ----------
    starts : float64 array, shape (nodes, steps, dp)
        Recorded starts; NaN if an operation is missing.
    padding : Padding, optional
        Empty places; if given, only lanes with the largest number of microbatches count.
    """
    scores = np.zeros(len(nodes))
    by_lane = starts.reshape(len(nodes), -1)
    if padding is not None:
        by_lane = by_lane[:, padding.counts.ravel() == padding.counts.max()]
    for stage in np.unique(nodes.pp):
        on_stage = np.flatnonzero(nodes.pp == stage)
        scores[on_stage] = agreed_order(by_lane[on_stage])
    return scores


def split_by_order(layout: Layout) -> list[Layout]:
    """Split a layout's steps by the launch order of computations on DP rank 0."""
    alike = _in_order(layout, layout.launch)
    if alike.all():
        return [layout]
    parts: list[Layout] = []
    while len(parts) < MAX_GROUPS:
        # The first remaining step determines the launch order of the next part.
        alike = _in_order(layout, _starts(layout)[:, 0, 0])
        part = layout.of_steps(np.flatnonzero(alike))
        starts = _starts(part)
        if part.missing is None:
            launch = starts[:, 0, 0]
        else:
            launch = launch_scores(part.nodes, starts, part.padding)
        parts.append(replace(part, launch=launch))
        if alike.all():
            return parts
        layout = layout.of_steps(np.flatnonzero(~alike))
    return [*parts, layout]


def _starts(layout: Layout) -> FloatArray:
    """Return recorded starts, shape (nodes, steps, dp), ns; NaN if an operation is missing."""
    if layout.missing is None:
        return layout.start_ns
    return np.where(layout.missing, np.nan, layout.start_ns)


def _in_order(layout: Layout, launch: FloatArray) -> NDArray[np.bool_]:
    """Return in which steps DP rank 0 computes in the order of `launch`, shape (steps,).

    Nodes with NaN in `launch` are left out.
    """
    alike = np.ones(len(layout.steps), dtype=bool)
    computes = layout.of_types(*COMPUTE) & ~np.isnan(launch)
    for stage in range(layout.pp):
        nodes = np.flatnonzero(computes & (layout.nodes.pp == stage))
        nodes = nodes[np.argsort(launch[nodes], kind="stable")]
        starts = layout.start_ns[nodes, :, 0]
        if layout.missing is not None:
            starts = np.where(layout.missing[nodes, :, 0], np.nan, starts)
        alike &= follows(starts)
    return alike
