"""A tensor-parallel group, and the messages of its ranks in addition to the usual all-reduces."""

from __future__ import annotations

from enum import Enum
from typing import Any

import torch
import torch.distributed as dist

from paceline_client.tensor.plan import Loan
from paceline_client.tensor.watch import NoWatch, Watch


class Transport(Enum):
    """How what others compute reaches them.

    The paper's PCIe was faster with trees of broadcasts and reductions; gloo is with slices sent
    to those who need them.
    """

    BROADCAST = "broadcast"
    SCATTER = "scatter"


class TensorGroup:
    """The ranks that hold parts of the same layers.

    Parameters
    ----------
    process_group : torch.distributed.ProcessGroup, optional
        The default group where there is no other parallelism.
    watch : Watch, optional
        Times products and waits.
    transport : Transport
        For what is computed by other ranks.
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
        """Return the group itself: a copied model runs in the same processes."""
        return self

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        """Sum a tensor over the group, in place."""
        with self.watch.waiting():
            dist.all_reduce(tensor, group=self.process_group)
        return tensor

    def start_all_reduce(self, tensor: torch.Tensor) -> dist.Work:
        """Begin to sum a tensor over the group; `wait_for` ends it."""
        with self.watch.waiting():
            return dist.all_reduce(tensor, group=self.process_group, async_op=True)

    def wait_for(self, work: dist.Work) -> None:
        """Wait until a collective is over."""
        with self.watch.waiting():
            work.wait()

    def lend(
        self, loan: Loan, matrix: torch.Tensor | None, rows: int, like: torch.Tensor
    ) -> torch.Tensor:
        """Send the lent columns of a matrix to those who compute them.

        Parameters
        ----------
        matrix : tensor of shape (rows, loan.count), or None
            On the loan's source only.
        like : tensor
            Of the type and on the device of what is received.

        Returns
        -------
        tensor of shape (rows, borrowed)
            This rank's part; without columns on ranks that borrow none.
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
        """Send the columns that were computed for the source back to it.

        Parameters
        ----------
        part : tensor of shape (rows, borrowed), or None
            On ranks that borrow some.

        Returns
        -------
        tensor of shape (rows, loan.count)
            On the loan's source; without columns elsewhere.
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
        """Add what the borrowers computed to the source's own product, in place.

        Parameters
        ----------
        own : tensor, or None
            On the loan's source.
        part : tensor of the same shape, or None
            On ranks that borrow some.
        like : tensor
            Of that shape, type and device.
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
        """Send to some ranks of the group and receive from some, all at once."""
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
