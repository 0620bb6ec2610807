"""What stands for a trace of which no operation can be replayed."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from app.analysis.arrivals.lanes import lanes_of
from app.analysis.trace.model import BACKWARD_COMPUTE, FORWARD_COMPUTE, OPTIMIZER, Trace

_TYPES: Final = (FORWARD_COMPUTE, BACKWARD_COMPUTE, OPTIMIZER)


def whole_steps(trace: Trace) -> Trace:
    """Return a trace in which each rank computes from its first start in a step to its last end.

    That is an optimizer's, for which no other stage waits, after a nanosecond each of forward and
    backward; on one clock, as far as collectives tell.
    """
    lanes = lanes_of(trace, most=len(trace))
    lane = np.unique(lanes.lane)
    start_ns = lanes.start[np.searchsorted(lanes.lane, lane)] - lane * lanes.span_ns
    end_ns = lanes.ends_ns().ravel()[lane]
    short_ns = np.ones_like(start_ns)
    rest_ns = np.maximum(end_ns - start_ns - 2, 1)
    start_ns += lanes.begin_ns[lane // len(lanes.ranks)]
    head = np.zeros(len(lane), dtype=np.int64)
    stretch = trace.stretches().first
    step = np.searchsorted(lanes.steps, trace.step[stretch])
    own = step * len(lanes.ranks) + np.searchsorted(lanes.ranks, trace.rank[stretch])
    head[np.searchsorted(lane, own)] = stretch
    types = [trace.op_names.index(name) for name in _TYPES]
    thrice = np.tile(head, len(types))
    return replace(
        trace.of_rows(thrice),
        op=np.repeat(np.array(types, dtype=np.int16), len(head)),
        mb=np.zeros(len(thrice), dtype=np.int32),
        mc=np.zeros(len(thrice), dtype=np.int32),
        order=np.zeros(len(thrice), dtype=np.int32),
        start_ns=np.concatenate([start_ns, start_ns + 1, start_ns + 2]),
        duration_ns=np.concatenate([short_ns, short_ns, rest_ns]),
        copies=trace.copies,
    )
