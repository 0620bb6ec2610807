"""Layers with the interface of Megatron-Core's, with the products of this package.

Layers are recognized by their attributes, and nothing is imported from Megatron. Settings that the
products do not support are refused by name.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import nn

from paceline_client.tensor.functions import ColumnProduct, RowProduct
from paceline_client.tensor.group import TensorGroup
from paceline_client.tensor.shedding import Kind, Member, Site


class UnsupportedLayerError(ValueError):
    """A layer has a setting that the products of this package do not support."""


# Settings that must be off.
_REFUSED: Final = (
    "sequence_parallel",
    "gradient_accumulation_fusion",
    "explicit_expert_comm",
    "is_expert",
    "disable_grad_reduce",
    "gather_output",
)


def adapt(model: nn.Module, tp: TensorGroup) -> list[str]:
    """Let all column- and row-parallel layers of a model compute as those of this package do.

    Layers are those with `gather_output` or `input_is_parallel`; `tp` is of their process group.
    Their `forward` is replaced on the object; parameters, names and checkpoints stay. Returns the
    names of the layers. Raises `UnsupportedLayerError`, before anything is changed, for an
    unsupported setting.
    """
    found = [
        (name, module)
        for name, module in model.named_modules()
        if isinstance(getattr(module, "weight", None), nn.Parameter)
        and (hasattr(module, "gather_output") or hasattr(module, "input_is_parallel"))
    ]
    for name, module in found:
        _check(name, module)
    for _, module in found:
        row = hasattr(module, "input_is_parallel")
        kind = Kind.ROW if row else Kind.COLUMN
        module.site = Site(tp, module.weight.shape[1], (Member(module.weight, 1),), kind=kind)
        module.forward = _RowForward(module) if row else _ColumnForward(module)
    return [name for name, _ in found]


def _check(name: str, module: Any) -> None:  # noqa: ANN401 - any layer
    for setting in _REFUSED:
        if getattr(module, setting, False):
            raise UnsupportedLayerError(f"{name}: {setting} is not supported")
    if hasattr(module, "input_is_parallel") and not module.input_is_parallel:
        raise UnsupportedLayerError(f"{name}: input_is_parallel must be on")


class _ColumnForward:
    """Replaces the `forward` of a column-parallel layer, with Megatron's results."""

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
    """Replaces the `forward` of a row-parallel layer, with Megatron's results."""

    def __init__(self, layer: Any) -> None:  # noqa: ANN401 - any layer of that shape
        self._layer = layer

    def __call__(self, input_: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        layer = self._layer
        y = RowProduct.apply(input_, layer.weight, layer.site, layer.site.shed)
        if layer.skip_bias_add:
            return y, layer.bias
        return (y if layer.bias is None else y + layer.bias), None
