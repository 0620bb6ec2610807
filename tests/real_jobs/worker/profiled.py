"""A small pipeline under PyTorch's own profiler: ``python -m tests.real_jobs.worker.profiled DIR``.

Two ranks of two stages each write ``rank0.json.gz`` and ``rank1.json.gz``, the profiler's files of
the interleaved schedule; ``hooks0.json`` and ``hooks1.json``, the hooks' times of the same
computations; and ``unlabelled.json``, a file of a schedule without labels.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleInterleaved1F1B
from torch.profiler import ProfilerActivity, profile

RANKS: Final = 2
CHUNKS: Final = 2
MICROBATCHES: Final = 4
STEPS: Final = 2
_WIDTH: Final = 64


class _Stage(PipelineStage):  # type: ignore[misc]
    """A stage whose computations are timed by hooks as well."""

    def __init__(self, index: int, stages: int, group: dist.ProcessGroup) -> None:
        example = torch.zeros(1, _WIDTH)
        self.seen: list[list[Any]] = []
        super().__init__(
            nn.Linear(_WIDTH, _WIDTH),
            index,
            stages,
            torch.device("cpu"),
            input_args=(example.requires_grad_(index > 0),),
            output_args=(torch.zeros_like(example).requires_grad_(),),
            group=group,
        )

    def forward_one_chunk(self, fwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        start = time.time_ns()
        found = super().forward_one_chunk(fwd_chunk_id, *args, **kwargs)
        self.seen.append(["forward-compute", fwd_chunk_id, start, time.time_ns()])
        return found

    def backward_one_chunk(self, bwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        start = time.time_ns()
        found = super().backward_one_chunk(bwd_chunk_id, *args, **kwargs)
        self.seen.append(["backward-compute", bwd_chunk_id, start, time.time_ns()])
        return found


def main(directory: Path) -> None:
    """Run both ranks; fail with the first that fails."""
    child = os.fork()
    _run(directory, int(child == 0))
    if child == 0:
        os._exit(0)
    _, status = os.waitpid(child, 0)
    sys.exit(os.waitstatus_to_exitcode(status))


def _run(directory: Path, rank: int) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(rank)
    store = dist.FileStore(str(directory / "store"), RANKS)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS)
    mesh = init_device_mesh("cpu", (RANKS, 1), mesh_dim_names=("pp", "dp"))
    group = mesh["pp"].get_group()
    stages = [_Stage(rank + RANKS * chunk, RANKS * CHUNKS, group) for chunk in range(CHUNKS)]
    schedule = ScheduleInterleaved1F1B(stages, MICROBATCHES, loss_fn=nn.functional.mse_loss)
    _profiled(schedule, stages, directory / f"rank{rank}.json.gz")
    (directory / f"hooks{rank}.json").write_text(
        json.dumps([[chunk, *seen] for chunk, stage in enumerate(stages) for seen in stage.seen])
    )
    single = _Stage(rank, RANKS, group)
    plain = Schedule1F1B(single, MICROBATCHES, loss_fn=nn.functional.mse_loss)
    _profiled(plain, [single], directory / ("unlabelled.json" if rank == 0 else "other.json"))
    dist.destroy_process_group()


def _profiled(schedule: Any, stages: list[_Stage], path: Path) -> None:  # noqa: ANN401
    parameters = [value for stage in stages for value in stage.submod.parameters()]
    optimizer = torch.optim.SGD(parameters)
    # The first step creates connections and buffers.
    _step(schedule, stages, optimizer)
    for stage in stages:
        stage.seen.clear()
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        for _ in range(STEPS):
            _step(schedule, stages, optimizer)
            profiler.step()
    profiler.export_chrome_trace(str(path))


def _step(schedule: Any, stages: list[_Stage], optimizer: torch.optim.Optimizer) -> None:  # noqa: ANN401
    batch = torch.randn(MICROBATCHES, _WIDTH)
    given = (batch,) if any(stage.is_first for stage in stages) else ()
    if any(stage.is_last for stage in stages):
        schedule.step(*given, target=torch.zeros_like(batch), losses=[])
    else:
        schedule.step(*given)
    optimizer.step()
    optimizer.zero_grad()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
