"""Event-driven execution of a program for all DP ranks and steps at once.

An event is "operation launched" or "group ended"; it carries one instant for each (step, DP rank),
so that the order of events is worked out once and the arithmetic is done on whole arrays.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from app.analysis.quantities import FloatArray, IntArray
from app.analysis.synthesis.program import JobProgram
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

# Types of transfers that may run at the same time as computations.
_TRANSFERRING = (
    *(FORWARD_SEND, FORWARD_RECV, BACKWARD_SEND, BACKWARD_RECV),
    *(PARAMS_ALL_GATHER, GRADS_REDUCE_SCATTER),
)


class ScheduleDeadlockError(ValueError):
    """Operations wait for each other: the schedule cannot be executed."""


@dataclass(slots=True, eq=False)
class ExpertWork:
    """Times of ranks that share experts, nanoseconds; injections change the arrays in place.

    All ranks of a group exchange tokens together, and their computations end together.
    """

    # (operations, steps, dp): time between the two all-to-alls in a computation
    takes_ns: FloatArray
    # (2, operations, steps, dp): time that a rank waits before and after the experts
    ahead_ns: FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class HostOperation:
    """An operation that ranks record right before some steps, such as a checkpoint."""

    op: str  # operation type
    stage: int
    takes_ns: FloatArray  # (steps, dp): 0 for ranks and steps without it
    opens: bool  # whether it is recorded with the number of the following step, or the one before


@dataclass(slots=True, eq=False)
class StepWork:
    """Durations and delays of the operations of a program, in ns, shape (operations, steps, dp).

    Injections change the arrays in place before the execution.
    """

    program: JobProgram
    duration_ns: FloatArray  # computation or transfer without waiting
    delay_ns: FloatArray  # time from the moment an operation may run to its launch
    # Time in a computation that the worker's other ranks spend waiting for its slowest rank.
    late_ns: FloatArray
    late_rank: NDArray[np.int16]  # index of that tensor-parallel or context-parallel rank
    experts: ExpertWork | None = None  # None if no ranks share experts
    # Sequence lengths in each microbatch, shape (microbatches, steps, dp, sequences), padded with
    # 0; None if all microbatches are alike.
    lengths: IntArray | None = None
    # (steps, dp): recorded number of microbatches; None for the number in the program
    microbatches: IntArray | None = None
    numbers: IntArray | None = None  # (steps,): step numbers; None counts from 0
    # operations that ranks record between steps
    host_operations: list[HostOperation] = field(default_factory=list)


@dataclass(frozen=True, slots=True, eq=False)
class Execution:
    """Launch and end of every operation in ns since its step's start, (operations, steps, dp)."""

    start_ns: IntArray
    end_ns: IntArray

    def step_times_ns(self) -> IntArray:
        """Return the time of each step from its first launch to its last end, int64[steps]."""
        ends: IntArray = self.end_ns.max(axis=(0, 2))
        starts: IntArray = self.start_ns.min(axis=(0, 2))
        return ends - starts

    def turn_times_ns(self) -> IntArray:
        """Return the time from each step's start instant to its last end, int64[steps]."""
        ends: IntArray = self.end_ns.max(axis=(0, 2))
        return ends


def execute(work: StepWork, contention: float = 0.0) -> Execution:
    """Execute the program; return the launch and end of every operation.

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


def _overlap_ns(program: JobProgram, execution: Execution) -> IntArray:
    """Return how long each computation overlaps with transfers of its worker, nanoseconds."""
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
    """State of an execution in progress."""

    def __init__(self, work: StepWork, duration_ns: FloatArray) -> None:
        program = work.program
        self.program = program
        self.duration = np.rint(duration_ns).astype(np.int64)
        self.delay = np.rint(work.delay_ns).astype(np.int64)
        # `start` holds, until an operation is launched, the latest end so far of the operations
        # that it waits for.
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
            index = launchable.popleft()
            self.start[index] += self.delay[index]
            number = self.group_of[index]
            self.not_launched[number] -= 1
            if self.not_launched[number]:
                continue
            group = self.program.groups[number]
            members = list(group.members)
            gate = self.start[members].max(axis=0)
            if group.across_dp:
                gate = gate.max(axis=1, keepdims=True)
            self.end[members] = gate + self.duration[members]
            ended += len(members)
            for member in members:
                for successor in self.releases[member]:
                    np.maximum(self.start[successor], self.end[member], out=self.start[successor])
                    self.waits_for[successor] -= 1
                    if not self.waits_for[successor]:
                        launchable.append(successor)
        total = len(self.program)
        if ended != total:
            raise ScheduleDeadlockError(f"{total - ended} of {total} operations never end")
        return Execution(start_ns=self.start, end_ns=self.end)
