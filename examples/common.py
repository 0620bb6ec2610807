"""What the examples share: options, processes, and a rank that is slowed on request."""

from __future__ import annotations

import argparse
import json
import logging
import os
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

HIDDEN = 64
# Steps before the first session begins, and one after it.
WAIT_STEPS = 10
# Steps before the session that `--compare` asks for; one comes after it, too.
CONNECT_STEPS = 4
# Healthy and slowed steps of `--compare` come in turns of this many: whatever else makes the
# machine faster or slower meets both.
TURN_STEPS = 3


@dataclass
class Options:
    """What every example is asked, and how far it is."""

    server: str
    job: str
    ranks: int
    steps: int
    slow_rank: int
    slow_factor: float
    pace: float
    compare: Path | None = None
    turn: int = TURN_STEPS
    wait_steps: int = WAIT_STEPS
    step: int = 0
    ends_ns: list[int] = field(default_factory=list)

    @property
    def total_steps(self) -> int:
        """How many steps the job trains for."""
        if self.compare is not None:
            return CONNECT_STEPS + 2 * self.steps + 1
        return self.steps + self.wait_steps

    @property
    def every(self) -> str | None:
        """How often it is recorded; a session whose steps are to be compared is asked for."""
        return "30min" if self.compare is None else None

    def factor(self, rank: int) -> float:
        """Return how many times longer than usual a rank computes now."""
        slow = rank == self.slow_rank and (self.compare is None or self.slowed(self.step))
        return self.pace * (self.slow_factor if slow else 1.0)

    def slowed(self, step: int) -> bool:
        """Return whether it is the slow rank's turn, where steps are compared."""
        return (step - CONNECT_STEPS) // self.turn % 2 == 1

    def stepped(self, monitor, rank: int) -> None:
        """Note that a step is over."""
        self.step += 1
        self.ends_ns.append(time.time_ns())
        if self.compare is None:
            return
        if self.step == 1:
            monitor.record(2 * self.steps, at=CONNECT_STEPS)
        if self.step == self.total_steps:
            path = self.compare / f"times-{rank}.json"
            recorded = range(CONNECT_STEPS, CONNECT_STEPS + 2 * self.steps)
            slowed = [step for step in recorded if self.slowed(step)]
            healthy = [step for step in recorded if step not in slowed]
            told = {"ends_ns": self.ends_ns, "healthy": healthy, "slowed": slowed}
            path.write_text(json.dumps(told))


def options(job: str, ranks: int, description: str | None, wait_steps: int = WAIT_STEPS) -> Options:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument(
        "--server",
        # The second name is that of earlier examples.
        default=os.environ.get("PACELINE_SERVER")
        or os.environ.get("PACELINE_URL")
        or "http://127.0.0.1:8765",
    )
    parser.add_argument("--job", default=job)
    parser.add_argument("--ranks", type=int, default=ranks)
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--slow", default="-1:1", metavar="RANK:FACTOR", help="1:1.8")
    parser.add_argument(
        "--pace",
        type=float,
        default=1.0,
        help="how many times longer all compute: on a busy machine a process is woken up late",
    )
    parser.add_argument(
        "--compare",
        type=Path,
        metavar="FOLDER",
        help="record twice as many steps, of which half are slowed, and write when each ended",
    )
    parser.add_argument(
        "--turn",
        type=int,
        default=TURN_STEPS,
        help="steps of --compare in turn; many where a step begins before the one before has ended",
    )
    given = parser.parse_args()
    rank, _, factor = given.slow.partition(":")
    return Options(
        given.server,
        given.job,
        given.ranks,
        given.steps,
        int(rank),
        float(factor or 1.8),
        given.pace,
        given.compare,
        given.turn,
        wait_steps,
    )


def launch(train: Callable[[Options, int], None], options: Options) -> None:
    """Run a process a rank on this machine; a cluster's launcher does this for real jobs."""
    logging.basicConfig(format="%(levelname)s %(message)s")
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", str(_free_port()))
    # What is imported is there in each process; where that is not possible, each imports it anew.
    method = "fork" if sys.platform == "linux" else "spawn"
    mp.start_processes(_rank, args=(train, options), nprocs=options.ranks, start_method=method)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def _rank(rank: int, train: Callable[[Options, int], None], options: Options) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(7)
    os.environ["LOCAL_RANK"] = str(rank)
    dist.init_process_group("gloo", rank=rank, world_size=options.ranks)
    try:
        train(options, rank)
        # The store is rank 0's: no rank leaves while another one may still ask it.
        dist.barrier()
    finally:
        dist.destroy_process_group()


class Slept(torch.nn.Module):
    """Takes some milliseconds in a forward and twice that in a backward, more on a slow rank.

    On a laptop a sleep stands for the work of an accelerator: the processor is shared by all ranks.
    """

    def __init__(self, seconds: float, options: Options, rank: int) -> None:
        super().__init__()
        self.seconds = lambda: seconds * options.factor(rank)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the input."""
        time.sleep(self.seconds())
        return _SleptBackward.apply(x, self.seconds)


class _SleptBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, seconds):
        ctx.seconds = seconds
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        time.sleep(2 * ctx.seconds())
        return gradient, None


class Layer(torch.nn.Module):
    """A feed-forward layer."""

    def __init__(self, seconds: float, options: Options, rank: int) -> None:
        super().__init__()
        self.up = torch.nn.Linear(HIDDEN, 2 * HIDDEN)
        self.down = torch.nn.Linear(2 * HIDDEN, HIDDEN)
        self.slept = Slept(seconds, options, rank)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the layer's output, of the shape of its input."""
        return self.slept(x + self.down(torch.relu(self.up(x))))
