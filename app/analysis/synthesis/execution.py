"""Event-driven execution of a program on all DP ranks and steps at once.

An event is "operation launched" or "group ended"; it carries one instant for each (step, DP rank),
so that the order of events is worked out once and the arithmetic is done on whole arrays.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from app.analysis.synthesis.program import JobProgram, TransferGroup
from app.analysis.trace.model import (
    BACKWARD_COMPUTE,
    BACKWARD_RECV,
    BACKWARD_SEND,
    FORWARD_COMPUTE,
    FORWARD_RECV,
    FORWARD_SEND,
    GRADS_REDUCE_SCATTER,
    PARAMS_ALL_GATHER,
)

# Transfers that run during computations.
_TRANSFERRING = (
    *(FORWARD_SEND, FORWARD_RECV, BACKWARD_SEND, BACKWARD_RECV),
    *(PARAMS_ALL_GATHER, GRADS_REDUCE_SCATTER),
)


class ScheduleDeadlockError(ValueError):
    """Operations wait for each other: the schedule cannot be executed."""


@dataclass(slots=True, eq=False)
class ExpertWork:
    """What ranks that share experts do together, in ns; all of a group send and end together.

    A computation ends with its experts; injections change the arrays in place.
    """

    # (operations, steps, dp): from when the tokens of all have been sent to when the experts of
    # all are done
    takes_ns: NDArray[np.float64]
    # (2, operations, steps, dp): how long a rank waits for the others before the experts and
    # after them
    ahead_ns: NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class HostOperation:
    """What ranks do right before some steps, and write down."""

    op: str  # operation type
    stage: int
    takes_ns: NDArray[np.float64]  # (steps, dp): 0 where a rank does nothing
    opens: bool  # whether it has the number of the step that follows; else of the one before


@dataclass(slots=True, eq=False)
class StepWork:
    """What the operations of a program take, in ns; arrays of shape (operations, steps, dp).

    Injections change the arrays in place before the execution.
    """

    program: JobProgram
    duration_ns: NDArray[np.float64]  # computation or transfer without waiting
    delay_ns: NDArray[np.float64]  # time from the moment an operation may run to its launch
    # Part of a computation that one rank of the worker keeps the others waiting.
    late_ns: NDArray[np.float64]
    late_rank: NDArray[np.int16]  # which tensor-parallel rank that is, or context-parallel one
    experts: ExpertWork | None = None  # None where no ranks share experts
    # Sequence lengths of each microbatch, shape (microbatches, steps, dp, sequences), 0 where
    # there are no more; None where they do not vary.
    lengths: NDArray[np.int64] | None = None
    # (steps, dp): how many microbatches the computations are recorded as; None where all run what
    # the program says
    microbatches: NDArray[np.int64] | None = None
    numbers: NDArray[np.int64] | None = None  # (steps,): of the steps; None where they count from 0
    # what ranks record to do between steps
    host_operations: list[HostOperation] = field(default_factory=list)


@dataclass(frozen=True, slots=True, eq=False)
class Execution:
    """Launch and end of every operation in ns since its step's start, (operations, steps, dp)."""

    start_ns: NDArray[np.int64]
    end_ns: NDArray[np.int64]

    def step_times_ns(self) -> NDArray[np.int64]:
        """Return the time of each step from its first launch to its last end."""
        ends: NDArray[np.int64] = self.end_ns.max(axis=(0, 2))
        starts: NDArray[np.int64] = self.start_ns.min(axis=(0, 2))
        return ends - starts

    def turn_times_ns(self) -> NDArray[np.int64]:
        """Return the same from the end of the step before, at which nothing is launched yet."""
        ends: NDArray[np.int64] = self.end_ns.max(axis=(0, 2))
        return ends


def execute(work: StepWork, contention: float = 0.0) -> Execution:
    """Execute the program and return when everything was launched and ended.

    Parameters
    ----------
    contention : float
        Share by which a computation takes longer for the time in which its worker also transfers.
        The overlap is that of an execution without contention.

    Raises
    ------
    ScheduleDeadlockError
        Some operations can never be launched.
    """
    if not contention:
        return _Run(work, work.duration_ns).to_end()
    undisturbed = _Run(work, work.duration_ns).to_end()
    overlap = _overlap_ns(work.program, undisturbed)
    return _Run(work, work.duration_ns + contention * overlap).to_end()


def _overlap_ns(program: JobProgram, execution: Execution) -> NDArray[np.int64]:
    """Return how long each computation shares its worker with transfers."""
    start, end = execution.start_ns, execution.end_ns
    begin = start.copy()
    for group in program.groups:
        members = list(group.members)
        begin[members] = start[members].max(axis=0)
        if group.across_dp:
            begin[members] = begin[members].max(axis=2, keepdims=True)
    overlap = np.zeros_like(start)
    transfers = program.of_types(*_TRANSFERRING)
    computes = program.of_types(FORWARD_COMPUTE, BACKWARD_COMPUTE)
    for stage in np.unique(program.stage):
        computing = np.flatnonzero(computes & (program.stage == stage))
        for transfer in np.flatnonzero(transfers & (program.stage == stage)):
            shared = np.minimum(end[computing], end[transfer])
            shared -= np.maximum(start[computing], begin[transfer])
            overlap[computing] += np.maximum(shared, 0)
    return overlap


class _Run:
    """One execution under way."""

    def __init__(self, work: StepWork, duration_ns: NDArray[np.float64]) -> None:
        program = work.program
        self.program = program
        self.duration = np.rint(duration_ns).astype(np.int64)
        self.delay = np.rint(work.delay_ns).astype(np.int64)
        # Until an operation is launched, the latest end so far of what it waits for.
        self.start = np.zeros_like(self.duration)
        self.end = np.zeros_like(self.duration)
        self.waits_for = [len(before) for before in program.after]
        self.releases: list[list[int]] = [[] for _ in range(len(program))]
        for index, before in enumerate(program.after):
            for predecessor in before:
                self.releases[predecessor].append(index)
        self.group_of = {m: n for n, group in enumerate(program.groups) for m in group.members}
        self.not_launched = [len(group.members) for group in program.groups]

    def to_end(self) -> Execution:
        launchable = deque(index for index, count in enumerate(self.waits_for) if not count)
        ended = 0
        while launchable:
            number = self._launch(launchable.popleft())
            if self.not_launched[number]:
                continue
            group = self.program.groups[number]
            self._transfer(group)
            ended += len(group.members)
            for member in group.members:
                launchable.extend(self._release_after(member))
        total = len(self.program)
        if ended != total:
            raise ScheduleDeadlockError(f"{total - ended} of {total} operations never end")
        return Execution(start_ns=self.start, end_ns=self.end)

    def _launch(self, index: int) -> int:
        self.start[index] += self.delay[index]
        number = self.group_of[index]
        self.not_launched[number] -= 1
        return number

    def _transfer(self, group: TransferGroup) -> None:
        members = list(group.members)
        gate = self.start[members].max(axis=0)
        if group.across_dp:
            gate = gate.max(axis=1, keepdims=True)
        self.end[members] = gate + self.duration[members]

    def _release_after(self, index: int) -> Iterator[int]:
        """Yield the operations that waited for nothing but this one."""
        for successor in self.releases[index]:
            np.maximum(self.start[successor], self.end[index], out=self.start[successor])
            self.waits_for[successor] -= 1
            if not self.waits_for[successor]:
                yield successor
