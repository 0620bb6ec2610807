"""Event-driven execution of a program on all DP ranks and steps at once.

An event is "operation launched" or "group ended"; it carries one instant for each (step, DP rank),
so that the order of events is worked out once and the arithmetic is done on whole arrays.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from app.analysis.synthesis.program import Group, Program


class ScheduleDeadlockError(ValueError):
    """Operations wait for each other: the schedule cannot be executed."""


@dataclass(frozen=True, slots=True, eq=False)
class Work:
    """What the operations of a program take, in ns; arrays of shape (operations, steps, dp).

    `duration_ns` is computation or transfer without waiting; `delay_ns` the time from the moment an
    operation may run to its launch. Injections change both in place before the execution.
    """

    program: Program
    duration_ns: NDArray[np.float64]
    delay_ns: NDArray[np.float64]


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


def execute(work: Work) -> Execution:
    """Execute the program and return when everything was launched and ended.

    Raises
    ------
    ScheduleDeadlockError
        Some operations can never be launched.
    """
    return _Run(work).to_end()


class _Run:
    """One execution under way."""

    def __init__(self, work: Work) -> None:
        program = work.program
        self.program = program
        self.duration = np.rint(work.duration_ns).astype(np.int64)
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

    def _transfer(self, group: Group) -> None:
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
