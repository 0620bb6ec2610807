"""A tensor-parallel group, and the communication between its ranks."""

from __future__ import annotations

from enum import Enum
from typing import Any

import torch
import torch.distributed as dist

from paceline_client.tensor.plan import Loan
from paceline_client.tensor.watch import NoWatch, Watch


class Transport(Enum):
    """The way in which lent columns are sent to the ranks that compute them.

    Trees of broadcasts and reductions were faster on the paper's PCIe; with gloo, sending slices
    to their receivers is.
    """

    BROADCAST = "broadcast"
    SCATTER = "scatter"


class TensorGroup:
    """The ranks that hold parts of the same layers; by default those of the default group.

    `watch` measures the times of products and waits; `transport` selects how columns are sent to
    the ranks that compute them.
    """

    def __init__(
        self,
        process_group: dist.ProcessGroup | None = None,
        *,
        watch: Watch | None = None,
        transport: Transport = Transport.SCATTER,
    ) -> None:
        self.process_group = process_group or dist.group.WORLD
        self.rank: int = dist.get_rank(self.process_group)
        self.size: int = dist.get_world_size(self.process_group)
        self.ranks: tuple[int, ...] = tuple(dist.get_process_group_ranks(self.process_group))
        self.watch: Watch = watch or NoWatch()
        self.transport = transport

    def __deepcopy__(self, memo: dict[int, Any]) -> TensorGroup:
        """Return the group itself, because a copy of a model runs in the same processes."""
        return self

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        """Sum a tensor over the group, in place."""
        with self.watch.waiting():
            dist.all_reduce(tensor, group=self.process_group)
        return tensor

    def start_all_reduce(self, tensor: torch.Tensor) -> dist.Work:
        """Start an asynchronous sum of a tensor over the group."""
        with self.watch.waiting():
            return dist.all_reduce(tensor, group=self.process_group, async_op=True)

    def wait_for(self, work: dist.Work) -> None:
        """Wait until an asynchronous collective completes."""
        with self.watch.waiting():
            work.wait()

    def lend(
        self, loan: Loan, matrix: torch.Tensor | None, rows: int, like: torch.Tensor
    ) -> torch.Tensor:
        """Send the lent columns of a matrix to the ranks that compute them.

        `matrix`, (rows, loan.count), is given on the loan's source only; `like` has the type and
        device of the result. Returns this rank's part, (rows, borrowed).
        """
        first, last = loan.slices[self.rank]
        if self.transport is Transport.BROADCAST:
            whole = like.new_empty(rows, loan.count) if matrix is None else matrix.contiguous()
            self.broadcast(loan.source, whole)
            return whole[:, first:last]
        received = like.new_empty(rows, last - first)
        if matrix is not None:
            parts = {rank: matrix[:, slice(*loan.slices[rank])] for rank in loan.receivers()}
            self.exchange(parts, {})
        elif last > first:
            self.exchange({}, {loan.source: received})
        return received

    def give_back(
        self, loan: Loan, part: torch.Tensor | None, rows: int, like: torch.Tensor
    ) -> torch.Tensor:
        """Send computed columns back to the rank that lent them.

        `part`, (rows, borrowed), is given on ranks that borrow columns. Returns (rows, loan.count)
        on the loan's source, and no columns on other ranks.
        """
        if self.rank != loan.source:
            if part is not None:
                self.exchange({loan.source: part}, {})
            return like.new_empty(rows, 0)
        parts = {rank: like.new_empty(rows, loan.borrowed(rank)) for rank in loan.receivers()}
        self.exchange({}, parts)
        ordered = sorted(parts, key=lambda rank: loan.slices[rank])
        return torch.cat([parts[rank] for rank in ordered], dim=1)

    def give_back_sum(
        self, loan: Loan, own: torch.Tensor | None, part: torch.Tensor | None, like: torch.Tensor
    ) -> None:
        """Add the borrowers' results, `part`, to the source's own product, `own`, in place.

        Both have the shape, type and device of `like`, and are None on other ranks.
        """
        if self.transport is Transport.BROADCAST:
            mine = own if own is not None else part
            summed = torch.zeros_like(like) if mine is None else mine
            with self.watch.waiting():
                dist.reduce(summed, self.ranks[loan.source], group=self.process_group)
        elif own is not None:
            parts = {rank: torch.empty_like(like) for rank in loan.receivers()}
            self.exchange({}, parts)
            for received in parts.values():
                own += received
        elif part is not None:
            self.exchange({loan.source: part}, {})

    def broadcast(self, source: int, tensor: torch.Tensor) -> None:
        """Send a tensor from one rank of the group to all others."""
        with self.watch.waiting():
            dist.broadcast(tensor, self.ranks[source], group=self.process_group)

    def exchange(
        self, outgoing: dict[int, torch.Tensor], incoming: dict[int, torch.Tensor]
    ) -> None:
        """Send to ranks of the group, and receive from others at the same time."""
        operations: list[Any] = [
            dist.P2POp(dist.isend, tensor.contiguous(), self.ranks[rank], self.process_group)
            for rank, tensor in outgoing.items()
        ]
        operations += [
            dist.P2POp(dist.irecv, tensor, self.ranks[rank], self.process_group)
            for rank, tensor in incoming.items()
        ]
        if not operations:
            return
        with self.watch.waiting():
            for work in dist.batch_isend_irecv(operations):
                work.wait()
