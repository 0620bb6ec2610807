"""Recordings of consecutive steps, and of operations between them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from app.analysis.trace.model import BETWEEN_STEPS, KNOWN_OP_TYPES, Trace
from tests.factories import joined, select


def consecutive(trace: Trace, gap_ns: float) -> Trace:
    """Return a trace with consecutive step numbers, and a given time between steps."""
    steps, number = np.unique(trace.step, return_inverse=True)
    start = trace.start_ns.copy()
    at = int(start.min())
    for index in range(len(steps)):
        mine = number == index
        start[mine] += at - start[mine].min()
        at = int((start[mine] + trace.duration_ns[mine]).max() + gap_ns)
    return replace(trace, step=steps[0] + number, start_ns=start)


def moved(
    trace: Trace, *, from_step: int, by_ns: float, dp: int | None = None, first_only: bool = False
) -> Trace:
    """Return a trace in which all operations from a step on are later, optionally of one DP rank.

    With `first_only`, only the first operations of the step are later.
    """
    number = trace.step - trace.step.min()
    late = number == from_step if first_only else number >= from_step
    if dp is not None:
        late &= trace.dp == dp
    if first_only:
        late &= trace.start_ns == trace.start_ns[late].min()
    return replace(trace, start_ns=trace.start_ns + np.int64(by_ns) * late)


def host_operation(
    trace: Trace, name: str, *, step: int, dp: int, start_ns: int, duration_ns: int
) -> Trace:
    """Return a trace with an additional operation between steps on a DP rank's first stage."""
    row = np.flatnonzero((trace.dp == dp) & (trace.pp == 0) & (trace.step == step))[:1]
    one = replace(
        select(trace, row),
        op=np.array([KNOWN_OP_TYPES.index(name)], np.int16),
        mb=np.array([-1], np.int32),
        mc=np.array([-1], np.int32),
        order=np.array([0], np.int32),
        start_ns=np.array([start_ns]),
        duration_ns=np.array([duration_ns]),
    )
    assert name in BETWEEN_STEPS
    return joined(trace, one)
