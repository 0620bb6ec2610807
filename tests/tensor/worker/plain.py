"""A transformer block with plain tensor parallelism, independent of the package's code."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional


class _Copy(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:  # noqa: ANN401 - torch's
        del ctx
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> torch.Tensor:  # noqa: ANN401 - torch's
        del ctx
        summed = dy.clone()
        dist.all_reduce(summed)
        return summed


class _Sum(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:  # noqa: ANN401 - torch's
        del ctx
        summed = x.clone()
        dist.all_reduce(summed)
        return summed

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> torch.Tensor:  # noqa: ANN401 - torch's
        del ctx
        return dy


class PlainBlock(nn.Module):  # type: ignore[misc]
    """A block with the weights of a `TransformerBlock`, which uses `torch.nn.functional` only."""

    def __init__(self, block: nn.Module, head: int) -> None:
        super().__init__()
        self._head = head
        for name, parameter in block.named_parameters():
            copied = nn.Parameter(parameter.detach().clone())
            self.register_parameter(name.replace(".", "_"), copied)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the block's output."""
        x = x + self._pair(self._norm(x, "attention"), "attention", self._attend)
        return x + self._pair(self._norm(x, "mlp"), "mlp", functional.gelu)

    def _norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        weight, bias = self._of(f"{name}_norm_weight"), self._of(f"{name}_norm_bias")
        return functional.layer_norm(x, x.shape[-1:], weight, bias)

    def _pair(self, x: torch.Tensor, name: str, between: Any) -> torch.Tensor:  # noqa: ANN401
        first = functional.linear(
            _Copy.apply(x), self._of(f"{name}_first_weight"), self._of(f"{name}_first_bias")
        )
        second = functional.linear(between(first), self._of(f"{name}_second_weight"))
        return _Sum.apply(second) + self._of(f"{name}_second_bias")

    def _attend(self, projected: torch.Tensor) -> torch.Tensor:
        batch, sequence, features = projected.shape
        split = projected.view(batch, sequence, -1, 3, self._head).permute(3, 0, 2, 1, 4)
        attended = functional.scaled_dot_product_attention(*split)
        return attended.transpose(1, 2).reshape(batch, sequence, features // 3)

    def _of(self, name: str) -> torch.Tensor:
        return self.get_parameter(name)
