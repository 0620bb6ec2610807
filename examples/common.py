"""What the examples share: options, processes, and a rank that is slowed on request."""

from __future__ import annotations

import argparse
import logging
import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

HIDDEN = 64
# Steps before the first session begins, and one after it.
WAIT_STEPS = 10


@dataclass(frozen=True)
class Options:
    """What every example is asked."""

    server: str
    job: str
    ranks: int
    steps: int
    slow_rank: int
    slow_factor: float
    pace: float

    def factor(self, rank: int) -> float:
        """Return how many times longer than usual a rank computes."""
        return self.pace * (self.slow_factor if rank == self.slow_rank else 1.0)


def options(job: str, ranks: int, description: str | None) -> Options:
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
    )


def launch(train: Callable[[Options, int], None], options: Options) -> None:
    """Run a process a rank on this machine; a cluster's launcher does this for real jobs."""
    logging.basicConfig(format="%(levelname)s %(message)s")
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", str(_free_port()))
    mp.spawn(_rank, args=(train, options), nprocs=options.ranks)


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


class Layer(torch.nn.Module):
    """A feed-forward layer that takes some milliseconds, or more on a slow rank.

    On a laptop a sleep stands for the work of an accelerator: the processor is shared by all ranks.
    """

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.up = torch.nn.Linear(HIDDEN, 2 * HIDDEN)
        self.down = torch.nn.Linear(2 * HIDDEN, HIDDEN)
        self.seconds = seconds

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the layer's output, of the shape of its input."""
        time.sleep(self.seconds)
        return _Slept.apply(x + self.down(torch.relu(self.up(x))), 2 * self.seconds)


class _Slept(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, seconds):
        ctx.seconds = seconds
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        time.sleep(ctx.seconds)
        return gradient, None
