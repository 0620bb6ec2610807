"""Two ranks that `torch.multiprocessing` or `multiprocessing` starts: ``METHOD URL STORE END``.

METHOD is a start method, with ``plain-`` before it that of `multiprocessing` itself. STORE is the
file of the process group. END is how rank 0 ends its training: by ``return``, ``exit`` or ``fail``.
"""

from __future__ import annotations

import multiprocessing
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import paceline_client.torch as paceline

STEPS = 12


def train(rank: int, url: str, store: str, end: str) -> None:
    """Train one rank, and leave its monitor open."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    model = DistributedDataParallel(nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    monitor = paceline.attach(url, "job", model=model, every=None)
    for _ in range(STEPS):
        model(torch.ones(4, 8)).square().mean().backward()
        optimizer.step()
        monitor.step()
    if rank == 0 and end == "exit":
        sys.exit()
    if rank == 0 and end == "fail":
        raise RuntimeError("on purpose")


def main(method: str, url: str, store: str, end: str) -> None:
    """Start the ranks and wait for their end."""
    if not method.startswith("plain-"):
        torch.multiprocessing.start_processes(
            train, (url, store, end), nprocs=2, start_method=method
        )
        return
    multiprocessing.set_start_method(method.removeprefix("plain-"))
    ranks = [
        multiprocessing.Process(target=train, args=(rank, url, store, end)) for rank in range(2)
    ]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()


if __name__ == "__main__":
    main(*sys.argv[1:])
