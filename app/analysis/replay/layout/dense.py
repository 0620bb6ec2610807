"""Dense layout of operations: arrays of shape (nodes, steps, DP ranks), and their types.

All DP ranks and all steps of the same shape run the same operations, so a session is an array
``[node, step, DP rank]``. A *node* is an operation of a step's pipeline: (op type, stage, order).
If DP ranks run different numbers of microbatches, some places of the array are empty (`Padding`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from app.errors import Fault, UnanalyzableError

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

MAX_NAMED_FAULTS = 10
_NONE = np.empty(0, dtype=np.intp)


@dataclass(frozen=True, slots=True)
class DroppedStep:
    """A step that is not analyzed, and the reason."""

    step: int
    """Number of the training step."""
    reason: str
    """Why, in words."""


def no_complete_step(dropped: Sequence[DroppedStep]) -> UnanalyzableError:
    """Return the error for a trace whose steps are all dropped."""
    return UnanalyzableError(
        "No step is complete on all workers",
        code="trace.no_complete_step",
        faults=tuple(
            Fault("incomplete_step", f"Step {item.step}: {item.reason}")
            for item in dropped[:MAX_NAMED_FAULTS]
        ),
    )


@dataclass(frozen=True, slots=True, eq=False)
class Nodes:
    """Operations of a step on a DP rank, sorted by op type, stage and order.

    Every array has the shape (nodes,).
    """

    op: NDArray[np.int16]  # op code
    pp: NDArray[np.int32]  # pipeline stage
    order: NDArray[np.int32]  # order within op type and stage
    mb: NDArray[np.int32]  # microbatch in the template lane
    mc: NDArray[np.int32]  # model chunk in the template lane
    # Indices, built on first use: (op code, stage) → the nodes of this type and stage, which are
    # contiguous; stage → the nodes of this stage
    _places: dict[tuple[int, int], NDArray[np.intp]] = field(
        init=False, repr=False, default_factory=dict
    )
    _stages: dict[int, NDArray[np.intp]] = field(init=False, repr=False, default_factory=dict)

    def on(self, pp: int) -> NDArray[np.intp]:
        """Return the nodes of a stage, ascending; the array is read-only."""
        if pp not in self._stages:
            mine = np.flatnonzero(self.pp == pp)
            mine.flags.writeable = False
            self._stages[pp] = mine
        return self._stages[pp]

    def of(self, op: int, pp: int) -> NDArray[np.intp]:
        """Return the nodes of an op code on a stage, ascending; the array is read-only."""
        if not self._places:
            changes = (self.op[1:] != self.op[:-1]) | (self.pp[1:] != self.pp[:-1])
            first = [0, *(changes.nonzero()[0] + 1).tolist()] if len(self.op) else []
            every = np.arange(len(self.op))
            every.flags.writeable = False
            keys = zip(self.op[first].tolist(), self.pp[first].tolist(), strict=True)
            bounds = zip(keys, first, [*first[1:], len(every)], strict=True)
            # A single update fills the whole index, since other threads must not see a partly
            # filled index.
            self._places.update({key: every[begin:end] for key, begin, end in bounds})
        return self._places.get((op, pp), _NONE)

    def __len__(self) -> int:
        return len(self.op)


@dataclass(frozen=True, slots=True, eq=False)
class Padding:
    """Empty places: nodes of microbatches that a DP rank does not run in a step but other ranks do.

    In an empty place a computation takes no time, and no transfer waits for its peer.
    """

    # Shape (nodes,): index of the node's microbatch within the step; -1 for nodes without a
    # microbatch
    microbatch: IntArray
    transfers: NDArray[np.bool_]  # (nodes,): whether the node is a transfer
    counts: IntArray  # (steps, dp): number of microbatches of each rank
    # Length of the pipeline bubble in microbatches: (p - 1) / v (Narayanan and others, "Efficient
    # Large-Scale Language Model Training", section 2.2).
    bubble: float
    # Number of microbatches in a group: the number of stages in interleaved schedules, else 1.
    group: int = 1

    def where(self) -> NDArray[np.bool_]:
        """Return a mask of the empty places, shape (nodes, steps, dp)."""
        return np.asarray(self.microbatch[:, None, None] >= self.counts)

    def of(self, nodes: NDArray[np.intp], steps: slice) -> NDArray[np.bool_]:
        """Return a mask of the empty places of some nodes and steps, shape (nodes, steps, dp)."""
        return np.asarray(self.microbatch[nodes, None, None] >= self.counts[steps])

    def weights(self, count: float | FloatArray) -> FloatArray:
        """Return the factor on each node's duration if ranks run `count` microbatches.

        A fractional number of microbatches is rounded to whole groups, and the computations are
        scaled so that the length of a step with its bubble is that of the fractional number. Shape
        (nodes,), or (nodes, …) if `count` is an array.
        """
        shape = (-1, *(1,) * np.ndim(count))
        numbers, transfers = self.microbatch.reshape(shape), self.transfers.reshape(shape)
        whole = self.group * np.maximum(np.floor(np.asarray(count) / self.group + 0.5), 1.0)
        each = np.where(transfers, 1.0, (count + self.bubble) / (whole + self.bubble))
        return np.where(numbers < 0, 1.0, np.where(numbers < whole, each, 0.0))


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """Steps of the same shape as dense arrays."""

    op_names: tuple[str, ...]  # name of each op code
    nodes: Nodes
    steps: IntArray  # (steps,): training steps, ascending
    start_ns: FloatArray  # (nodes, steps, dp): recorded start, relative to `begin_ns`
    duration_ns: FloatArray  # (nodes, steps, dp): recorded duration
    ranks: NDArray[np.int32]  # (dp, pp): global rank that represents each worker
    launch: FloatArray  # (nodes,): sort key of the launch order of each stage
    begin_ns: FloatArray  # (steps,): first recorded start of each step
    # Shape (nodes, steps, dp): operations that the recorder lost; None if there are none. Their
    # times are 0 until they are re-created (`app.analysis.replay.missing_operations`).
    missing: NDArray[np.bool_] | None = None
    # Shape (nodes,): nodes that may lack an operation in a lane although the recorder lost nothing;
    # None if nothing is missing
    free: NDArray[np.bool_] | None = None
    # Shape (dp, pp): workers without any recorded operation
    # (`app.analysis.replay.missing_operations`); None if there are none
    absent: NDArray[np.bool_] | None = None
    # For each direction in which microbatches enter: its virtual stages (stage, chunk) in forward
    # order; empty if microbatches pass chunk after chunk
    routes: tuple[tuple[tuple[int, int], ...], ...] = ()
    # Computation → time of garbage collections inside it, shape (steps, dp), ns
    paused_ns: Mapping[int, FloatArray] = field(default_factory=dict)
    # Computation that waits for collectives inside it → shares of its own time before, between and
    # after these collectives, shape (pieces, steps, dp)
    shares: Mapping[int, FloatArray] = field(default_factory=dict)
    # Shape (steps, dp): time from the first host operation before a step to the rank's first start
    # in the step, ns, in jobs without a pipeline; None if there are no host operations
    opened_ns: FloatArray | None = None
    # Empty places, which are also `missing`; None if all DP ranks run equally many microbatches
    padding: Padding | None = None

    @property
    def dp(self) -> int:
        """Return the number of DP ranks."""
        return int(self.ranks.shape[0])

    @property
    def pp(self) -> int:
        """Return the number of pipeline stages."""
        return int(self.ranks.shape[1])

    @property
    def operations(self) -> int:
        """Return the number of operations, including lost operations."""
        empty = 0 if self.padding is None else int(np.count_nonzero(self.padding.where()))
        return self.start_ns.size - empty

    def of_steps(self, chosen: NDArray[np.intp]) -> Layout:
        """Return the layout of the steps at the given indices."""
        padding = self.padding
        return replace(
            self,
            steps=self.steps[chosen],
            start_ns=self.start_ns[:, chosen],
            duration_ns=self.duration_ns[:, chosen],
            begin_ns=self.begin_ns[chosen],
            missing=None if self.missing is None else self.missing[:, chosen],
            paused_ns={node: paused[chosen] for node, paused in self.paused_ns.items()},
            shares={node: shares[:, chosen] for node, shares in self.shares.items()},
            opened_ns=None if self.opened_ns is None else self.opened_ns[chosen],
            padding=padding and replace(padding, counts=padding.counts[chosen]),
        )

    def codes(self, *names: str) -> list[int]:
        """Return the op codes of the named types."""
        return [self.op_names.index(name) for name in names]

    def of(self, name: str, stage: int) -> NDArray[np.intp]:
        """Return the nodes of an op type on a stage, in order; the array is read-only."""
        return self.nodes.of(self.op_names.index(name), stage)

    def of_types(self, *names: str) -> NDArray[np.bool_]:
        """Return a mask of the nodes of the named op types, shape (nodes,)."""
        chosen = np.zeros(len(self.op_names), dtype=bool)
        chosen[self.codes(*names)] = True
        return np.asarray(chosen[self.nodes.op])


@dataclass(frozen=True, slots=True, eq=False)
class LaidOut:
    """A session's steps by shape; the shape with most steps comes first.

    `unanswered` names the types of sends that are left out because their receives were not
    recorded.
    """

    groups: tuple[Layout, ...]
    dropped: tuple[DroppedStep, ...]
    unanswered: tuple[str, ...] = ()

    @property
    def padded(self) -> bool:
        """Return whether DP ranks run different numbers of microbatches in a step."""
        return any(group.padding is not None for group in self.groups)
