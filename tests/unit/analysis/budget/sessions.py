"""Sessions of consecutive steps, with given times between steps and computing speeds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from app.analysis.trace.model import Trace

GAP_NS = 20_000_000


def following(
    trace: Trace,
    *,
    stalls_ns: Mapping[int, int] | None = None,
    stretched: Mapping[int, float] | None = None,
) -> Trace:
    """Return a session of consecutive steps, numbered from 0.

    Parameters
    ----------
    stalls_ns : mapping of int to int
        By step: additional time before the step.
    stretched : mapping of int to float
        By step: factor on the durations of all operations.
    """
    stalls, factors = stalls_ns or {}, stretched or {}
    step = np.unique(trace.step, return_inverse=True)[1].astype(np.int64)
    start, duration = trace.start_ns.copy(), trace.duration_ns.copy()
    begin_ns = 0
    for number in range(int(step.max()) + 1):
        mine = step == number
        factor = factors.get(number, 1.0)
        relative = _scaled(start[mine] - start[mine].min(), factor)
        duration[mine] = _scaled(duration[mine], factor)
        begin_ns += stalls.get(number, 0)
        start[mine] = begin_ns + relative
        begin_ns += int((relative + duration[mine]).max()) + GAP_NS
    return replace(trace, step=step, start_ns=start, duration_ns=duration)


def _scaled(time_ns: NDArray[np.int64], factor: float) -> NDArray[np.int64]:
    return np.asarray(time_ns * factor).astype(np.int64)
