"""A 1F1B pipeline whose tensor-parallel ranks each compute, send and record by themselves.

Within a pass all ranks of a stage meet at an all-reduce after each layer. What a rank computes
after the last one delays its own send, and so the rank of the same index on the next stage.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from app.analysis.trace.decode import decode
from app.analysis.trace.limits import Limits
from app.analysis.trace.model import Trace

Times = NDArray[np.float64]  # ns, shape (tp,)

MS: Final = 1e6  # ns
_BEGAN_NS: Final = 1_730_000_000_000_000_000
_REDUCE_NS: Final = 0.3 * MS
_LINK_NS: Final = 0.5 * MS
_LAYERS: Final = 4
_NOISE: Final = 0.01  # standard deviation of the logarithm of a rank's computing time


@dataclass(frozen=True, slots=True)
class TensorPipeline:
    """A job, and its slow tensor-parallel rank."""

    dp: int = 2
    pp: int = 2
    tp: int = 4
    microbatches: int = 8
    steps: int = 6
    forward_ns: float = 40 * MS  # a backward takes twice as long
    tail: float = 0.15  # share of a pass that ranks compute after its last all-reduce
    slow: tuple[int, int, int] | None = None  # DP rank, stage, tensor-parallel rank
    factor: float = 3.0  # computing time of the slow rank ÷ that of another one


class _Run:
    """An execution of a job: rows as a recorder writes them, and the length of each step."""

    def __init__(self, job: TensorPipeline) -> None:
        self.job = job
        self.rows: list[dict[str, object]] = []
        self.factor = np.ones((job.dp, job.pp, job.tp))
        if job.slow is not None:
            self.factor[job.slow] = job.factor
        self.step = 0
        now = 0.0
        self.step_ns: list[float] = []
        for self.step in range(job.steps):
            end = self._step(now)
            self.step_ns.append(end - now)
            now = end + MS

    def _record(
        self, op: str, cell: tuple[int, int], mb: int | None, begin: Times, end: Times
    ) -> None:
        job, (dp, stage) = self.job, cell
        for rank in range(job.tp):
            row: dict[str, object] = {
                "op": op,
                "rank": (stage * job.dp + dp) * job.tp + rank,
                "dp": dp,
                "pp": stage,
                "step": self.step,
                "start_ns": _BEGAN_NS + int(begin[rank]),
                "dur_ns": int(end[rank] - begin[rank]),
            }
            self.rows.append(row if mb is None else {**row, "mb": mb, "mc": 0})

    def _pass(self, side: str, dp: int, stage: int, mb: int, begin: Times) -> Times:
        """Compute a microbatch in a direction; return when each rank is done."""
        job, now = self.job, begin
        # The same random numbers with and without a slow rank
        random = np.random.default_rng((self.step, dp, stage, mb, side == "forward"))
        taken = job.forward_ns * (1 if side == "forward" else 2) * self.factor[dp, stage]
        for _ in range(_LAYERS):
            noise = np.exp(random.normal(0, _NOISE, job.tp))
            arrived = now + taken * (1 - job.tail) / _LAYERS * noise
            now = np.full(job.tp, arrived.max() + _REDUCE_NS)
            self._record("tp-all-reduce", (dp, stage), mb, arrived, now)
        done: Times = now + taken * job.tail * np.exp(random.normal(0, _NOISE, job.tp))
        self._record(f"{side}-compute", (dp, stage), mb, begin, done)
        return done

    def _step(self, begin: float) -> float:
        job = self.job
        clock = {(d, s): np.full(job.tp, begin) for d in range(job.dp) for s in range(job.pp)}
        order = {cell: list(_one_f_one_b(job, cell[1])) for cell in clock}
        sent: dict[tuple[str, int, int, int], Times] = {}
        while any(order.values()):
            for (dp, stage), passes in order.items():
                while passes:
                    side, mb = passes[0]
                    way = 1 if side == "forward" else -1
                    now = clock[dp, stage]
                    if 0 <= stage - way < job.pp:
                        if (side, dp, stage, mb) not in sent:
                            break
                        # A transfer begins when both of its ends are posted.
                        posted, begin_send = now, sent[side, dp, stage, mb]
                        now = np.maximum(posted, begin_send) + _LINK_NS
                        self._record(f"{side}-recv", (dp, stage), mb, posted, now)
                        self._record(f"{side}-send", (dp, stage - way), mb, begin_send, now)
                    passes.pop(0)
                    clock[dp, stage] = now = self._pass(side, dp, stage, mb, now)
                    if 0 <= stage + way < job.pp:
                        sent[side, dp, stage + way, mb] = now
        return self._end(clock)

    def _end(self, clock: dict[tuple[int, int], Times]) -> float:
        """Reduce the gradients of each stage, clip those of all, and run the optimizer."""
        for stage in range(self.job.pp):
            cells = [cell for cell in clock if cell[1] == stage]
            end = np.max([clock[cell] for cell in cells], axis=0) + 3 * MS
            for dp, _ in cells:
                self._record("grads-reduce-scatter", (dp, stage), None, clock[dp, stage], end)
                clock[dp, stage] = end
        clipped = np.max(list(clock.values())) + np.full(self.job.tp, 0.1 * MS)
        for (dp, stage), now in clock.items():
            self._record("optimizer-clip-main-grad", (dp, stage), None, now, clipped)
            self._record("optimizer", (dp, stage), None, clipped, clipped + 2 * MS)
        return float(clipped.max() + 2 * MS)


def _one_f_one_b(job: TensorPipeline, stage: int) -> Sequence[tuple[str, int]]:
    """Return the passes of a stage in order, as (direction, microbatch)."""
    ahead = min(job.pp - stage - 1, job.microbatches)
    forwards, backwards = (
        [(side, mb) for mb in range(job.microbatches)] for side in ("forward", "backward")
    )
    turns = zip(forwards[ahead:], backwards, strict=False)
    return [
        *forwards[:ahead],
        *(p for turn in turns for p in turn),
        *backwards[len(forwards) - ahead :],
    ]


def mean_step_ns(job: TensorPipeline) -> float:
    """Return the mean length of the steps of a job."""
    return float(np.mean(_Run(job).step_ns))


def recorded(job: TensorPipeline, folder: Path) -> Trace:
    """Return the recording of all ranks of a job, decoded from a file in `folder`."""
    world = job.dp * job.pp * job.tp
    sizes = {"dp": job.dp, "pp": job.pp, "tp": job.tp, "world": world}
    meta = {**sizes, "layers": [_LAYERS] * job.pp}
    lines = [{"schema": "paceline.trace/1", "meta": meta}, *_Run(job).rows]
    path = folder / "trace.ndjson"
    path.write_text("\n".join(map(json.dumps, lines)))
    return decode(path, None, limits=Limits()).trace
