"""Restores weights whose gradients were not computed, and their optimizer's state.

Even with a zero gradient, weight decay and the momentum of earlier gradients change a weight.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from paceline_client.tensor.shedding import Imputation, Member, Site


@dataclass(slots=True)
class _Saved:
    """The pruned part of a parameter and of its optimizer state, before a step."""

    parameter: torch.nn.Parameter
    dim: int
    index: torch.Tensor
    data: torch.Tensor
    state: dict[Any, torch.Tensor] = field(default_factory=dict)


class Restorer:
    """Wraps the steps of an optimizer by its hooks; keeps the pruned units of `sites` unchanged.

    The optimizer has its state per parameter, in tensors of the parameter's shape.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, sites: Callable[[], list[Site]]) -> None:
        self._optimizer = optimizer
        self._sites = sites
        self._saved: list[_Saved] = []
        self._hooks = [
            optimizer.register_step_pre_hook(self._before),
            optimizer.register_step_post_hook(self._after),
        ]

    def remove(self) -> None:
        """Remove the hooks."""
        for hook in self._hooks:
            hook.remove()

    def _before(self, *_: object) -> None:
        self._saved = [
            self._save(member, site.shed.pruned)
            for site in self._sites()
            if site.shed is not None
            and site.imputation is Imputation.ZERO
            and site.shed.pruned.numel()
            for member in site.members
        ]

    def _save(self, member: Member, units: torch.Tensor) -> _Saved:
        index = member.index(units)
        parameter = member.parameter
        saved = _Saved(parameter, member.dim, index, parameter.data.index_select(member.dim, index))
        for key, value in self._state(parameter).items():
            saved.state[key] = value.index_select(member.dim, index)
        return saved

    def _state(self, parameter: torch.nn.Parameter) -> dict[Any, torch.Tensor]:
        state = self._optimizer.state.get(parameter, {})
        return {
            key: value
            for key, value in state.items()
            if torch.is_tensor(value) and value.shape == parameter.shape
        }

    def _after(self, *_: object) -> None:
        with torch.no_grad():
            for saved in self._saved:
                saved.parameter.data.index_copy_(saved.dim, saved.index, saved.data)
                for key, value in self._state(saved.parameter).items():
                    # New state begins with zeros, as for a zero gradient.
                    before = saved.state.get(key)
                    if before is None:
                        value.index_fill_(saved.dim, saved.index, 0)
                    else:
                        value.index_copy_(saved.dim, saved.index, before)
        self._saved = []
