"""A rank that stops answering, and one that dies: in the middle of a step, and at its end."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Final

import torch.distributed as dist

from paceline_client.tensor import (
    Consent,
    Controller,
    CpuWatch,
    Peer,
    TensorGroup,
    Workload,
)
from tests.tensor.worker.checks import UNEVEN
from tests.tensor.worker.training import Training, new_block, new_training, train

TIMEOUT_S: Final = 6.0
DIES: Final = 3
EXIT: Final = 17
# An address without a server.
_NOWHERE: Final = "http://127.0.0.1:1"


def lost_rank(directory: Path, rank: int, ranks: int) -> dict[str, bool]:
    """Train under a plan with loans, while one rank stops answering and ends after the others."""
    training, _, _ = _begun(directory / "lost", rank, ranks)
    died = directory / "died"
    if rank == DIES:
        # Like a machine that hangs: no connection is closed until long after the others gave up.
        time.sleep(4 * TIMEOUT_S)
        died.touch()
        os._exit(EXIT)
    raised, _ = _raises(lambda: train(training, 1))
    return {"raised": raised, "by_the_timeout": not died.exists()}


def killed_in_step(directory: Path, rank: int, ranks: int) -> dict[str, bool]:
    """Train under a plan with loans, while one rank is killed between two layers."""
    training, _, _ = _begun(directory / "killed", rank, ranks)
    if rank == DIES:
        training.model.mlp.register_forward_pre_hook(_kill)
    raised, took_s = _raises(lambda: train(training, 1))
    return {"raised": raised, "within_the_timeout": took_s < TIMEOUT_S}


def killed_at_boundary(directory: Path, rank: int, ranks: int) -> dict[str, bool]:
    """Train with a controller, while one rank is killed after a step, before its boundary."""
    training, tp, workload = _begun(directory / "boundary", rank, ranks)
    controller = Controller(workload, tp, Peer(_NOWHERE, "llama", "0-2", 1), Consent())
    train(training, 1)
    controller.step()
    train(training, 1)
    if rank == DIES:
        _kill()
    raised, took_s = _raises(controller.step)
    return {"raised": raised, "within_the_timeout": took_s < TIMEOUT_S}


def _begun(store: Path, rank: int, ranks: int) -> tuple[Training, TensorGroup, Workload]:
    """Return a training of a new group, after two steps under a plan with loans."""
    dist.init_process_group(
        "gloo",
        store=dist.FileStore(str(store), ranks),
        rank=rank,
        world_size=ranks,
        timeout=timedelta(seconds=TIMEOUT_S),
    )
    tp = TensorGroup(watch=CpuWatch())
    training = new_training(new_block(tp))
    workload = Workload(training.model, tp, training.optimizer)
    workload.apply(UNEVEN)
    train(training, 2)
    return training, tp, workload


def _raises(act: Callable[[], object]) -> tuple[bool, float]:
    """Return whether a function raises an error of the group, and after how long."""
    began_s = time.monotonic()
    try:
        act()
    except RuntimeError:
        return True, time.monotonic() - began_s
    return False, time.monotonic() - began_s


def _kill(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)
