"""Ranks as threads of one process: where nothing is timed, sums need not go through the kernel."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch

from paceline_client.tensor import TensorGroup
from paceline_client.tensor.group import Transport
from paceline_client.tensor.watch import NoWatch

Result = TypeVar("Result")


class Board:
    """Where the threads of a group put what the others read."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.tensors: list[torch.Tensor] = [torch.empty(0)] * size
        self.barrier = threading.Barrier(size)


class _Done:
    """A collective that is over."""

    def wait(self) -> None:
        """Do nothing."""


class ThreadedGroup(TensorGroup):
    """One rank's view of a group of threads, which sums and does nothing else."""

    def __init__(self, board: Board, rank: int) -> None:
        self._board = board
        self.process_group = None
        self.rank, self.size = rank, board.size
        self.ranks = tuple(range(board.size))
        self.watch = NoWatch()
        self.transport = Transport.SCATTER

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        """Sum a tensor over the group, in place; in the order of ranks on all of them."""
        board = self._board
        board.tensors[self.rank] = tensor
        board.barrier.wait()
        total = torch.stack(board.tensors).sum(0)
        board.barrier.wait()
        return tensor.copy_(total)

    def start_all_reduce(self, tensor: torch.Tensor) -> Any:  # noqa: ANN401 - as torch's work
        """Sum a tensor over the group."""
        self.all_reduce(tensor)
        return _Done()


def on_threads(functions: Sequence[Callable[[], Result]], board: Board) -> list[Result]:
    """Return what each rank's function returns.

    Raises
    ------
    RuntimeError
        If one failed; what it said is on standard error.
    """
    found: dict[int, Result] = {}

    def run(rank: int) -> None:
        try:
            found[rank] = functions[rank]()
        except BaseException:
            board.barrier.abort()
            raise

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(len(functions))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if len(found) < len(functions):
        raise RuntimeError("a rank did not do its part")
    return [found[rank] for rank in range(len(functions))]
