"""The columns that a layer leaves out and lends under a plan, and what replaces the former."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

import torch

from paceline_client.tensor.group import TensorGroup
from paceline_client.tensor.plan import Loan


class Kind(Enum):
    """What a unit is, which determines what is sent when it is lent."""

    HIDDEN_UNIT = "hidden_unit"
    COLUMN = "column"  # of a column-parallel layer's weight
    ROW = "row"  # of a row-parallel layer's weight


class Imputation(Enum):
    """The gradients of columns that were left out (the paper's section III-A).

    With `ZERO`, their weights do not change; `SAME` uses those of the last backward, of which it
    keeps a copy; `AVERAGE` uses the mean over the computed columns.
    """

    ZERO = "zero"
    SAME = "same"
    AVERAGE = "average"


@dataclass(frozen=True, slots=True)
class Kept:
    """Own units that this rank computes."""

    total: int  # all of its units
    count: int
    index: torch.Tensor | None = None  # int64, ascending; None for the first `count`

    def take(self, tensor: torch.Tensor, dim: int) -> torch.Tensor:
        """Return the part of a tensor for these units, along a dimension."""
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
    """One layer's part of a plan, on one rank."""

    kept: Kept
    pruned: torch.Tensor  # int64: units that are left out
    loans: tuple[Loan, ...]  # of all ranks, in the same order on all ranks


@dataclass(frozen=True, slots=True)
class Member:
    """A parameter of units: `width` successive rows or columns for each."""

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
        """How many numbers a unit has."""
        shape = self.parameter.shape
        return self.width * int(math.prod(shape[: self.dim] + shape[self.dim + 1 :]))

    def by_unit(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a tensor of some units as (units, numbers)."""
        units = tensor.shape[self.dim] // self.width
        return tensor.movedim(self.dim, 0).reshape(units, self.numbers)


@dataclass(eq=False, slots=True)
class Site:
    """Units that can be shed: the columns of a layer, or the hidden units of a pair."""

    tp: TensorGroup
    units: int  # of this rank without a plan
    members: tuple[Member, ...]
    shed: Shed | None = None  # the plan in force
    kind: Kind = Kind.HIDDEN_UNIT
    imputation: Imputation = Imputation.ZERO
    previous: dict[str, torch.Tensor] = field(default_factory=dict)
    # Numbers of the matrices without a plan; the time of the products is proportional to it.
    work: int = field(init=False)
    rows: int = 0  # rows of inputs since the last reset

    def __post_init__(self) -> None:
        matrices = [one.parameter for one in self.members if one.parameter.dim() > 1]
        self.work = sum(matrix.numel() for matrix in matrices)


def restore(
    site: Site, shed: Shed, matrix: str, parts: Sequence[tuple[Kept | slice, torch.Tensor]]
) -> torch.Tensor:
    """Return a gradient with all columns from computed `parts`, this rank's own first.

    `matrix` is the name of the gradient, to find its last value.
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
    """Keep a complete gradient if a later step needs it."""
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
