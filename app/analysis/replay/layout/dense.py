"""Operations laid out densely: one row an operation of the step, one column a (step, DP rank).

All DP ranks and all steps of one shape run the same operations, so a session is a matrix
``[node, step, DP rank]``, where a *node* is one operation of a step's pipeline, (op type, stage,
order). Where DP ranks run different numbers of microbatches, places of the matrix are empty
(`Padding`). Everything behind this module works on whole rows of that matrix.
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
    """A step that is not analyzed."""

    step: int
    """Number of the training step."""
    reason: str
    """Why, in words."""


def no_complete_step(dropped: Sequence[DroppedStep]) -> UnanalyzableError:
    """Return the refusal of a trace of which all steps are left out."""
    return UnanalyzableError(
        "No step is complete on all workers",
        code="trace.no_complete_step",
        faults=tuple(
            Fault("incomplete_step", f"Step {one.step}: {one.reason}")
            for one in dropped[:MAX_NAMED_FAULTS]
        ),
    )


@dataclass(frozen=True, slots=True, eq=False)
class Nodes:
    """Operations of one step on one DP rank, sorted by op type, stage and order.

    Every array has the shape (nodes,). `mb` and `mc` are those of the template lane.
    """

    op: NDArray[np.int16]
    pp: NDArray[np.int32]
    order: NDArray[np.int32]
    mb: NDArray[np.int32]
    mc: NDArray[np.int32]
    # (op, pp) → its nodes, which are neighbors; pp → its nodes: filled when first asked
    _places: dict[tuple[int, int], NDArray[np.intp]] = field(
        init=False, repr=False, default_factory=dict
    )
    _stages: dict[int, NDArray[np.intp]] = field(init=False, repr=False, default_factory=dict)

    def on(self, pp: int) -> NDArray[np.intp]:
        """Return the nodes of a stage, ascending; not to be written to."""
        if pp not in self._stages:
            mine = np.flatnonzero(self.pp == pp)
            mine.flags.writeable = False
            self._stages[pp] = mine
        return self._stages[pp]

    def of(self, op: int, pp: int) -> NDArray[np.intp]:
        """Return the nodes of an op type on a stage, by its code; not to be written to."""
        if not self._places:
            self._places.update(self._blocks())
        return self._places.get((op, pp), _NONE)

    def _blocks(self) -> dict[tuple[int, int], NDArray[np.intp]]:
        changes = (self.op[1:] != self.op[:-1]) | (self.pp[1:] != self.pp[:-1])
        first = [0, *(changes.nonzero()[0] + 1).tolist()] if len(self.op) else []
        every = np.arange(len(self.op))
        every.flags.writeable = False
        ops, stages = self.op[first].tolist(), self.pp[first].tolist()
        return {
            key: every[begin:end]
            for key, begin, end in zip(
                zip(ops, stages, strict=True), first, [*first[1:], len(every)], strict=True
            )
        }

    def __len__(self) -> int:
        return len(self.op)


@dataclass(frozen=True, slots=True, eq=False)
class Padding:
    """Places of microbatches that a DP rank does not run in a step, while others run more.

    Nothing happens there: a computation takes no time, and no transfer waits for its peer.
    """

    # (nodes,): which microbatch of the step each node is of, from 0; -1 where it is of none
    microbatch: IntArray
    transfers: NDArray[np.bool_]  # (nodes,): which of these hand something over
    counts: IntArray  # (steps, dp): how many microbatches each rank runs
    # How many microbatches a stage waits for while its pipeline fills and drains: (p - 1) / v
    # (Narayanan and others, "Efficient Large-Scale Language Model Training", section 2.2).
    bubble: float
    # Size of the groups that microbatches go in: as many as there are stages where schedules
    # interleave.
    group: int = 1

    def where(self) -> NDArray[np.bool_]:
        """Return the places that are empty, shape (nodes, steps, dp)."""
        return np.asarray(self.microbatch[:, None, None] >= self.counts)

    def of(self, nodes: NDArray[np.intp], steps: slice) -> NDArray[np.bool_]:
        """Return the same of some nodes and steps."""
        return np.asarray(self.microbatch[nodes, None, None] >= self.counts[steps])

    def weights(self, count: float | FloatArray) -> FloatArray:
        """Return what is left of each node's duration where ranks run a number of microbatches.

        A broken number is as many whole groups as are nearest, whose computations take what makes
        a step with its bubble as long. Shape (nodes,), or (nodes, …) for several numbers.
        """
        shape = (-1, *(1,) * np.ndim(count))
        numbers, transfers = self.microbatch.reshape(shape), self.transfers.reshape(shape)
        whole = self.group * np.maximum(np.floor(np.asarray(count) / self.group + 0.5), 1.0)
        each = np.where(transfers, 1.0, (count + self.bubble) / (whole + self.bubble))
        return np.where(numbers < 0, 1.0, np.where(numbers < whole, each, 0.0))


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """Steps of one shape as dense matrices."""

    op_names: tuple[str, ...]  # name of each op code
    nodes: Nodes
    steps: IntArray  # (steps,): the analyzed steps, ascending
    # start_ns, duration_ns: (nodes, steps, dp): recorded start, relative to the step's earliest
    # start, and recorded duration
    start_ns: FloatArray
    duration_ns: FloatArray
    ranks: NDArray[np.int32]  # (dp, pp): the global rank that each cell is analyzed from
    launch: FloatArray  # (nodes,): sorts the nodes of a stage in the order of their launch
    begin_ns: FloatArray  # (steps,): the steps' earliest starts as recorded
    # (nodes, steps, dp): operations that the recorder lost; None where there are none. Their
    # times are 0 until they are re-created (`app.analysis.replay.missing_operations`).
    missing: NDArray[np.bool_] | None = None
    # (nodes,): nodes that may be missing without anything being lost; None where nothing is
    # missing
    free: NDArray[np.bool_] | None = None
    # (dp, pp): workers of which nothing was recorded (`app.analysis.replay.missing_operations`);
    # None where all are there
    absent: NDArray[np.bool_] | None = None
    # tuple of tuple of (stage, chunk): virtual stages in the order of a forward, of each
    # direction; empty where chunk follows chunk
    routes: tuple[tuple[tuple[int, int], ...], ...] = ()
    # (steps, dp): time within computations, by node, that garbage collections are recorded to
    # have taken
    paused_ns: Mapping[int, FloatArray] = field(default_factory=dict)
    # (pieces, steps, dp): of computations that wait inside for collectives, by node, the share of
    # their own time before, between and after these
    shares: Mapping[int, FloatArray] = field(default_factory=dict)
    # (steps, dp): how long before its first start of a step a rank without a pipeline is recorded
    # to begin what belongs between steps; None where no rank is
    opened_ns: FloatArray | None = None
    # where DP ranks run fewer microbatches than others; None where all run as many. What is empty
    # is in `missing`, too.
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
        """Return how many operations there are, lost ones included."""
        empty = 0 if self.padding is None else int(np.count_nonzero(self.padding.where()))
        return self.start_ns.size - empty

    def of_steps(self, chosen: NDArray[np.intp]) -> Layout:
        """Return the layout of some steps, given by index."""
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
        """Return the codes of the named op types."""
        return [self.op_names.index(name) for name in names]

    def of(self, name: str, stage: int) -> NDArray[np.intp]:
        """Return the nodes of an op type on a stage, in order; not to be written to."""
        return self.nodes.of(self.op_names.index(name), stage)

    def of_types(self, *names: str) -> NDArray[np.bool_]:
        """Return which nodes are of the named op types, shape (nodes,)."""
        chosen = np.zeros(len(self.op_names), dtype=bool)
        chosen[self.codes(*names)] = True
        return np.asarray(chosen[self.nodes.op])


@dataclass(frozen=True, slots=True, eq=False)
class LaidOut:
    """A session's steps by shape, those of the shape with most steps first.

    `unanswered` names types of sends that are left out because their receives were not recorded.
    """

    groups: tuple[Layout, ...]
    dropped: tuple[DroppedStep, ...]
    unanswered: tuple[str, ...] = ()

    @property
    def padded(self) -> bool:
        """Return whether DP ranks run different numbers of microbatches in a step."""
        return any(group.padding is not None for group in self.groups)
