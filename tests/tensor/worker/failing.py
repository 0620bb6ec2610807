"""A rank that stops answering in the middle of a step, and one whose process dies."""

from __future__ import annotations

import os
import socket
import time
from datetime import timedelta
from pathlib import Path
from typing import Final

import torch.distributed as dist

from paceline_client.tensor import (
    Consent,
    Controller,
    CpuWatch,
    Method,
    Peer,
    Plan,
    RankShare,
    TensorGroup,
    Workload,
)
from tests.tensor.worker.checks import UNEVEN
from tests.tensor.worker.training import new_block, new_training, train

TIMEOUT_S: Final = 6.0
HANGS: Final = 3
DIES: Final = 1
_EXIT: Final = 17
# Rank 0 lends to rank 1, alone with each other.
_OF_TWO: Final = Plan(1, Method.MIGRATE, 16, 2, (RankShare(0, 0, ((1, 4),)),))


def meant(rank: int, code: int) -> bool:
    """Return whether a rank's process ended as it should."""
    return code == (_EXIT if rank in {HANGS, DIES} else 0)


def lost_rank(directory: Path, rank: int, ranks: int) -> dict[str, bool]:
    """Train under a plan with loans, of which one rank stops answering; it dies when others did."""
    store = dist.FileStore(str(directory / "lost"), ranks)
    dist.init_process_group(
        "gloo", store=store, rank=rank, world_size=ranks, timeout=timedelta(seconds=TIMEOUT_S)
    )
    tp = TensorGroup()
    training = new_training(new_block(tp))
    workload = Workload(training.model, tp, training.optimizer)
    workload.apply(UNEVEN)
    train(training, 2)
    died = directory / "died"
    if rank == HANGS:
        # As if its machine hung: nothing is closed until long after the others gave up.
        time.sleep(4 * TIMEOUT_S)
        died.touch()
        os._exit(_EXIT)
    raised = False
    try:
        train(training, 1)
    except RuntimeError:
        raised = True
    dist.destroy_process_group()
    return {"raised": raised, "by_the_timeout": not died.exists()}


def dead_rank(directory: Path, rank: int) -> dict[str, bool]:
    """Train as a group of two under a plan and a controller, of which one process dies."""
    store = dist.FileStore(str(directory / "dead"), 2)
    dist.init_process_group(
        "gloo", store=store, rank=rank, world_size=2, timeout=timedelta(seconds=TIMEOUT_S)
    )
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
    tp = TensorGroup(watch=CpuWatch())
    training = new_training(new_block(tp))
    workload = Workload(training.model, tp, training.optimizer)
    controller = Controller(workload, tp, Peer(url, "llama", "0-2", 1), Consent(apply=True))
    train(training, 1)
    controller.step()
    workload.apply(_OF_TWO)
    if rank == DIES:
        os._exit(_EXIT)
    found = {"in_the_step": False, "at_the_boundary": False}
    try:
        train(training, 1)
    except RuntimeError:
        found["in_the_step"] = True
    try:
        controller.step()
    except RuntimeError:
        found["at_the_boundary"] = True
    return found
