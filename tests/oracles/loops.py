"""Data-parallel loops, executed as programs run them: one operation after the other on each rank.

Ranks are executed, not replayed, from a list of a program's operations and collectives, with a
clock for each rank. The product's code is not used.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import numpy as np

from app.analysis.trace.decode import decode
from app.analysis.trace.limits import Limits
from app.analysis.trace.model import Trace

GRADIENTS: Final = "grads-reduce-scatter"
PARAMETERS: Final = "params-all-gather"
MS: Final = 1_000_000
_BEGIN_NS: Final = 1_700_000_000_000_000_000


@dataclass(frozen=True)
class Meet:
    """A collective that takes `ms` after all ranks have reached it."""

    op: str
    ms: float


@dataclass(frozen=True)
class Compute:
    """A rank's own work of `ms` in all, in equal pieces before, between and after `meets`.

    Without a name it is not recorded.
    """

    op: str
    ms: float
    mb: int | None = None
    meets: tuple[Meet, ...] = ()


@dataclass(frozen=True)
class Loop:
    """A job of some ranks, whose steps are the same program."""

    program: tuple[Compute | Meet, ...]
    ranks: int = 2
    steps: int = 24
    factors: tuple[float, ...] = (1.0, 1.0)  # how many times longer each rank computes
    noise: float = 0.0  # standard deviation of each piece, relative
    turn_ms: float = 0.0  # between two steps of a rank, on average
    turn_noise: float = 0.0
    # Each rank's time to load its batch before a step, recorded in that step, or in the one before.
    loading_ms: tuple[float, ...] = ()
    loads_ahead: bool = False
    seed: int = 0
    meta: Mapping[str, object] = field(default_factory=dict)

    def healthy(self) -> Loop:
        """Return the loop with all ranks alike, loading as fast as the fastest."""
        loading_ms = (min(self.loading_ms),) * self.ranks if self.loading_ms else ()
        return replace(self, factors=(1.0,) * self.ranks, loading_ms=loading_ms)

    def run(self) -> Ran:
        """Execute all steps."""
        return _Run(self).run()


@dataclass(frozen=True)
class Ran:
    """The recording, and the true mean step time."""

    trace: Trace
    step_s: float


class _Run:
    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._random = np.random.default_rng(loop.seed)
        self._now = np.zeros(loop.ranks)
        self._rows: list[dict[str, object]] = []
        self._step = 0

    def run(self) -> Ran:
        loop = self._loop
        ends = []
        for self._step in range(loop.steps):
            turn = loop.turn_ms * self._noisy(loop.turn_noise)
            self._now += np.maximum(turn, 0.0)
            if loop.loading_ms:
                self._load()
            for item in loop.program:
                if isinstance(item, Meet):
                    self._meet(item)
                else:
                    self._compute(item)
            ends.append(float(self._now.max()))
        return Ran(self._trace(), (ends[-1] - ends[0]) / (loop.steps - 1) / 1e3)

    def _noisy(self, deviation: float) -> np.ndarray:
        return 1 + deviation * self._random.standard_normal(self._loop.ranks)

    def _load(self) -> None:
        begin = self._now.copy()
        self._now += np.array(self._loop.loading_ms)
        step = self._step - self._loop.loads_ahead
        if step >= 0:
            self._record("data-loading", begin, step=step)

    def _compute(self, item: Compute) -> None:
        begin = self._now.copy()
        for number in range(len(item.meets) + 1):
            if number:
                self._meet(item.meets[number - 1])
            own = item.ms / (len(item.meets) + 1) * np.array(self._loop.factors)
            self._now += own * np.maximum(self._noisy(self._loop.noise), 0.1)
        if item.op:
            self._record(item.op, begin, item.mb)

    def _meet(self, item: Meet) -> None:
        begin = self._now.copy()
        self._now[:] = begin.max() + item.ms
        self._record(item.op, begin)

    def _record(
        self, op: str, begin: np.ndarray, mb: int | None = None, step: int | None = None
    ) -> None:
        for rank, (start, end) in enumerate(zip(begin, self._now, strict=True)):
            start_ns = _BEGIN_NS + round(start * MS)
            row: dict[str, object] = {
                "rank": rank,
                "dp": rank,
                "pp": 0,
                "step": self._step if step is None else step,
                "op": op,
                "start_ns": start_ns,
                "dur_ns": _BEGIN_NS + round(end * MS) - start_ns,
            }
            self._rows.append(row if mb is None else row | {"mb": mb})

    def _trace(self) -> Trace:
        ranks = self._loop.ranks
        meta = {"dp": ranks, "pp": 1, "tp": 1, "cp": 1, "vpp": 1, "world": ranks, **self._loop.meta}
        header = {"schema": "paceline.trace/1", "meta": meta}
        with TemporaryDirectory(prefix="paceline-loop-") as folder:
            path = Path(folder) / "trace.ndjson"
            path.write_text("\n".join(map(json.dumps, [header, *self._rows])) + "\n")
            return decode(path, None, limits=Limits()).trace


def reduced_each_time(microbatches: int = 3) -> tuple[Compute | Meet, ...]:
    """Return the program of ZeRO stage 2.

    Gradients are reduced after each microbatch, parameters gathered after the optimizer.
    """
    passes: list[Compute | Meet] = []
    for mb in range(microbatches):
        passes += [
            Compute("forward-compute", 20, mb),
            Compute("backward-compute", 40, mb),
            Meet(GRADIENTS, 3),
        ]
    return (*passes, Compute("optimizer", 2), Meet(PARAMETERS, 3))


def sharded_layers(layers: int = 6) -> tuple[Compute | Meet, ...]:
    """Return the program of fully sharded data parallelism.

    Each layer's parameters are gathered in forward and backward, its gradients scattered.
    """
    gathers = tuple(Meet(PARAMETERS, 1.5) for _ in range(layers))
    both = tuple(
        meet for _ in range(layers) for meet in (Meet(PARAMETERS, 1.5), Meet(GRADIENTS, 2))
    )
    return (
        Compute("forward-compute", 30, 0, gathers),
        Compute("backward-compute", 60, 0, both),
        Meet(GRADIENTS, 1),
        Compute("optimizer", 3),
    )


def plain(forward_ms: float = 5.0) -> tuple[Compute | Meet, ...]:
    """Return the program of data parallelism that reduces once."""
    return (
        Compute("forward-compute", forward_ms, 0),
        Compute("backward-compute", 2 * forward_ms, 0),
        Meet(GRADIENTS, 0.5),
        Compute("optimizer", forward_ms / 5),
    )


def slowed(program: Sequence[Compute | Meet], factor: float, **how: object) -> Loop:
    """Return a loop whose rank 1 computes longer."""
    return Loop(tuple(program), factors=(1.0, factor), **how)  # type: ignore[arg-type]
