"""A rank that dies in the middle of a step, and one that stops answering."""

from __future__ import annotations

import os
import time
from datetime import timedelta
from pathlib import Path
from typing import Final

import torch.distributed as dist

from paceline_client.tensor import TensorGroup, Workload
from tests.tensor.worker.checks import UNEVEN
from tests.tensor.worker.training import new_block, new_training, train

TIMEOUT_S: Final = 6.0
DIES: Final = 3
_EXIT: Final = 17


def meant(rank: int, code: int) -> bool:
    """Return whether a rank's process ended as it should."""
    return code == (_EXIT if rank == DIES else 0)


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
    if rank == DIES:
        # As if its machine hung: nothing is closed until long after the others gave up.
        time.sleep(4 * TIMEOUT_S)
        died.touch()
        os._exit(_EXIT)
    raised = False
    try:
        train(training, 1)
    except RuntimeError:
        raised = True
    return {"raised": raised, "by_the_timeout": not died.exists()}
