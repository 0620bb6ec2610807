"""Units of a layer that are left out, lent for a step, or moved to another rank for longer.

A unit is a column of a weight, or a hidden unit of a pair of layers. A hidden unit of a
feed-forward network is a row of the first weight and bias and the column of the second weight that
reads it; in attention it is a head. Every rank can compute a hidden unit, because the first layer's
input is the same on all ranks and the second layer's output is summed over them: parameters move,
activations do not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import torch

from paceline_client.tensor.group import TensorGroup
from paceline_client.tensor.plan import Division, Loan


class Kind(Enum):
    """The kind of a unit, which determines what is sent when the unit is lent."""

    HIDDEN_UNIT = "hidden_unit"
    COLUMN = "column"  # of a column-parallel layer's weight
    ROW = "row"  # of a row-parallel layer's weight


class Imputation(Enum):
    """The gradients used for columns that were left out (the paper's section III-A).

    With `ZERO`, the weights of these columns do not change; `SAME` uses their gradients of the last
    backward pass, of which it keeps a copy; `AVERAGE` uses the mean over the computed columns.
    """

    ZERO = "zero"
    SAME = "same"
    AVERAGE = "average"


@dataclass(frozen=True, slots=True)
class Kept:
    """The rank's own units that it computes itself."""

    total: int  # all of its units
    count: int
    index: torch.Tensor | None = None  # int64, ascending; None for the first `count`

    def take(self, tensor: torch.Tensor, dim: int) -> torch.Tensor:
        """Return the part of a tensor that belongs to these units, along a dimension."""
        if self.index is not None:
            return tensor.index_select(dim, self.index)
        return tensor if self.count == self.total else tensor.narrow(dim, 0, self.count)

    def put(self, into: torch.Tensor, part: torch.Tensor) -> None:
        """Write the columns of these units into a matrix of all columns."""
        if self.index is None:
            into[:, : self.count] = part
        else:
            into.index_copy_(1, self.index, part)


@dataclass(frozen=True, slots=True)
class Shed:
    """The part of a plan that concerns one layer on one rank."""

    kept: Kept
    pruned: torch.Tensor  # int64: units that are left out
    loans: tuple[Loan, ...]  # of all ranks, in the same order on all ranks


@dataclass(frozen=True, slots=True)
class Member:
    """A parameter that is divided into units, with `width` successive rows or columns each."""

    parameter: torch.nn.Parameter
    dim: int  # the dimension of the units
    width: int = 1

    def index(self, units: torch.Tensor) -> torch.Tensor:
        """Return the indices of units along `dim`."""
        if self.width == 1:
            return units
        offsets = torch.arange(self.width, device=units.device)
        return (units[:, None] * self.width + offsets).flatten()

    @property
    def numbers(self) -> int:
        """The number of elements that belong to one unit."""
        shape = self.parameter.shape
        return self.width * int(math.prod(shape[: self.dim] + shape[self.dim + 1 :]))

    def by_unit(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a tensor with the values of some units, of shape (units, numbers)."""
        units = tensor.shape[self.dim] // self.width
        return tensor.movedim(self.dim, 0).reshape(units, self.numbers)


@dataclass(eq=False, slots=True)
class Site:
    """Units that can be left out or lent: columns of a layer, or hidden units of a pair."""

    tp: TensorGroup
    units: int  # of this rank without a plan
    members: tuple[Member, ...]
    shed: Shed | None = None  # the plan in force
    kind: Kind = Kind.HIDDEN_UNIT
    imputation: Imputation = Imputation.ZERO
    previous: dict[str, torch.Tensor] = field(default_factory=dict)
    # Number of elements of the matrices without a plan, to which the time of the products is
    # proportional
    work: int = field(init=False)
    rows: int = 0  # rows of inputs since the last reset

    def __post_init__(self) -> None:
        matrices = [member.parameter for member in self.members if member.parameter.dim() > 1]
        self.work = sum(matrix.numel() for matrix in matrices)


def restore(
    site: Site, shed: Shed, matrix: str, parts: Sequence[tuple[Kept | slice, torch.Tensor]]
) -> torch.Tensor:
    """Return a gradient of all columns from the computed `parts`, this rank's own part first.

    `matrix` is the name of the gradient, under which its last value is stored.
    """
    _, own = parts[0]
    full = own.new_zeros(own.shape[0], shed.kept.total)
    for where, part in parts:
        if isinstance(where, Kept):
            where.put(full, part)
        else:
            full[:, where] += part
    if site.imputation is Imputation.ZERO:
        return full
    if shed.pruned.numel():
        full[:, shed.pruned] += _imputed(site, shed, matrix, own)
    if site.imputation is Imputation.SAME:
        site.previous[matrix] = full.detach().clone()
    return full


def remember(site: Site, matrix: str, full: torch.Tensor) -> None:
    """Store a complete gradient if a later step needs it."""
    if site.imputation is Imputation.SAME:
        site.previous[matrix] = full.detach().clone()


def _imputed(site: Site, shed: Shed, matrix: str, own: torch.Tensor) -> torch.Tensor:
    if site.imputation is Imputation.AVERAGE:
        mean = own.mean(dim=1, keepdim=True) if own.shape[1] else own.new_zeros(own.shape[0], 1)
        return mean.expand(-1, shed.pruned.numel())
    last = site.previous.get(matrix)
    if last is None or last.shape != (own.shape[0], shed.kept.total):
        return own.new_zeros(own.shape[0], shed.pruned.numel())
    return last[:, shed.pruned]


# A unit: the rank that holds it without a plan, and its index on this rank.
Unit = tuple[int, int]


class _Lend(torch.autograd.Function):  # type: ignore[misc]
    """Sends units to the ranks that compute them in this step, and returns their gradients."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401 - torch has no type for it
        rows: torch.Tensor,
        tp: TensorGroup,
        loan: Loan,
    ) -> torch.Tensor:
        ctx.tp, ctx.loan, ctx.numbers = tp, loan, rows.shape[1]
        mine = loan.source == tp.rank
        # `lend` sends columns, so the rows of units are transposed.
        lent = rows.t() if mine else None
        return tp.lend(loan, lent, rows.shape[1], rows).t().contiguous()

    @staticmethod
    def backward(
        ctx: Any,  # noqa: ANN401 - as above
        gradient: torch.Tensor,
    ) -> tuple[torch.Tensor | None, ...]:
        tp, loan = ctx.tp, ctx.loan
        part = gradient.t() if loan.borrowed(tp.rank) else None
        returned = tp.give_back(loan, part, ctx.numbers, gradient)
        return returned.t().contiguous(), None, None


def units_of_step(site: Site) -> tuple[torch.Tensor, ...]:
    """Return the members of a site for this step: units that remain, then borrowed units."""
    members = site.members
    shed = site.shed
    if shed is None:
        return tuple(member.parameter for member in members)
    kept = shed.kept
    pieces: list[list[torch.Tensor]] = []
    for member in members:
        if kept.index is not None:
            own = member.parameter.index_select(member.dim, member.index(kept.index))
        else:
            own = member.parameter.narrow(member.dim, 0, kept.count * member.width)
        pieces.append([own])
    for loan in shed.loans:
        mine = loan.source == site.tp.rank
        first, last = (loan.start, loan.stop) if mine else (0, 0)
        rows = torch.cat(
            [
                member.by_unit(
                    member.parameter.narrow(
                        member.dim, first * member.width, (last - first) * member.width
                    )
                )
                for member in members
            ],
            dim=1,
        )
        borrowed = _Lend.apply(rows, site.tp, loan)
        for piece, into in zip(_unpack(members, borrowed), pieces, strict=True):
            into.append(piece)
    return tuple(
        torch.cat(parts, dim=member.dim) if len(parts) > 1 else parts[0]
        for member, parts in zip(members, pieces, strict=True)
    )


def _unpack(members: tuple[Member, ...], rows: torch.Tensor) -> list[torch.Tensor]:
    """Return each member's part of `rows` of units, in the shape of its parameter."""
    pieces: list[torch.Tensor] = []
    column = 0
    count = rows.shape[0]
    for member in members:
        shape = list(member.parameter.shape)
        others = shape[: member.dim] + shape[member.dim + 1 :]
        piece = rows[:, column : column + member.numbers]
        pieces.append(piece.reshape(count * member.width, *others).movedim(0, member.dim))
        column += member.numbers
    return pieces


def table_of(division: Division, size: int) -> tuple[tuple[Unit, ...], ...]:
    """Return the units that each rank holds under a plan, its own units first."""
    held: list[list[Unit]] = [
        [(rank, unit) for unit in range(division.own(rank))] for rank in range(size)
    ]
    for loan in division.loans:
        for rank in loan.receivers():
            first, last = loan.slices[rank]
            units = range(loan.start + first, loan.start + last)
            held[rank] += [(loan.source, unit) for unit in units]
    return tuple(tuple(units) for units in held)


def home_table(size: int, units: int) -> tuple[tuple[Unit, ...], ...]:
    """Return the units that each rank holds without a plan."""
    return tuple(tuple((rank, unit) for unit in range(units)) for rank in range(size))


class Placement:
    """The ranks that hold the hidden units of a pair of layers, with their optimizer state.

    Moving units changes the length of the parameters on each rank. Afterwards they are computed and
    updated like any others, without communication.
    """

    def __init__(self, site: Site) -> None:
        self.site = site
        self._home = home_table(site.tp.size, site.units)
        self.table = self._home

    @property
    def away(self) -> bool:
        """Whether any unit is held by another rank than without a plan."""
        return self.table != self._home

    def restore(self, optimizer: torch.optim.Optimizer | None) -> None:
        """Move every unit back to the rank that holds it without a plan."""
        self.move(self._home, optimizer)

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def move(
        self, table: tuple[tuple[Unit, ...], ...], optimizer: torch.optim.Optimizer | None
    ) -> None:
        """Move units between two steps; call it on all ranks together.

        `table` contains the units of each rank, in order. Optimizer state of a parameter's shape
        moves with it; other state, such as counts of steps, is the same for all units and stays.
        """
        if table == self.table:
            return
        tp = self.site.tp
        held = self.table[tp.rank]
        parts = [
            (member, slot) for member in self.site.members for slot in _slots(member, optimizer)
        ]
        rows = torch.cat(
            [member.by_unit(slot.tensor) for member, slot in parts], dim=1
        ).contiguous()
        place = {unit: row for row, unit in enumerate(held)}
        outgoing = {
            rank: rows[[place[unit] for unit in units if unit in place]]
            for rank, units in enumerate(table)
            if rank != tp.rank and any(unit in place for unit in units)
        }
        owner = {unit: rank for rank, units in enumerate(self.table) for unit in units}
        coming: dict[int, list[Unit]] = {}
        for unit in table[tp.rank]:
            if owner[unit] != tp.rank:
                coming.setdefault(owner[unit], []).append(unit)
        incoming = {
            rank: rows.new_empty(len(units), rows.shape[1]) for rank, units in coming.items()
        }
        tp.exchange(outgoing, incoming)
        arrived = {
            unit: incoming[rank][number]
            for rank, units in coming.items()
            for number, unit in enumerate(units)
        }
        moved = rows.new_empty(len(table[tp.rank]), rows.shape[1])
        for row, unit in enumerate(table[tp.rank]):
            moved[row] = rows[place[unit]] if unit in place else arrived[unit]
        members = tuple(member for member, _ in parts)
        for (member, slot), piece in zip(parts, _unpack(members, moved), strict=True):
            slot.replace(piece.contiguous())
            member.parameter.grad = None
        self.table = table


class _Slot:
    """A tensor of a parameter's shape: its data, or one of its optimizer's states."""

    def __init__(
        self, member: Member, state: dict[Any, torch.Tensor] | None, key: object = None
    ) -> None:
        self._member = member
        self._state = state
        self._key = key

    @property
    def tensor(self) -> torch.Tensor:
        """The present tensor."""
        return self._member.parameter.data if self._state is None else self._state[self._key]

    def replace(self, tensor: torch.Tensor) -> None:
        """Replace the tensor by a tensor of another length."""
        if self._state is not None:
            self._state[self._key] = tensor
            return
        # The autograd graph of the last step may still exist, with the node that accumulates this
        # parameter's gradient and expects its old shape. PyTorch creates a new node only if the
        # type changes.
        other = torch.float32 if tensor.dtype != torch.float32 else torch.float64
        self._member.parameter.data = tensor.new_empty(0, dtype=other)
        self._member.parameter.data = tensor


def _slots(member: Member, optimizer: torch.optim.Optimizer | None) -> list[_Slot]:
    slots = [_Slot(member, None)]
    state = optimizer.state.get(member.parameter, {}) if optimizer is not None else {}
    for key in sorted(state, key=str):
        value = state[key]
        if torch.is_tensor(value) and value.shape == member.parameter.shape:
            slots.append(_Slot(member, state, key))
    return slots
