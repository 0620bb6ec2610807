"""Tensor-parallel layers whose columns, hidden units and heads can be left out or lent.

Linear layers, transformer blocks of these, and layers with the interface of Megatron-Core's.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import torch
from torch import nn
from torch.nn import functional

from paceline_client.tensor.functions import ColumnProduct, RowProduct
from paceline_client.tensor.group import TensorGroup
from paceline_client.tensor.units import Kind, Member, Placement, Site, units_of_step

_SQRT_5: Final = math.sqrt(5)


class ParallelLinear(nn.Module):  # type: ignore[misc]
    """The base of both linear layers: a local weight whose columns can be left out or lent."""

    weight: nn.Parameter
    bias: nn.Parameter | None
    site: Site
    kind: Kind

    def _set_parameters(
        self, tp: TensorGroup, weight: torch.Tensor, bias: torch.Tensor | None
    ) -> None:
        self.tp = tp
        self.weight = nn.Parameter(weight)
        self.bias = None if bias is None else nn.Parameter(bias)
        self.site = Site(tp, weight.shape[1], (Member(self.weight, 1),), kind=self.kind)


class ColumnParallelLinear(ParallelLinear):
    """y = x·Aᵀ + b with the rows of A divided over the group, and so the features of y.

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
        self._set_parameters(tp, _part(whole, tp, 0), zeros)

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
    """y = x·Aᵀ + b with the columns of A divided over the group, and y summed over the group.

    Features are those of the whole layer; `in_features` is a multiple of the group's size. The bias
    is the same on all ranks and added once.
    """

    kind = Kind.ROW

    def __init__(
        self, in_features: int, out_features: int, tp: TensorGroup, *, bias: bool = True
    ) -> None:
        super().__init__()
        whole = _draw(out_features, in_features)
        self._set_parameters(tp, _part(whole, tp, 1), torch.zeros(out_features) if bias else None)

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
    """Initialize a weight like `torch.nn.Linear`."""
    weight = torch.empty(rows, columns)
    nn.init.kaiming_uniform_(weight, a=_SQRT_5)
    return weight


def _part(whole: torch.Tensor, tp: TensorGroup, dim: int) -> torch.Tensor:
    length = whole.shape[dim]
    if length % tp.size:
        raise ValueError(f"{length} features are not divisible by a group of {tp.size} ranks")
    return whole.chunk(tp.size, dim)[tp.rank].clone(memory_format=torch.contiguous_format)


Activation = Callable[[torch.Tensor], torch.Tensor]

_QUERY_KEY_VALUE: Final = 3


class UnitsAwayError(RuntimeError):
    """The state of a layer was requested while other ranks hold some of its units."""


class _Pair(nn.Module):  # type: ignore[misc]
    """A column-parallel layer followed by a row-parallel layer that reads its features."""

    def _define_units(
        self, first: ColumnParallelLinear, second: RowParallelLinear, units: int
    ) -> None:
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

    def _compute(
        self, x: torch.Tensor, between: Callable[[torch.Tensor], torch.Tensor]
    ) -> torch.Tensor:
        """Return the output of both layers; `between` is applied to the features in between."""
        # With a plan, this step's units are used instead of the layers' own weights.
        units = () if self.site.shed is None else units_of_step(self.site)
        y: torch.Tensor = self.second(between(self.first(x, *units[:-1])), *units[-1:])
        return y


def _refuse_while_away(module: Any, *_: object) -> None:  # noqa: ANN401 - any module
    if module.placement.away:
        raise UnitsAwayError(
            "units of this layer are on other ranks: save the checkpoint inside "
            "`with workload.whole():`, on all ranks together"
        )


class ParallelMLP(_Pair):
    """A feed-forward network with the sizes hidden, expanded, hidden.

    `expanded` is a multiple of the group's size; `activation` is elementwise.
    """

    def __init__(
        self, hidden: int, expanded: int, tp: TensorGroup, activation: Activation = functional.gelu
    ) -> None:
        super().__init__()
        self._activation = activation
        self._define_units(
            ColumnParallelLinear(hidden, expanded, tp),
            RowParallelLinear(expanded, hidden, tp),
            expanded // tp.size,
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the output; input and output are identical on all ranks."""
        return self._compute(x, self._activation)


class ParallelAttention(_Pair):
    """Self-attention with the heads divided over the group; a head is a unit.

    The rows of the first weight are ordered by head, then query, key and value, as in
    Megatron-Core. `heads` divides `hidden` and is a multiple of the group's size.
    """

    def __init__(self, hidden: int, heads: int, tp: TensorGroup, *, causal: bool = False) -> None:
        super().__init__()
        self._head = hidden // heads
        self._causal = causal
        self._define_units(
            ColumnParallelLinear(hidden, _QUERY_KEY_VALUE * hidden, tp),
            RowParallelLinear(hidden, hidden, tp),
            heads // tp.size,
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the output for an input of shape (batch, sequence, hidden)."""
        return self._compute(x, self._attend)

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


class UnsupportedLayerError(ValueError):
    """A layer has a setting that the products of this package do not support."""


# Settings that must be off for the products of this package.
_REFUSED: Final = (
    "sequence_parallel",
    "gradient_accumulation_fusion",
    "explicit_expert_comm",
    "is_expert",
    "disable_grad_reduce",
    "gather_output",
)


def adapt(model: nn.Module, tp: TensorGroup) -> list[str]:
    """Replace the products of a model's column- and row-parallel layers by this package's.

    Layers are those with `gather_output` or `input_is_parallel`; `tp` is of their process group.
    Their `forward` is replaced on the object; parameters, names and checkpoints stay. Returns the
    names of the layers. Raises `UnsupportedLayerError`, before anything is changed, for an
    unsupported setting.
    """
    layers = [
        (name, module)
        for name, module in model.named_modules()
        if isinstance(getattr(module, "weight", None), nn.Parameter)
        and (hasattr(module, "gather_output") or hasattr(module, "input_is_parallel"))
    ]
    for name, module in layers:
        for setting in _REFUSED:
            if getattr(module, setting, False):
                raise UnsupportedLayerError(f"{name}: {setting} is not supported")
        if hasattr(module, "input_is_parallel") and not module.input_is_parallel:
            raise UnsupportedLayerError(f"{name}: input_is_parallel must be on")
    for _, module in layers:
        row = hasattr(module, "input_is_parallel")
        kind = Kind.ROW if row else Kind.COLUMN
        module.site = Site(tp, module.weight.shape[1], (Member(module.weight, 1),), kind=kind)
        module.forward = _RowForward(module) if row else _ColumnForward(module)
    return [name for name, _ in layers]


class _ColumnForward:
    """Replaces the `forward` of a column-parallel layer, with the same results as Megatron's."""

    def __init__(self, layer: Any) -> None:  # noqa: ANN401 - any layer of that shape
        self._layer = layer

    def __call__(
        self,
        input_: torch.Tensor,
        weight: torch.Tensor | None = None,
        runtime_gather_output: bool | None = None,  # noqa: FBT001 - Megatron's signature
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        layer = self._layer
        if weight is not None or runtime_gather_output:
            raise UnsupportedLayerError("weight and gather_output are not supported in forward")
        bias = None if layer.skip_bias_add else layer.bias
        y = ColumnProduct.apply(input_, layer.weight, bias, layer.site, layer.site.shed)
        return y, layer.bias if layer.skip_bias_add else None


class _RowForward:
    """Replaces the `forward` of a row-parallel layer, with the same results as Megatron's."""

    def __init__(self, layer: Any) -> None:  # noqa: ANN401 - any layer of that shape
        self._layer = layer

    def __call__(self, input_: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        layer = self._layer
        y = RowProduct.apply(input_, layer.weight, layer.site, layer.site.shed)
        if layer.skip_bias_add:
            return y, layer.bias
        return (y if layer.bias is None else y + layer.bias), None
