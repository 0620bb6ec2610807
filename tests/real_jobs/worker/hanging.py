"""A job of four ranks over gloo that hangs: ``python -m tests.real_jobs.worker.hanging KIND DIR``.

Ranks form a group of all, and one of each half; or they train with DDP. Each rank writes the dump
of its flight recorder and the stack of its main thread, in py-spy's format, once no rank makes
progress.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

# PyTorch reads these variables when it is imported.
os.environ["TORCH_FR_BUFFER_SIZE"] = "200"

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

from tests.real_jobs.ranks import run_ranks

RANKS = 4
CULPRIT = 2
AFTER_S = 4.0
LIMIT_S = 100
STEPS = 6
STANDS_AT = 3
WIDTH = 8
TRAININGS = ("forward", "loader", "fsdp2", "pipeline")


def run(kind: str, directory: Path, rank: int) -> None:
    """Train as one rank, until no rank makes progress."""
    store = dist.FileStore(str(directory / "store"), RANKS)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS)
    if kind in TRAININGS:
        train(kind, directory, rank)
        return
    halves = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    half = halves[rank // 2]
    value = torch.ones(4)
    for _ in range(3):
        dist.all_reduce(value)
        dist.all_reduce(value, group=half)
    threading.Thread(target=_leave, args=(directory, rank), daemon=True).start()
    if rank == CULPRIT and kind == "sleeps":
        time.sleep(LIMIT_S)
    if rank == CULPRIT and kind == "stopped":
        (directory / "stopped").write_text(str(os.getpid()))
        os.kill(os.getpid(), signal.SIGSTOP)
    # All dumps must exist first: when a rank ends, the collectives of the others fail.
    with suppress(RuntimeError):
        if rank == CULPRIT and kind == "another-order":
            dist.all_reduce(value)
        dist.all_reduce(value, group=half)
        dist.all_reduce(value)
    time.sleep(LIMIT_S)


class Layer(torch.nn.Linear):  # type: ignore[misc]
    """A layer whose forward pass may hang."""

    stands = False

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        """Compute, or sleep."""
        if self.stands:
            time.sleep(LIMIT_S)
        return super().forward(value)


def batches(stands_at: int | None) -> Iterator[torch.Tensor]:
    """Yield batches; hang before one of them."""
    for number in range(STEPS):
        if number == stands_at:
            time.sleep(LIMIT_S)
        yield torch.ones(4, WIDTH)


def train(kind: str, directory: Path, rank: int) -> None:
    """Train with DDP, FSDP2, or as stages of a pipeline, until one rank hangs."""
    layer = Layer(WIDTH, WIDTH)
    here = rank == CULPRIT
    step = _step(kind, layer, rank)
    threading.Thread(target=_leave, args=(directory, rank), daemon=True).start()
    with suppress(RuntimeError):
        for number, batch in enumerate(batches(STANDS_AT if here and kind == "loader" else None)):
            layer.stands = here and kind != "loader" and number == STANDS_AT
            step(batch)
    time.sleep(LIMIT_S)


def _step(kind: str, layer: Layer, rank: int) -> Callable[[torch.Tensor], None]:
    if kind == "pipeline":
        stage = PipelineStage(layer, rank, RANKS, torch.device("cpu"))
        schedule = Schedule1F1B(stage, RANKS, loss_fn=lambda output, _: output.sum())
        inputs = {0: "first", RANKS - 1: "last"}.get(rank)

        def pipelined(batch: torch.Tensor) -> None:
            if inputs == "first":
                schedule.step(batch)
            else:
                schedule.step(target=batch if inputs == "last" else None)

        return pipelined
    model = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), layer)
    if kind == "fsdp2":
        for part in (*model, model):
            fully_shard(part)
    else:
        model = torch.nn.parallel.DistributedDataParallel(model)

    def trained(batch: torch.Tensor) -> None:
        model(batch).sum().backward()

    return trained


def _stack() -> list[dict[str, object]]:
    frames: list[dict[str, object]] = []
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None:
        code = frame.f_code
        frames.append({"name": code.co_name, "filename": code.co_filename, "line": frame.f_lineno})
        frame = frame.f_back
    return [{"thread_name": "MainThread", "owns_gil": False, "frames": frames}]


def _leave(directory: Path, rank: int) -> None:
    time.sleep(AFTER_S)
    (directory / f"_dump_{rank}").write_bytes(torch._C._distributed_c10d._dump_fr_trace())
    (directory / f"stack_{rank}.json").write_text(json.dumps(_stack()))
    (directory / f"left_{rank}").touch()
    stopped = directory / "stopped"
    # A rank that ended earlier would make the collectives of the others fail.
    while len(list(directory.glob("left_*"))) < RANKS - stopped.exists():
        time.sleep(0.1)
    if stopped.exists() and rank == 0:
        os.kill(int(stopped.read_text()), signal.SIGKILL)
    os._exit(0)


if __name__ == "__main__":
    failed = run_ranks(range(RANKS), partial(run, sys.argv[1], Path(sys.argv[2])), LIMIT_S)
    # A stopped process is killed at the end.
    sys.exit(failed and sys.argv[1] != "stopped")
