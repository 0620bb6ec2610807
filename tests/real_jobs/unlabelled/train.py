"""Training scripts as users write them: ``python -m tests.real_jobs.unlabelled.train KINDS DIR``.

They have no labels of ours: `torch.profiler` with a schedule, a `DataLoader`, an optimizer. Each
window of `windows_of` writes a file for each rank into a folder of its name, and each rank writes
the times at which its steps ended. One process, which imports once, runs all kinds one after the
other.
"""

from __future__ import annotations

import gc
import json
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    schedules,
)
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, record_function, schedule
from torch.utils.data import DataLoader, Dataset

from tests.real_jobs.ranks import aside, run_ranks
from tests.real_jobs.unlabelled.jobs import (
    ACTIVE_STEPS,
    BATCH_SIZE,
    HIDDEN,
    LATE_BATCH_S,
    MICROBATCHES,
    SKIPPED_STEPS,
    SLOW_BYTES_A_SECOND,
    SLOW_FACTOR,
    SLOW_RANK,
    WARMUP_STEPS,
    Kind,
    Trouble,
    window_at,
    windows_of,
)

LAYERS: Final = 2
# Rows of a sample: an activation of a microbatch has 2 x 64 x 64 numbers, 32 KiB.
ROWS: Final = 64
LAYER_S: Final = 0.012
# Chunks of a rank of the interleaved schedule.
CHUNKS: Final = 2
_BUCKET_MB: Final = 0.03
# The option that Linux has for TCP, which Python's socket module does not name.
_SO_MAX_PACING_RATE: Final = 47
_UNLIMITED: Final = -1
_TIME_LIMIT_S: Final = 200

_LIBRARY: Final = torch.library.Library("accelerator", "DEF")
_LIBRARY.define("layer(Tensor x, float seconds) -> Tensor")


def _take(x: torch.Tensor, seconds: float) -> torch.Tensor:
    time.sleep(seconds)
    return x.clone()


# A custom operator, which the profiler records like any other.
_LIBRARY.impl("layer", _take, "CPU")


@dataclass(slots=True)
class Now:
    """The current step of a rank, and its fault."""

    kind: Kind
    rank: int
    layer_s: float
    step: int = 0
    step_ends_ns: list[int] = field(default_factory=list)

    @property
    def trouble(self) -> Trouble:
        """The present fault of this rank."""
        window = window_at(self.kind, self.step)
        return window.trouble if window and self.rank == SLOW_RANK else Trouble.NONE

    def layer(self, *, backward: bool) -> float:
        """Return the duration of a layer in s."""
        slow = self.trouble is Trouble.SLOW_RANK
        return self.layer_s * (1 + backward) * (SLOW_FACTOR if slow else 1)


class Taken(torch.autograd.Function):  # type: ignore[misc]
    """An operation that takes the time of a layer on an accelerator."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, now: Now) -> torch.Tensor:  # noqa: ANN401
        ctx.now = now
        return torch.ops.accelerator.layer(x, now.layer(backward=False))

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:  # noqa: ANN401
        return torch.ops.accelerator.layer(gradient, ctx.now.layer(backward=True)), None


class Layer(nn.Module):  # type: ignore[misc]
    """A feed-forward layer."""

    def __init__(self, now: Now) -> None:
        super().__init__()
        self.now = now
        self.norm = nn.LayerNorm(HIDDEN)
        self.up = nn.Linear(HIDDEN, 2 * HIDDEN)
        self.down = nn.Linear(2 * HIDDEN, HIDDEN)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the layer's output, of the shape of its input."""
        return Taken.apply(x + self.down(torch.relu(self.up(self.norm(x)))), self.now)


class Samples(Dataset[Any]):  # type: ignore[misc]
    """Random samples, which arrive late if the loader is slow."""

    def __init__(self, now: Now) -> None:
        self.now = now

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.now.trouble is Trouble.SLOW_LOADER:
            time.sleep(LATE_BATCH_S / BATCH_SIZE)
        return torch.full((ROWS, HIDDEN), index % 7 / 7)


def layers(now: Now) -> nn.Sequential:
    """Return a model, or a stage of one."""
    return nn.Sequential(*(Layer(now) for _ in range(LAYERS)))


def data_parallel(now: Now) -> tuple[Callable[[torch.Tensor], None], list[nn.Parameter]]:
    """Return a function that trains on a batch with DDP or FSDP2, and the parameters."""
    model: nn.Module = layers(now)
    if now.kind is Kind.FSDP2:
        mesh = init_device_mesh("cpu", (now.kind.world,))
        for layer in model:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
    else:
        model = DistributedDataParallel(model, bucket_cap_mb=_BUCKET_MB)
    rounds = MICROBATCHES if now.kind is Kind.ACCUMULATION else 1

    def train(batch: torch.Tensor) -> None:
        for number, part in enumerate(batch.chunk(rounds)):
            last = number == rounds - 1
            synchronized: AbstractContextManager[None] = nullcontext() if last else model.no_sync()
            with synchronized:
                loss = model(part).square().mean()
                loss.backward()

    return train, list(model.parameters())


def pipeline(now: Now) -> tuple[Callable[[torch.Tensor], None], list[nn.Parameter]]:
    """Return a function that trains on a batch with a pipeline, and the parameters."""
    kind = now.kind
    mesh = init_device_mesh("cpu", (kind.stages, kind.replicas), mesh_dim_names=("pp", "dp"))
    chunks = CHUNKS if kind is Kind.INTERLEAVED else 1
    stages = [
        _stage(now, mesh, chunk * kind.stages + kind.place(now.rank).pp, chunks * kind.stages)
        for chunk in range(chunks)
    ]
    made: Any = {
        Kind.ONE_F_ONE_B: Schedule1F1B,
        Kind.GPIPE: ScheduleGPipe,
        Kind.INTERLEAVED: ScheduleInterleaved1F1B,
    }[kind]
    given = stages if kind is Kind.INTERLEAVED else stages[0]
    runs = made(given, MICROBATCHES, loss_fn=nn.functional.mse_loss)

    def train(batch: torch.Tensor) -> None:
        inputs = (batch,) if any(stage.is_first for stage in stages) else ()
        if any(stage.is_last for stage in stages):
            runs.step(*inputs, target=torch.zeros_like(batch), losses=[])
        else:
            runs.step(*inputs)

    return train, [value for stage in stages for value in stage.submod.parameters()]


def _stage(now: Now, mesh: DeviceMesh, index: int, stages: int) -> PipelineStage:
    example = torch.zeros(BATCH_SIZE // MICROBATCHES, ROWS, HIDDEN)
    module: nn.Module = layers(now)
    if now.kind.replicas > 1:
        module = DistributedDataParallel(module, process_group=mesh["dp"].get_group())
    return PipelineStage(
        module,
        index,
        stages,
        torch.device("cpu"),
        input_args=(example.requires_grad_(index > 0),),
        output_args=(torch.zeros_like(example).requires_grad_(),),
        group=mesh["pp"].get_group(),
    )


def limit_link(now: Now) -> None:
    """Limit the bandwidth of this rank's sockets if its link is slow, like a damaged cable."""
    limit = SLOW_BYTES_A_SECOND if now.trouble is Trouble.SLOW_LINK else _UNLIMITED
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            if not str(entry.readlink()).startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(entry.name))) as connection:
                connection.setsockopt(socket.SOL_SOCKET, _SO_MAX_PACING_RATE, limit)


def run(kind: Kind, directory: Path, rank: int) -> None:
    """Train as one rank."""
    torch.manual_seed(7)
    store = dist.FileStore(str(directory / "store"), kind.world)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=kind.world)
    now = Now(kind, rank, LAYER_S)
    train, parameters = pipeline(now) if kind.is_pipeline else data_parallel(now)
    optimizer = torch.optim.AdamW(parameters, fused=True)
    windows = windows_of(kind)
    folders = iter(directory / window.name for window in windows)

    def write(profiler: profile) -> None:
        profiler.export_chrome_trace(str(next(folders) / f"rank{rank}.pt.trace.json"))

    when = schedule(
        skip_first=SKIPPED_STEPS,
        wait=0,
        warmup=WARMUP_STEPS,
        active=ACTIVE_STEPS,
        repeat=len(windows),
    )
    steps = SKIPPED_STEPS + len(windows) * (WARMUP_STEPS + ACTIVE_STEPS)
    loader: Iterator[torch.Tensor] = iter(DataLoader(Samples(now), batch_size=BATCH_SIZE))
    gc.collect()
    gc.freeze()
    with profile(activities=[ProfilerActivity.CPU], schedule=when, on_trace_ready=write) as prof:
        for batch in loader:
            optimizer.zero_grad()
            train(batch)
            optimizer.step()
            now.step_ends_ns.append(time.time_ns())
            now.step += 1
            limit_link(now)
            with aside():
                prof.step()
            if now.step == steps:
                break
    (directory / f"ends-{rank}.json").write_text(json.dumps(now.step_ends_ns))
    dist.barrier()
    dist.destroy_process_group()


def main(kinds: Sequence[Kind], directory: Path) -> int:
    """Run one kind after the other, and return 0 if all ranks succeed."""
    torch.set_num_threads(1)
    return max(_launch(kind, directory / kind.value) for kind in kinds)


def _launch(kind: Kind, directory: Path) -> int:
    """Fork a process for each rank, after the imports."""
    # Without the labels of actions, as in PyTorch before 2.5, or in a user's own schedule.
    unlabelled = kind is Kind.INTERLEAVED
    schedules.record_function = (lambda *_: nullcontext()) if unlabelled else record_function
    for window in windows_of(kind):
        (directory / window.name).mkdir(parents=True)
    return run_ranks(range(kind.world), partial(run, kind, directory), _TIME_LIMIT_S, alone=True)


if __name__ == "__main__":
    sys.exit(main([Kind(name) for name in sys.argv[1].split(",")], Path(sys.argv[2])))
