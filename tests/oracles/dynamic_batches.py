"""Data-parallel jobs whose ranks run different numbers of microbatches, executed event by event."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.analysis.trace.model import KNOWN_OP_TYPES, SessionMeta, Sizes, Trace

_MS = 1_000_000
_FORWARD_NS, _BACKWARD_NS = 20 * _MS, 40 * _MS
_REDUCE_NS, _OPTIMIZER_NS = 8 * _MS, 5 * _MS
_COLUMNS = ("rank", "dp", "pp", "step", "op", "mb", "mc", "order", "start_ns", "duration_ns")


@dataclass(frozen=True, slots=True, eq=False)
class DynamicBatches:
    """A job; `speed` is how many times as long each DP rank computes as a typical one."""

    counts: NDArray[np.int64]  # (steps, dp): microbatches of each rank
    speed: tuple[float, ...] = ()
    noise: float = 0.01
    named: bool = True  # whether microbatches are recorded

    def trace(self, seed: int = 0) -> Trace:
        """Return what all ranks record."""
        rows, _ = self._run(seed)
        rows.sort(key=lambda row: (row[0], row[3], KNOWN_OP_TYPES.index(str(row[4])), row[8]))
        table = dict(zip(_COLUMNS, zip(*rows, strict=True), strict=True))
        table["op"] = tuple(KNOWN_OP_TYPES.index(str(name)) for name in table["op"])
        types = {"step": np.int64, "op": np.int16, "start_ns": np.int64, "duration_ns": np.int64}
        columns: dict[str, Any] = {
            name: np.array(table[name], dtype=types.get(name, np.int32)) for name in _COLUMNS
        }
        return Trace(
            meta=SessionMeta(Sizes(dp=self.counts.shape[1], pp=1)),
            op_names=KNOWN_OP_TYPES,
            step_relative=False,
            **columns,
        )

    def mean_step_s(self, seed: int = 0) -> float:
        """Return what a mean step takes."""
        return self._run(seed)[1]

    def _run(self, seed: int) -> tuple[list[tuple[int | str, ...]], float]:
        rng = np.random.default_rng(seed)
        dp = self.counts.shape[1]
        speed = self.speed or (1.0,) * dp
        rows: list[tuple[int | str, ...]] = []
        begin = first = 1_760_000_000_000_000_000
        lasted = 0
        for step, counts in enumerate(self.counts.tolist()):
            ready = []
            for rank in range(dp):
                now = begin
                for mb in range(counts[rank]):
                    for name, takes in (
                        ("forward-compute", _FORWARD_NS),
                        ("backward-compute", _BACKWARD_NS),
                    ):
                        took = round(takes * speed[rank] * rng.normal(1, self.noise))
                        shown = mb if self.named else -1
                        rows.append((rank, rank, 0, step, name, shown, -1, mb, now, took))
                        now += took
                ready.append(now)
            end = max(ready) + _REDUCE_NS
            for rank, at in enumerate(ready):
                reduce = (rank, rank, 0, step, "grads-reduce-scatter", -1, -1, 0, at, end - at)
                rows += [
                    reduce,
                    (rank, rank, 0, step, "optimizer", -1, -1, 0, end, _OPTIMIZER_NS),
                ]
            lasted += end + _OPTIMIZER_NS - begin
            begin = end + _OPTIMIZER_NS + _MS
        assert begin > first
        return rows, lasted / len(self.counts) / 1e9
