"""Layers of Megatron-Core, adapted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
import torch.distributed as dist
from megatron.core.model_parallel_config import ModelParallelConfig
from megatron.core.tensor_parallel import layers as megatron_layers_of
from torch import nn
from torch.nn import functional

from paceline_client.tensor import TensorGroup, Workload, adapt
from paceline_client.tensor.layers import UnsupportedLayerError
from tests.tensor.worker.checks import UNEVEN, ZERO

_HIDDEN: Final = 16
_EXPANDED: Final = 64


class _Feedforward(nn.Module):  # type: ignore[misc]
    """Two layers of Megatron-Core, as in its feed-forward network."""

    def __init__(self, skip_bias_add: bool) -> None:  # noqa: FBT001 - Megatron's setting
        super().__init__()
        config = ModelParallelConfig(
            tensor_model_parallel_size=dist.get_world_size(),
            use_cpu_initialization=True,
            params_dtype=torch.float64,
        )
        how: dict[str, Any] = {
            "config": config,
            "init_method": nn.init.xavier_normal_,
            "bias": True,
            "skip_bias_add": skip_bias_add,
            "tp_group": dist.group.WORLD,
        }
        torch.manual_seed(4)
        self.up = megatron_layers_of.ColumnParallelLinear(
            _HIDDEN, _EXPANDED, gather_output=False, **how
        )
        self.down = megatron_layers_of.RowParallelLinear(
            _EXPANDED, _HIDDEN, input_is_parallel=True, **how
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the output, with biases added by either layer or here."""
        up, bias = self.up(x)
        down, last = self.down(functional.gelu(up if bias is None else up + bias))
        return down if last is None else down + last


def _results(model: nn.Module) -> list[torch.Tensor]:
    torch.manual_seed(5)
    x = torch.randn(3, 2, _HIDDEN, dtype=torch.float64, requires_grad=True)
    model.zero_grad()
    y = model(x)
    y.square().sum().backward()
    gradients = [parameter.grad.clone() for parameter in model.parameters()]
    return [y.detach(), x.grad, *gradients]


def _close(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> bool:
    return all(
        torch.allclose(a, b, rtol=1e-9, atol=1e-12) for a, b in zip(ours, theirs, strict=True)
    )


def megatron_layers() -> dict[str, bool]:
    """Compare adapted layers with their original: without a plan, lending, and resized."""
    answers: dict[str, bool] = {}
    for skip_bias_add in (False, True):
        model = _Feedforward(skip_bias_add)
        names = list(model.state_dict())
        theirs = _results(model)
        tp = TensorGroup()
        adapted = adapt(model, tp)
        workload = Workload(model, tp)
        plain = _results(model)
        workload.apply(UNEVEN)
        lending = _results(model)
        workload.apply(ZERO)
        resized = _results(model)
        workload.apply(None)
        answers |= {
            f"found {skip_bias_add}": adapted == ["up", "down"],
            f"names {skip_bias_add}": list(model.state_dict()) == names,
            f"plain {skip_bias_add}": all(map(torch.equal, plain, theirs)),
            f"lending {skip_bias_add}": _close(lending, theirs),
            f"resized {skip_bias_add}": not _close(resized, theirs),
        }
    return answers


def refused_layers() -> dict[str, str]:
    """Return the refusals of unsupported layers, which remain unchanged."""
    settings: dict[str, Callable[[_Feedforward], None]] = {
        "sequence_parallel": lambda model: setattr(model.down, "sequence_parallel", True),
        "gather_output": lambda model: setattr(model.up, "gather_output", True),
        "input_is_parallel": lambda model: setattr(model.down, "input_is_parallel", False),
    }
    answers: dict[str, str] = {}
    for setting, change in settings.items():
        model = _Feedforward(skip_bias_add=False)
        change(model)
        try:
            adapt(model, TensorGroup())
        except UnsupportedLayerError as error:
            untouched = not hasattr(model.up, "site") and not hasattr(model.down, "site")
            answers[setting] = f"{error}{'' if untouched else ' (changed)'}"
    return answers
