"""A small job that attaches in the way that its first argument names; see test_attempts.py."""

from __future__ import annotations

import code
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import paceline_client.torch as paceline
from paceline_client.torch import sessions

WIDTH = 8
STEPS = 6


class Trainer:
    """Trains one rank."""

    def __init__(self) -> None:
        torch.manual_seed(1)
        self.model: Any = nn.Linear(WIDTH, WIDTH)
        if dist.is_initialized():
            self.model = DistributedDataParallel(self.model)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)

    def attach(
        self,
        at: int = 2,
        steps: int = STEPS,
        **how: Any,  # noqa: ANN401
    ) -> paceline.Monitor:
        monitor = paceline.attach(
            os.environ["URL"], "job", model=self.model, every=None, warmup=1, **how
        )
        monitor.record(steps, at=at)
        return monitor

    def train(self, steps: int, *monitors: paceline.Monitor) -> None:
        for _ in range(steps):
            for _ in range(2):
                self.model(torch.ones(4, WIDTH)).square().mean().backward()
                # Long enough for the clock's resolution on a busy machine.
                time.sleep(0.02)
            self.optimizer.step()
            self.optimizer.zero_grad()
            for monitor in monitors:
                monitor.step()


def after() -> None:
    """Attach again after the first monitor is closed."""
    trainer = Trainer()
    for _ in range(2):
        monitor = trainer.attach()
        trainer.train(STEPS + 3, monitor)
        monitor.close()


def together() -> None:
    """Attach again while the first monitor is open; both end with the process."""
    trainer = Trainer()
    first, second = trainer.attach(), trainer.attach()
    trainer.train(STEPS + 3, first, second)


def torchrun() -> None:
    """Fail once, in step 16; the next start continues from the checkpoint of step 2."""
    vars(sessions)["_CHUNK_EVERY_S"] = 0.1
    dist.init_process_group("gloo")
    trainer = Trainer()
    first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
    monitor = trainer.attach(4, 14, first_step=0 if first else 2)
    trainer.train(16 if first else 14, monitor)
    if first:
        if dist.get_rank() == 1:
            raise RuntimeError("on purpose")
        time.sleep(60)
    trainer.train(4, monitor)
    dist.destroy_process_group()


CELLS = (
    "trainer = Trainer()",
    "monitor = trainer.attach()",
    "trainer.train(8, monitor)",
    # The same cells, run again.
    "monitor = trainer.attach()",
    "trainer.train(9, monitor)",
)


def notebook() -> None:
    """Run notebook cells, the last ones twice, in a kernel that does not end by itself."""
    vars(sessions)["_CHUNK_EVERY_S"] = 0.1
    kernel = code.InteractiveInterpreter(globals())
    for cell in CELLS:
        kernel.runcode(compile(cell, "<cell>", "exec"))
    # The recorder's threads continue while the kernel waits for the next cell.
    spool = Path(os.environ["PACELINE_SPOOL"])
    while list(spool.glob("*.share")):
        time.sleep(0.05)
    print("trained", flush=True)  # noqa: T201
    time.sleep(600)


if __name__ == "__main__":
    torch.set_num_threads(1)
    jobs = {"after": after, "together": together, "torchrun": torchrun, "notebook": notebook}
    jobs[sys.argv[1]]()
