"""The way of a microbatch through the pipeline: virtual stages, and who hands over to whom.

A model chunk of a stage is a *virtual stage*. Microbatches go forward through chunk 0 of all
stages, then through chunk 1 of all stages, and so on; backward the other way around. A stage
without some chunk is passed over, so stages may differ in how many chunks they have. Placements
may have another route, or two that begin at either end (DualPipe).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from app.analysis.trace import model as ops

COMPUTE = frozenset({ops.FORWARD_COMPUTE, ops.BACKWARD_COMPUTE, ops.WGRAD_COMPUTE})

# (pipeline stage, model chunk)
VirtualStage = tuple[int, int]
# Virtual stages in the order in which a forward passes them.
Route = tuple[VirtualStage, ...]


@dataclass(frozen=True, slots=True)
class Direction:
    """The op types of one direction through the pipeline."""

    compute: str
    send: str
    recv: str


FORWARD = Direction(ops.FORWARD_COMPUTE, ops.FORWARD_SEND, ops.FORWARD_RECV)
BACKWARD = Direction(ops.BACKWARD_COMPUTE, ops.BACKWARD_SEND, ops.BACKWARD_RECV)
DIRECTIONS = (FORWARD, BACKWARD)


@dataclass(frozen=True, slots=True)
class Flow:
    """Virtual stages in the order in which a forward passes them."""

    stages: tuple[VirtualStage, ...]
    _source: Mapping[VirtualStage, VirtualStage]
    _target: Mapping[VirtualStage, VirtualStage]

    def chunks(self, pp: int) -> NDArray[np.int64]:
        """Return how many chunks each stage has, shape (pp,)."""
        return np.bincount([stage for stage, _ in self.stages], minlength=pp).astype(np.int64)

    def source(self, direction: Direction, stage: VirtualStage) -> VirtualStage | None:
        """Return where a virtual stage gets its input from; None where the model begins."""
        return (self._source if direction is FORWARD else self._target).get(stage)

    def target(self, direction: Direction, stage: VirtualStage) -> VirtualStage | None:
        """Return where a virtual stage hands its result to; None where the model ends."""
        return (self._target if direction is FORWARD else self._source).get(stage)

    def links(self, direction: Direction) -> Iterator[tuple[VirtualStage, VirtualStage]]:
        """Yield (who hands over, who takes over)."""
        for sender in self.stages:
            receiver = self.target(direction, sender)
            if receiver is not None:
                yield sender, receiver


def flow_of(computing: Iterable[VirtualStage], routes: Sequence[Route] = ()) -> Flow:
    """Return the way through the virtual stages that compute forwards.

    Parameters
    ----------
    computing : iterable of (stage, chunk)
    routes : sequence of sequences of (stage, chunk)
        One for all microbatches, or one for those of each direction; empty where chunk follows
        chunk.

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
        here: there
        for here, there in pairwise(stages)
        if place.get(here, nowhere)[0] == place.get(there, nowhere)[0]
    }
    source = {there: here for here, there in target.items()}
    return Flow(stages, source, target)


def transferred(stage: int, neighbors: Sequence[VirtualStage | None]) -> tuple[list[int], ...]:
    """Say which of a stage's computations may come with a transfer, most probable first.

    Only what comes from, or goes to, another stage is transferred; some recorders write a transfer
    for every computation, also where the pipeline or the model ends.

    Parameters
    ----------
    neighbors : sequence
        The virtual stage on the other side of each computation; None where there is none.

    Returns
    -------
    tuple of list of int
        Places in `neighbors`.
    """
    inner = [i for i, there in enumerate(neighbors) if there is not None and there[0] != stage]
    linked = [i for i, there in enumerate(neighbors) if there is not None]
    return inner, linked, list(range(len(neighbors)))


def pair_up(
    ones: Sequence[int], others: Sequence[int], microbatch: Sequence[int]
) -> list[tuple[int, int]]:
    """Pair the nodes of two virtual stages that work on the same microbatch.

    In order where the recorded microbatches (`microbatch` of each node) do not tell.
    """
    by_mb = {microbatch[node]: node for node in others}
    names = {microbatch[node] for node in ones}
    named = ops.ABSENT not in names and names == by_mb.keys()
    if named and len(names) == len(ones) == len(others):
        return [(node, by_mb[microbatch[node]]) for node in ones]
    return list(zip(ones, others, strict=False))
