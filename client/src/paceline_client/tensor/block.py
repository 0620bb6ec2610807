"""A transformer block of tensor-parallel layers; its hidden units and heads can be shed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import nn
from torch.nn import functional

from paceline_client.tensor.group import TensorGroup
from paceline_client.tensor.layers import ColumnParallelLinear, RowParallelLinear
from paceline_client.tensor.shedding import Member, Site
from paceline_client.tensor.units import Placement, units_of_step

Activation = Callable[[torch.Tensor], torch.Tensor]

_QUERY_KEY_VALUE: Final = 3


class UnitsAwayError(RuntimeError):
    """The state of a layer was requested while some of its units are on other ranks."""


class _Pair(nn.Module):  # type: ignore[misc]
    """A column-parallel layer whose features a row-parallel layer reads."""

    def _pair(self, first: ColumnParallelLinear, second: RowParallelLinear, units: int) -> None:
        """Define the units: equal parts of the rows of `first` and the columns of `second`."""
        width = first.weight.shape[0] // units
        members = [Member(first.weight, 0, width)]
        if first.bias is not None:
            members.append(Member(first.bias, 0, width))
        members.append(Member(second.weight, 1, second.weight.shape[1] // units))
        self.first, self.second = first, second
        self.site = Site(first.tp, units, tuple(members))
        self.placement = Placement(self.site)
        self.register_state_dict_pre_hook(_refuse_while_away)

    def _weights(self) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor] | None:
        """Return this step's units; None if the layers use their own weights."""
        if self.site.shed is None:
            return None
        weights = units_of_step(self.site)
        return weights[0], weights[1] if self.first.bias is not None else None, weights[-1]

    def _through(
        self, x: torch.Tensor, between: Callable[[torch.Tensor], torch.Tensor]
    ) -> torch.Tensor:
        weights = self._weights()
        if weights is None:
            y: torch.Tensor = self.second(between(self.first(x)))
        else:
            first, bias, second = weights
            y = self.second(between(self.first(x, first, bias)), second)
        return y


def _refuse_while_away(module: Any, *_: object) -> None:  # noqa: ANN401 - any module
    if module.placement.away:
        raise UnitsAwayError(
            "units of this layer are on other ranks: save the checkpoint inside "
            "`with workload.whole():`, on all ranks together"
        )


class ParallelMLP(_Pair):
    """Feed-forward network: hidden, expanded, hidden.

    `expanded` is a multiple of the group's size; `activation` is elementwise.
    """

    def __init__(
        self, hidden: int, expanded: int, tp: TensorGroup, activation: Activation = functional.gelu
    ) -> None:
        super().__init__()
        self._activation = activation
        self._pair(
            ColumnParallelLinear(hidden, expanded, tp),
            RowParallelLinear(expanded, hidden, tp),
            expanded // tp.size,
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the output; input and output are the same on all ranks."""
        return self._through(x, self._activation)


class ParallelAttention(_Pair):
    """Self-attention with the heads divided over the group; a head is a unit.

    The rows of the first weight are ordered by head, then query, key and value, as in
    Megatron-Core. `heads` divides `hidden` and is a multiple of the group's size.
    """

    def __init__(self, hidden: int, heads: int, tp: TensorGroup, *, causal: bool = False) -> None:
        super().__init__()
        self._head = hidden // heads
        self._causal = causal
        self._pair(
            ColumnParallelLinear(hidden, _QUERY_KEY_VALUE * hidden, tp),
            RowParallelLinear(hidden, hidden, tp),
            heads // tp.size,
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the output for an input of shape (batch, sequence, hidden)."""
        return self._through(x, self._attend)

    def _attend(self, projected: torch.Tensor) -> torch.Tensor:
        batch, sequence, features = projected.shape
        heads = features // (_QUERY_KEY_VALUE * self._head)
        if not heads:
            return projected
        shape = (batch, sequence, heads, _QUERY_KEY_VALUE, self._head)
        query, key, value = projected.view(shape).permute(3, 0, 2, 1, 4)
        attended = functional.scaled_dot_product_attention(
            query, key, value, is_causal=self._causal
        )
        result: torch.Tensor = attended.transpose(1, 2).reshape(batch, sequence, -1)
        return result


class TransformerBlock(nn.Module):  # type: ignore[misc]
    """Attention and feed-forward network, each with pre-normalization and a residual connection."""

    def __init__(
        self, hidden: int, heads: int, expanded: int, tp: TensorGroup, *, causal: bool = False
    ) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(hidden)
        self.attention = ParallelAttention(hidden, heads, tp, causal=causal)
        self.mlp_norm = nn.LayerNorm(hidden)
        self.mlp = ParallelMLP(hidden, expanded, tp)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the output for an input of shape (batch, sequence, hidden)."""
        x = x + self.attention(self.attention_norm(x))
        result: torch.Tensor = x + self.mlp(self.mlp_norm(x))
        return result
