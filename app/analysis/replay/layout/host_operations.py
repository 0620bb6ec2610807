"""Host operations between steps: loading of batches, checkpoints and evaluation.

They belong to no step, even if they are recorded within a step, and are not replayed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from app.analysis.replay.layout.dense import FloatArray, IntArray, Layout
from app.analysis.trace.model import BETWEEN_STEPS, KNOWN_OP_TYPES, Trace

_FIRST: Final = KNOWN_OP_TYPES.index(BETWEEN_STEPS[0])
_END: Final = _FIRST + len(BETWEEN_STEPS)


@dataclass(frozen=True, slots=True, eq=False)
class HostOperations:
    """Host operations as columns of equal length; times are those of the ranks' aligned clocks."""

    kind: IntArray  # index into `BETWEEN_STEPS`
    step: IntArray
    dp: IntArray
    pp: IntArray
    start_ns: FloatArray
    end_ns: FloatArray

    def __len__(self) -> int:
        return len(self.kind)

    def of(self, name: str) -> HostOperations:
        """Return the host operations of a type."""
        chosen = self.kind == BETWEEN_STEPS.index(name)
        return HostOperations(
            self.kind[chosen],
            self.step[chosen],
            self.dp[chosen],
            self.pp[chosen],
            self.start_ns[chosen],
            self.end_ns[chosen],
        )

    def earlier(self, by_ns: FloatArray) -> HostOperations:
        """Return the operations with their times moved earlier by `by_ns`, shape (operations,)."""
        return replace(self, start_ns=self.start_ns - by_ns, end_ns=self.end_ns - by_ns)


_NO_INTEGERS: Final = np.empty(0, dtype=np.int64)
_NO_TIMES: Final = np.empty(0)
NONE: Final = HostOperations(
    _NO_INTEGERS, _NO_INTEGERS, _NO_INTEGERS, _NO_INTEGERS, _NO_TIMES, _NO_TIMES
)


def without_host_operations(trace: Trace) -> tuple[Trace, NDArray[np.intp]]:
    """Return a trace without host operations, and the row numbers of the host operations."""
    if not len(trace) or int(trace.op.max()) < _FIRST:
        return trace, np.empty(0, dtype=np.intp)
    between = (trace.op >= _FIRST) & (trace.op < _END)
    rows = np.flatnonzero(between)
    if not len(rows) or len(rows) == len(trace):
        return trace, np.empty(0, dtype=np.intp)
    return trace.of_rows(np.flatnonzero(~between)), rows


def with_opened(layout: Layout, trace: Trace, rows: NDArray[np.intp]) -> Layout:
    """Return a layout with `opened_ns` computed from the host operations at `rows`.

    A host operation before a step is recorded in this step, or at the end of the previous step.
    """
    if not len(rows) or layout.pp > 1 or trace.step_relative:
        return layout
    starts_ns, ends_ns = layout.start_ns, layout.start_ns + layout.duration_ns
    if layout.missing is not None:
        starts_ns = np.where(layout.missing, np.inf, starts_ns)
        ends_ns = np.where(layout.missing, -np.inf, ends_ns)
    first_ns = starts_ns.min(axis=0) + layout.begin_ns[:, None]
    last_ns = ends_ns.max(axis=0) + layout.begin_ns[:, None]
    opened_ns = np.zeros(first_ns.shape)
    rows = rows[np.isin(trace.step[rows], layout.steps)]
    step, dp = np.searchsorted(layout.steps, trace.step[rows]), trace.dp[rows]
    start_ns = trace.start_ns[rows]
    closing = (start_ns >= last_ns[step, dp]) & np.isin(trace.step[rows] + 1, layout.steps)
    step += closing
    np.maximum.at(opened_ns, (step, dp), first_ns[step, dp] - start_ns)
    return replace(layout, opened_ns=opened_ns) if opened_ns.any() else layout


def host_operations_of(
    trace: Trace, rows: NDArray[np.intp], ahead_ns: FloatArray | None
) -> HostOperations:
    """Return the host operations at the given rows of a trace.

    Parameters
    ----------
    ahead_ns : float64 array, shape (dp, pp), or None
        Clock offset of each worker, which is subtracted; None if clocks are not corrected.
    """
    if not len(rows) or trace.step_relative:
        return NONE
    dp, pp = trace.dp[rows].astype(np.int64), trace.pp[rows].astype(np.int64)
    start_ns = trace.start_ns[rows].astype(np.float64)
    if ahead_ns is not None:
        start_ns -= ahead_ns[dp, pp]
    return HostOperations(
        kind=trace.op[rows].astype(np.int64) - _FIRST,
        step=trace.step[rows],
        dp=dp,
        pp=pp,
        start_ns=start_ns,
        end_ns=start_ns + trace.duration_ns[rows],
    )
