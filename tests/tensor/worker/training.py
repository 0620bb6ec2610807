"""Trains the small block for a few steps, and compares two trainings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import nn

from paceline_client.tensor import (
    Granularity,
    Imputation,
    Plan,
    Selection,
    TensorGroup,
    TransformerBlock,
    Workload,
)

HIDDEN: Final = 32
HEADS: Final = 16
EXPANDED: Final = 64
STEPS: Final = 20
# The steps with a plan, of 20.
PLANNED: Final = range(4, 14)


@dataclass(slots=True)
class Training:
    """A training of a block, and its results step by step."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    losses: list[torch.Tensor]
    gradients: list[dict[str, torch.Tensor]]


def new_block(tp: TensorGroup, dtype: torch.dtype = torch.float64) -> TransformerBlock:
    """Return a block with the same weights in each call."""
    torch.manual_seed(0)
    block = TransformerBlock(HIDDEN, HEADS, EXPANDED, tp)
    block.to(dtype)
    return block


def new_training(model: nn.Module) -> Training:
    """Return a training before its first step."""
    return Training(model, torch.optim.AdamW(model.parameters(), lr=1e-2), [], [])


def train(
    training: Training,
    steps: int,
    dtype: torch.dtype = torch.float64,
    before: Callable[[int], None] = lambda _: None,
    gradients: Callable[[], dict[str, torch.Tensor]] | None = None,
) -> Training:
    """Train on the same inputs in each call; `before` is called before each step."""
    generator = torch.Generator().manual_seed(len(training.losses))
    for step in range(steps):
        before(step)
        x = torch.randn(2, 6, HIDDEN, generator=generator, dtype=torch.float64).to(dtype)
        training.optimizer.zero_grad()
        loss = (training.model(x) - x.flip(-1)).square().mean()
        loss.backward()
        training.losses.append(loss.detach())
        training.gradients.append((gradients or (lambda: gradients_of(training.model)))())
        training.optimizer.step()
    return training


def gradients_of(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return copies of the gradients, by parameter name without dots."""
    return {
        name.replace(".", "_"): parameter.grad.clone()
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }


class _State:
    """An optimizer for a placement, whose state is the gradients."""

    def __init__(self, model: nn.Module) -> None:
        self.state = {
            parameter: {"gradient": parameter.grad.clone()}
            for parameter in model.parameters()
            if parameter.grad is not None
        }


def gradients_at_home(training: Training) -> dict[str, torch.Tensor]:
    """Return the gradients with moved units in their places without a plan."""
    model = training.model
    placements = [model.attention.placement, model.mlp.placement]
    tables = [placement.table for placement in placements]
    gradients = _State(model)
    for placement in placements:
        placement.restore(gradients)
    found = {
        name.replace(".", "_"): gradients.state[parameter]["gradient"]
        for name, parameter in model.named_parameters()
        if parameter in gradients.state
    }
    held = {parameter: one["gradient"] for parameter, one in gradients.state.items()}
    for placement, table in zip(placements, tables, strict=True):
        placement.move(table, gradients)
    for parameter in held:
        parameter.grad = gradients.state[parameter]["gradient"]
    return found


def planned_training(  # noqa: PLR0917 - how a training differs from another
    tp: TensorGroup,
    plans: Sequence[Plan],
    granularity: Granularity = Granularity.COLUMNS,
    dtype: torch.dtype = torch.float64,
    imputation: Imputation = Imputation.ZERO,
    selection: Selection = Selection.RANDOM,
) -> Training:
    """Train for 20 steps, the middle ones under these plans, one after the other."""
    training = new_training(new_block(tp, dtype))
    workload = Workload(
        training.model,
        tp,
        training.optimizer,
        granularity=granularity,
        imputation=imputation,
        selection=selection,
    )
    each = len(PLANNED) // len(plans)

    def before(step: int) -> None:
        if step in PLANNED:
            workload.apply(plans[min((step - PLANNED.start) // each, len(plans) - 1)])
        elif step == PLANNED.stop:
            workload.apply(None)

    train(training, STEPS, dtype, before, lambda: gradients_at_home(training))
    workload.close()
    return training


def difference(one: Training, other: Training) -> tuple[float, float]:
    """Return the largest relative differences of two trainings' losses and gradients."""
    losses = max(
        abs(float(a - b)) / abs(float(b)) for a, b in zip(one.losses, other.losses, strict=True)
    )
    gradients = max(
        float((a[name] - b[name]).norm() / b[name].norm().clamp_min(1e-30))
        for a, b in zip(one.gradients, other.gradients, strict=True)
        for name in b
    )
    return losses, gradients


def identical(one: Training, other: Training) -> bool:
    """Return whether losses, gradients and parameters of two trainings agree bit by bit."""
    losses = all(torch.equal(a, b) for a, b in zip(one.losses, other.losses, strict=True))
    gradients = all(
        torch.equal(a[name], b[name])
        for a, b in zip(one.gradients, other.gradients, strict=True)
        for name in a
    )
    after = {name.replace(".", "_"): value for name, value in other.model.named_parameters()}
    parameters = all(
        torch.equal(value, after[name.replace(".", "_")])
        for name, value in one.model.named_parameters()
    )
    return losses and gradients and parameters
