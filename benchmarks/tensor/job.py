"""The measured job, a transformer block with paced products, and its rank processes."""

from __future__ import annotations

import os
import pickle
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Final, TypeVar

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

Result = TypeVar("Result")

RANKS: Final = 4
_NICENESS: Final = -10


class ProcessFailedError(Exception):
    """A process failed; its message is on standard error."""


def on_ranks(function: Callable[[], Result]) -> list[Result]:
    """Run a function on each of four ranks and return the results.

    Raises
    ------
    ProcessFailedError
        If a rank failed; the others are stopped.
    """
    with tempfile.TemporaryDirectory(prefix="paceline-bench-tp-") as name:
        store = str(Path(name) / "store")
        return in_processes([partial(_on_rank, function, store, rank) for rank in range(RANKS)])


def _on_rank(function: Callable[[], Result], store: str, rank: int) -> Result:
    with suppress(PermissionError):
        # Higher priority, because a process that mostly sleeps must not queue behind computing
        # ones.
        os.nice(_NICENESS)
    dist.init_process_group("gloo", store=dist.FileStore(store, RANKS), rank=rank, world_size=RANKS)
    result = function()
    dist.destroy_process_group()
    return result


def in_processes(functions: Sequence[Callable[[], Result]]) -> list[Result]:
    """Run each function in a separate process and return the results.

    Raises
    ------
    ProcessFailedError
        If a process failed; the others are stopped.
    """
    with tempfile.TemporaryDirectory(prefix="paceline-bench-tp-") as name:
        directory = Path(name)
        running = {_fork(function, directory / str(n)) for n, function in enumerate(functions)}
        failed = False
        while running:
            pid, status = os.wait()
            running.discard(pid)
            if status and not failed:
                failed = True
                for other in running:
                    os.kill(other, signal.SIGTERM)
        if failed:
            raise ProcessFailedError
        # The pickles are trusted, because these processes have just written them.
        return [pickle.loads((directory / str(n)).read_bytes()) for n in range(len(functions))]  # noqa: S301


def _fork(function: Callable[[], object], result: Path) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        torch.set_num_threads(1)
        result.write_bytes(pickle.dumps(function()))
        code = 0
    except BaseException:  # noqa: BLE001 - told here, since this process ends without a caller
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


HIDDEN: Final = 128
HEADS: Final = 32
EXPANDED: Final = 512
_BATCH: Final = 4
_SEQUENCE: Final = 16
# Duration of a healthy rank's products in a step: much longer than their computation.
HEALTHY_STEP_S: Final = 0.4


@dataclass(frozen=True, slots=True)
class Measured:
    """The fastest of several steps, because other load of the machine only adds time.

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
        """Time of a step that is not work of the slowest rank: collectives."""
        return self.step_s - max(self.time_s)


class Job:
    """One rank of the job.

    Parameters
    ----------
    granularity : Granularity
        Granularity of plans other than sticky ones.
    healthy_step_s : float
        Duration of a healthy rank's products in a step, s.
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
        """Return the times of steps under a plan, without the first step."""
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
        times = torch.tensor(
            [took_s, [step.time_s for step in own], [step.matmul_s for step in own]],
            dtype=torch.float64,
        )
        everyone = torch.empty(self.tp.size, *times.shape, dtype=torch.float64)
        dist.all_gather(list(everyone), times)
        step_s, time_s, matmul_s = everyone.unbind(1)
        return Measured(
            float(step_s.amax(0).min()), time_s.amin(1).tolist(), matmul_s.amin(1).tolist()
        )


def _step_flops(ranks: int) -> int:
    """Return the FLOPs of a rank's products in a step: one product forward, two backward."""
    tokens = _BATCH * _SEQUENCE
    weights = HIDDEN * (3 * HIDDEN + HIDDEN + 2 * EXPANDED) // ranks
    return 3 * 2 * tokens * weights
