"""The pulse's sink of the tap: sums the operations of a step to one row."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from paceline_client.pulse.rows import Row
from paceline_client.torch.layout import Layout
from paceline_client.torch.tap import COMPILE, DATA_LOADING, EVALUATION, GC, OPTIMIZER

_COMPUTE: Final = "compute"


class Steps:
    """Takes operations, those inside of computations before these, and the ends of steps.

    All on one thread: that of the training on processors, the one that reads events on GPUs.
    """

    def __init__(self, rank: int, layout: Layout, keep: Callable[[Row], None]) -> None:
        self._place = rank, layout.dp_rank, layout.pp_rank
        self._keep = keep
        self._clear()

    def _clear(self) -> None:
        # By type of operation: how many were measured, what they took, and waited inside.
        self._computed: dict[str, list[int]] = {}
        self._inside_ns = 0  # of waits inside of the computation that has not ended
        self._compiled_ns = 0  # the same of what was compiled
        self._waited: dict[str, list[int]] = {}  # the same of waits outside of computations
        self._optimizer_ns = 0
        self._gc_ns = 0
        self._gc_outside_ns = 0
        self._first_ns: int | None = None  # begin of the first operation
        self._aside: list[tuple[str, int, int]] = []  # what is no part of computing or waiting

    def inside(self, op: str, _start_ns: int, duration_ns: int, *_where: int | None) -> None:
        """Take an operation inside of a computation."""
        if op == GC:
            self._gc_ns += duration_ns
        elif op == COMPILE:
            self._compiled_ns += duration_ns
        elif not op.endswith(_COMPUTE):
            self._inside_ns += duration_ns

    def outside(self, op: str, start_ns: int, duration_ns: int, *_where: int | None) -> None:
        """Take a computation, or an operation outside of computations."""
        if self._compiled_ns and op.endswith(_COMPUTE):
            duration_ns -= min(duration_ns, self._compiled_ns)
            self._compiled_ns = 0
        known = self._computed.get(op)
        if known is not None:
            known[0] += 1
            known[1] += duration_ns
            if self._inside_ns:
                known[2] += self._inside_ns
                self._inside_ns = 0
            return
        if op == GC:
            self._gc_ns += duration_ns
            self._gc_outside_ns += duration_ns
            self._aside.append((op, start_ns, duration_ns))
            return
        if op == COMPILE:
            self._aside.append((op, start_ns, duration_ns))
            return
        if self._first_ns is None:
            self._first_ns = start_ns
        if op.endswith(_COMPUTE):
            self._computed[op] = [1, duration_ns, self._inside_ns]
            self._inside_ns = 0
        elif op == OPTIMIZER:
            self._optimizer_ns += duration_ns
        else:
            waited = self._waited.setdefault(op, [0, 0])
            waited[0] += 1
            waited[1] += duration_ns

    def between(self, op: str, start_ns: int, duration_ns: int, *_where: int | None) -> None:
        """Take something that the rank did between steps."""
        self._aside.append((op, start_ns, duration_ns))

    def end(  # noqa: PLR0913, PLR0917 - what the tap and its timeline know
        self,
        step: int,
        tokens: int,
        skipped: Mapping[str, int],
        time_ns: int,
        step_ns: int,
        end_ns: int,
    ) -> None:
        """Keep the row of a step; `skipped` operations of a type were as those measured of it.

        `time_ns` is the end of the step since the epoch, `end_ns` the same by the clock of the
        operations' begins.
        """
        compute_ns, wait_ns = self._gc_outside_ns, 0
        for op, (measured, all_ns) in self._waited.items():
            wait_ns += round((1 + skipped.get(op, 0) / measured) * all_ns)
        for op, (measured, all_ns, inside_ns) in self._computed.items():
            times = 1 + skipped.get(op, 0) / measured
            compute_ns += round(times * max(0, all_ns - inside_ns))
            wait_ns += round(times * inside_ns)
        data_ns = 0 if self._first_ns is None else max(0, self._first_ns - (end_ns - step_ns))
        evaluation_ns = 0
        for op, start_ns, duration_ns in self._aside:
            before = self._first_ns is not None and start_ns < self._first_ns
            if op == DATA_LOADING:
                data_ns += 0 if before else duration_ns
            elif before:
                data_ns -= duration_ns
            if op == EVALUATION:
                evaluation_ns += duration_ns
        rank, dp_rank, pp_rank = self._place
        row = Row(
            step,
            rank,
            dp_rank,
            pp_rank,
            time_ns,
            max(0, step_ns - evaluation_ns),
            compute_ns,
            wait_ns,
            max(0, data_ns),
            self._optimizer_ns,
            self._gc_ns,
            tokens,
        )
        self._clear()
        self._keep(row)
