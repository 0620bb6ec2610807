"""Linear layers whose weights are divided over a tensor-parallel group."""

from __future__ import annotations

import math
from typing import Final

import torch
from torch import nn

from paceline_client.tensor.functions import ColumnProduct, RowProduct
from paceline_client.tensor.group import TensorGroup
from paceline_client.tensor.shedding import Kind, Member, Site

_SQRT_5: Final = math.sqrt(5)


class ParallelLinear(nn.Module):  # type: ignore[misc]
    """The base of both layers: a local weight whose columns can be shed."""

    weight: nn.Parameter
    bias: nn.Parameter | None
    site: Site
    kind: Kind

    def _own(self, tp: TensorGroup, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self.tp = tp
        self.weight = nn.Parameter(weight)
        self.bias = None if bias is None else nn.Parameter(bias)
        self.site = Site(tp, weight.shape[1], (Member(self.weight, 1),), kind=self.kind)


class ColumnParallelLinear(ParallelLinear):
    """y = x·Aᵀ + b with the rows of A divided over the group; each rank has its features of y.

    Features are those of the whole layer; `out_features` is a multiple of the group's size. The
    whole weight is drawn on every rank, from the default generator, so that the layer does not
    depend on the group's size.
    """

    kind = Kind.COLUMN

    def __init__(
        self, in_features: int, out_features: int, tp: TensorGroup, *, bias: bool = True
    ) -> None:
        super().__init__()
        whole = _draw(out_features, in_features)
        zeros = torch.zeros(out_features // tp.size) if bias else None
        self._own(tp, _part(whole, tp, 0), zeros)

    def forward(
        self,
        x: torch.Tensor,
        weight: torch.Tensor | None = None,
        bias: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return this rank's features from x, (..., in_features), the same on all ranks.

        `weight` and `bias` are this step's hidden units, instead of the layer's own.
        """
        if weight is not None:
            y: torch.Tensor = ColumnProduct.apply(x, weight, bias, self.site, None)
        else:
            y = ColumnProduct.apply(x, self.weight, self.bias, self.site, self.site.shed)
        return y


class RowParallelLinear(ParallelLinear):
    """y = x·Aᵀ + b with the columns of A divided over the group, and y summed over it.

    Features are those of the whole layer; `in_features` is a multiple of the group's size. The bias
    is the same on all ranks and added once.
    """

    kind = Kind.ROW

    def __init__(
        self, in_features: int, out_features: int, tp: TensorGroup, *, bias: bool = True
    ) -> None:
        super().__init__()
        whole = _draw(out_features, in_features)
        self._own(tp, _part(whole, tp, 1), torch.zeros(out_features) if bias else None)

    def forward(self, x: torch.Tensor, weight: torch.Tensor | None = None) -> torch.Tensor:
        """Return y, the same on all ranks, from this rank's features, (..., in_features / size).

        `weight` are this step's hidden units, instead of the layer's own.
        """
        if weight is not None:
            y: torch.Tensor = RowProduct.apply(x, weight, self.site, None)
        else:
            y = RowProduct.apply(x, self.weight, self.site, self.site.shed)
        return y if self.bias is None else y + self.bias


def _draw(rows: int, columns: int) -> torch.Tensor:
    """Draw a weight as `torch.nn.Linear` does."""
    weight = torch.empty(rows, columns)
    nn.init.kaiming_uniform_(weight, a=_SQRT_5)
    return weight


def _part(whole: torch.Tensor, tp: TensorGroup, dim: int) -> torch.Tensor:
    length = whole.shape[dim]
    if length % tp.size:
        raise ValueError(f"{length} features are not divisible by a group of {tp.size} ranks")
    return whole.chunk(tp.size, dim)[tp.rank].clone(memory_format=torch.contiguous_format)
