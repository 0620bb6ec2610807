"""From what hosts did to the trace that their hooks write."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import numpy as np

from app.analysis.synthesis.hosts.job import HostJob, Worker
from app.analysis.synthesis.hosts.running import Row
from app.analysis.trace import model as ops
from app.analysis.trace.model import KNOWN_OP_TYPES, SessionMeta, Trace

# Starts of recordings: a clock's reading.
_BEGIN_NS: Final = 1_760_000_000_000_000_000
_LATE_NS: Final = 1000.0


def record(job: HostJob, rows: list[Row]) -> Trace:
    """Return the trace of a job's operations."""
    if job.late_ends:
        _take_late(rows)
    codes = {name: code for code, name in enumerate(KNOWN_OP_TYPES)}
    rows = sorted(rows, key=lambda r: (r.worker[1], r.worker[0], r.step, codes[r.op], r.start))
    order: list[int] = []
    for number, row in enumerate(rows):
        before = rows[number - 1]
        alike = number and (before.worker, before.step, before.op) == (row.worker, row.step, row.op)
        order.append(order[-1] + 1 if alike else 0)

    def column(dtype: Any, values: Iterable[float]) -> Any:  # noqa: ANN401 - NumPy's own types
        return np.array(list(values), dtype=dtype)

    extra = {"layers": list(job.layers)} if job.layers else {}
    return Trace(
        meta=SessionMeta(job.sizes, trial_name=job.name, extra=extra),
        op_names=KNOWN_OP_TYPES,
        rank=column(np.int32, (r.worker[1] * job.dp + r.worker[0] for r in rows)),
        dp=column(np.int32, (r.worker[0] for r in rows)),
        pp=column(np.int32, (r.worker[1] for r in rows)),
        step=column(np.int64, (r.step + 1 for r in rows)),
        op=column(np.int16, (codes[r.op] for r in rows)),
        mb=column(np.int32, (r.mb for r in rows)),
        mc=column(np.int32, (r.mc for r in rows)),
        order=np.array(order, dtype=np.int32),
        start_ns=column(np.int64, (_BEGIN_NS + round(r.start) for r in rows)),
        duration_ns=column(np.int64, (round(r.end - r.start) for r in rows)),
        step_relative=False,
    )


def _take_late(rows: list[Row]) -> None:
    """End every send where its rank has computed all of its step."""
    done: dict[tuple[Worker, int], float] = {}
    for row in rows:
        if row.op == ops.BACKWARD_COMPUTE:
            key = (row.worker, row.step)
            done[key] = max(done.get(key, 0.0), row.end)
    for row in rows:
        if row.op in {ops.FORWARD_SEND, ops.BACKWARD_SEND}:
            row.end = max(row.end, done[row.worker, row.step] + _LATE_NS)
