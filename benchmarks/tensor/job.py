"""The job that is measured: a transformer block on four ranks, whose products are paced."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import torch
import torch.distributed as dist

from paceline_client.tensor import (
    CpuWatch,
    Granularity,
    Pace,
    Plan,
    Selection,
    TensorGroup,
    TransformerBlock,
    Workload,
)

HIDDEN: Final = 128
HEADS: Final = 32
EXPANDED: Final = 512
_BATCH: Final = 4
_SEQUENCE: Final = 16
# What the products of a healthy rank take in a step: far more than computing them does.
HEALTHY_STEP_S: Final = 0.4


@dataclass(frozen=True, slots=True)
class Measured:
    """The fastest of several steps: what else runs on the machine only adds to them.

    Parameters
    ----------
    step_s : float
        From one step's end to the next, on the slowest rank.
    time_s, matmul_s : list of float
        T and M of each rank.
    """

    step_s: float
    time_s: list[float]
    matmul_s: list[float]

    @property
    def outside_s(self) -> float:
        """What the step takes outside the slowest rank's own time: collectives."""
        return self.step_s - max(self.time_s)


class Job:
    """One rank of the job.

    Parameters
    ----------
    granularity : Granularity
        Of plans other than sticky ones.
    healthy_step_s : float
        What a healthy rank's products take in a step.
    """

    def __init__(self, granularity: Granularity, healthy_step_s: float = HEALTHY_STEP_S) -> None:
        self.pace = Pace(healthy_step_s / _step_flops(dist.get_world_size()))
        self.granularity = granularity
        self.watch = CpuWatch(self.pace)
        self.tp = TensorGroup(watch=self.watch)
        torch.manual_seed(0)
        self.model = TransformerBlock(HIDDEN, HEADS, EXPANDED, self.tp)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self.workload = Workload(
            self.model,
            self.tp,
            self.optimizer,
            granularity=granularity,
            selection=Selection.RANDOM,
        )
        self._inputs = torch.Generator().manual_seed(0)
        self._step = 0

    def slow_down(self, slowdowns: Sequence[float]) -> None:
        """Multiply the duration of each rank's products."""
        self.pace.slowdown = slowdowns[self.tp.rank]

    def train_step(self) -> None:
        """Train for a step."""
        x = torch.randn(_BATCH, _SEQUENCE, HIDDEN, generator=self._inputs)
        self.optimizer.zero_grad()
        (self.model(x) - x.flip(-1)).square().mean().backward()
        self.optimizer.step()

    def measure(self, plan: Plan | None, steps: int) -> Measured:
        """Return the times of steps under a plan; the first one is left out."""
        self.workload.apply(plan)
        self.train_step()
        self.watch.end_step(self._step)
        self.watch.finished()
        ends_s = [time.perf_counter()]
        for _ in range(steps):
            self.train_step()
            self._step += 1
            self.watch.end_step(self._step)
            ends_s.append(time.perf_counter())
        took_s = [after - before for before, after in pairwise(ends_s)]
        own = self.watch.finished()
        mine = torch.tensor(
            [took_s, [step.time_s for step in own], [step.matmul_s for step in own]],
            dtype=torch.float64,
        )
        everyone = torch.empty(self.tp.size, *mine.shape, dtype=torch.float64)
        dist.all_gather(list(everyone), mine)
        step_s, time_s, matmul_s = everyone.unbind(1)
        return Measured(
            float(step_s.amax(0).min()), time_s.amin(1).tolist(), matmul_s.amin(1).tolist()
        )


def _step_flops(ranks: int) -> int:
    """Return the operations of a rank's products in a step: forward, and twice backward."""
    tokens = _BATCH * _SEQUENCE
    weights = HIDDEN * (3 * HIDDEN + HIDDEN + 2 * EXPANDED) // ranks
    return 3 * 2 * tokens * weights
