"""Rings of context-parallel ranks, executed event by event.

Each rank computes a piece and passes keys and values on, CP - 1 times a computation. A transfer
ends some time after the rank and its two neighbors have reached it. Gradients are reduced over all.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from app.analysis.trace.model import KNOWN_OP_TYPES, SessionMeta, Sizes, Trace

_MS = 1_000_000
_FORWARD_NS, _BACKWARD_NS = 5 * _MS, 10 * _MS
_PASS_NS, _REDUCE_NS, _OPTIMIZER_NS = 300_000, 4 * _MS, 3 * _MS
_COLUMNS = ("rank", "dp", "pp", "step", "op", "mb", "mc", "order", "start_ns", "duration_ns")

Row = tuple[int, int, int, int, str, int, int, int, int, int]


@dataclass(frozen=True, slots=True)
class Rings:
    """A job; `work` is the computing time of each global rank relative to a typical one."""

    dp: int
    cp: int
    work: tuple[float, ...]
    steps: int = 8
    microbatches: int = 1
    noise: float = 0.01
    recorded: bool = True  # whether what ranks pass on is

    def trace(self, seed: int = 0) -> Trace:
        """Return the recording of all ranks."""
        rows = [row for rows, _ in self._steps(seed) for row in rows]
        if not self.recorded:
            rows = [row for row in rows if row[4] != "cp-send-recv"]
        rows.sort(key=lambda row: (row[0], row[3], KNOWN_OP_TYPES.index(row[4]), row[8]))
        table = dict(zip(_COLUMNS, zip(*rows, strict=True), strict=True))
        table["op"] = tuple(KNOWN_OP_TYPES.index(str(name)) for name in table["op"])
        types = {"step": np.int64, "op": np.int16, "start_ns": np.int64, "duration_ns": np.int64}
        hosts = {rank: f"node-{rank:02d}" for rank in range(self.dp * self.cp)}
        columns: dict[str, Any] = {
            name: np.array(table[name], dtype=types.get(name, np.int32)) for name in _COLUMNS
        }
        return Trace(
            meta=SessionMeta(Sizes(dp=self.dp, pp=1, cp=self.cp), hosts=hosts),
            op_names=KNOWN_OP_TYPES,
            step_relative=False,
            **columns,
        )

    def mean_step_s(self, seed: int = 0) -> float:
        """Return the mean step time in s."""
        return float(np.mean([lasted for _, lasted in self._steps(seed)])) / 1e9

    def _steps(self, seed: int) -> Iterator[tuple[list[Row], int]]:
        rng = np.random.default_rng(seed)
        begin = 1_760_000_000_000_000_000
        for step in range(self.steps):
            rows: list[Row] = []
            now = np.full(self.dp * self.cp, begin)
            passed = 0
            for mb in range(self.microbatches):
                for name, takes_ns in (
                    ("forward-compute", _FORWARD_NS),
                    ("backward-compute", _BACKWARD_NS),
                ):
                    start = now.copy()
                    for _ in range(self.cp - 1):
                        noise = rng.normal(1, self.noise, len(now))
                        now = now + np.rint(takes_ns * noise * self.work).astype(np.int64)
                        ends = self._passed(now)
                        rows += self._rows(step, "cp-send-recv", now, ends, order=passed)
                        now, passed = ends, passed + 1
                    rows += self._rows(step, name, start, now, mb=mb, order=mb)
            reduced = np.full(len(now), now.max() + _REDUCE_NS)
            rows += self._rows(step, "grads-reduce-scatter", now, reduced)
            ended = reduced + _OPTIMIZER_NS
            rows += self._rows(step, "optimizer", reduced, ended)
            yield rows, int(ended[0] - begin)
            begin = int(ended[0]) + _MS

    def _passed(self, now: np.ndarray) -> np.ndarray:
        """Return when each rank has passed its piece on, given the time at which it was ready."""
        groups = now.reshape(self.dp, self.cp)
        neighbors = np.maximum(np.roll(groups, 1, axis=1), np.roll(groups, -1, axis=1))
        ends = np.maximum(groups, neighbors) + _PASS_NS
        return np.asarray(ends.ravel())

    def _rows(
        self,
        step: int,
        name: str,
        start: np.ndarray,
        end: np.ndarray,
        *,
        mb: int = -1,
        order: int = 0,
    ) -> list[Row]:
        return [
            (rank, rank // self.cp, 0, step, name, mb, -1, order, int(at), int(ended - at))
            for rank, (at, ended) in enumerate(zip(start, end, strict=True))
        ]
