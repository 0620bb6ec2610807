"""Two ranks of which the one with the store is gone while the other one's interpreter still ends.

``leaving.py DIRECTORY HOW``, with ``attached``, or ``broken`` where recording has ended early. It
exits with what became of the second rank.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

import paceline_client.torch as paceline

LIMIT_S = 100
NOWHERE = "http://127.0.0.1:9"


class Ending:
    """Takes a moment of the interpreter's end, when no thread may come back any more."""

    def __init__(self, mark: Path) -> None:
        self._mark = str(mark)

    def __del__(
        self, make: Callable[..., int] = os.open, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        make(self._mark, os.O_CREAT)
        sleep(1.5)


# It goes when the modules do.
ENDING: list[Ending] = []


def train(directory: Path, how: str, rank: int, port: int) -> None:
    """Train some steps; rank 0 then stays until the other one ends."""
    store = dist.TCPStore(
        "127.0.0.1", port, world_size=2, is_master=rank == 0, timeout=timedelta(seconds=LIMIT_S)
    )
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    model = torch.nn.Linear(2, 2)
    monitor = paceline.attach(
        NOWHERE, "job", model=model, every=None, warmup=1, spool=directory / "spool"
    )
    if how == "broken" and rank == 1:
        monitor._break(RuntimeError("as if something had failed inside of a step"))
    for _ in range(3):
        model(torch.zeros(1, 2)).sum().backward()
        monitor.step()
    dist.barrier()
    dist.destroy_process_group()
    if rank == 0:
        while not (directory / "ending").exists():
            time.sleep(0.01)
        time.sleep(0.2)
        # And its store with it.
        os.kill(os.getpid(), signal.SIGKILL)


def main() -> int:
    """Fork both ranks."""
    directory, how = Path(sys.argv[1]), sys.argv[2]
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    torch.set_num_threads(1)
    pids = []
    for rank in range(2):
        pid = os.fork()
        if not pid:
            signal.alarm(LIMIT_S)
            if rank == 1:
                ENDING.append(Ending(directory / "ending"))
            train(directory, how, rank, port)
            return 0
        pids.append(pid)
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    return abs(codes[1])


if __name__ == "__main__":
    sys.exit(main())
