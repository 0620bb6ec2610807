"""Steps of which an operation was recorded with times that cannot be; they are left out by name.

Recorders write a time of 0 where they know none (pytorch/kineto#109), and clocks that are set back
make an operation end before it starts. What else such a step holds may be right, but no replay of
it has all operations.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from app.analysis.replay.layout.dense import DroppedStep, no_complete_step
from app.analysis.trace.model import Trace

# A step lasts at most this many times as long as the others before its first start.
_STRAY: Final = 20
_COLUMNS: Final = (
    "rank", "dp", "pp", "step", "op", "mb", "mc", "order", "start_ns", "duration_ns",
)  # fmt: skip


def without_unusable(trace: Trace) -> tuple[Trace, tuple[DroppedStep, ...]]:
    """Return the trace without the steps whose times cannot be, and which these are and why.

    The same object where all can be.

    Raises
    ------
    UnanalyzableError
        ``trace.no_complete_step`` where that is all of them.
    """
    reasons = dict[int, str]()
    for row in (*_negative(trace), *_stray(trace)):
        reasons.setdefault(int(trace.step[row]), _reason(trace, row))
    if not reasons:
        return trace, ()
    dropped = tuple(DroppedStep(step, reason) for step, reason in sorted(reasons.items()))
    kept = ~np.isin(trace.step, list(reasons))
    if not kept.any():
        raise no_complete_step(dropped)
    rest = replace(trace, **{name: getattr(trace, name)[kept] for name in _COLUMNS})
    return rest, dropped


def _negative(trace: Trace) -> list[int]:
    if len(trace) == 0 or trace.duration_ns.min() >= 0:
        return []
    return np.flatnonzero(trace.duration_ns < 0).tolist()


def _stray(trace: Trace) -> list[int]:
    """Return operations at or before 0 in a session that runs much later.

    A clock that begins with the session may show 0, but then the rest of the step follows soon.
    """
    stretches = trace.stretches()
    if trace.step_relative or stretches.earliest_ns.min() > 0:
        return []
    suspected = np.flatnonzero(stretches.earliest_ns <= 0)
    usual_ns = _usual_step_ns(trace, stretches.earliest_ns)
    rows: list[int] = []
    end = np.append(stretches.first[1:], len(trace))
    for one in suspected.tolist():
        inside = np.arange(stretches.first[one], end[one])
        starts = trace.start_ns[inside]
        gap = np.median(starts) - starts
        rows += inside[(starts <= 0) & (gap > _STRAY * usual_ns)].tolist()
    return rows


def _usual_step_ns(trace: Trace, earliest_ns: NDArray[np.int64]) -> float:
    """Return about how far apart the steps of a rank begin."""
    first = trace.stretches().first
    order = np.lexsort((trace.step[first], trace.rank[first]))
    rank = trace.rank[first][order]
    apart = np.diff(earliest_ns[order])[rank[1:] == rank[:-1]]
    return float(np.median(np.abs(apart))) if len(apart) else 0.0


def _reason(trace: Trace, row: int) -> str:
    name, rank = trace.op_names[trace.op[row]], trace.rank[row]
    duration = int(trace.duration_ns[row])
    if duration < 0:
        return f"rank {rank} has a {name} of negative duration, {duration / 1e6:,.3f} ms"
    return f"rank {rank} has a {name} at the time {int(trace.start_ns[row])}, far from the others"
