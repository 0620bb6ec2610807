"""The choice of left-out columns: changing priorities, and ratios by layer."""

from __future__ import annotations

import torch
from torch import nn

from paceline_client.tensor import (
    Granularity,
    Method,
    Plan,
    RankShare,
    RowParallelLinear,
    Selection,
    TensorGroup,
    Workload,
)

_SIZE = 4


def _everywhere(resized: int) -> Plan:
    """Return a plan with which every rank leaves out some of 16 columns."""
    return Plan(1, Method.ZERO, 16, _SIZE, tuple(RankShare(r, resized) for r in range(_SIZE)))


def _change(layer: nn.Module, amounts: torch.Tensor) -> None:
    with torch.no_grad():
        layer.weight += amounts


def priorities() -> dict[str, list[int]]:
    """Return the kept columns of each epoch, if a computed column j changes by j hundredths."""
    tp = TensorGroup()
    layer = RowParallelLinear(64, 8, tp, bias=False)
    workload = Workload(layer, tp, selection=Selection.PRIORITY)
    amounts = torch.arange(16) / 100
    _change(layer, amounts)
    workload.end_epoch()
    workload.apply(_everywhere(4))
    first = workload.lineage()[0].kept.tolist()
    # Left-out columns do not change; of the others, columns 4 to 7 now change least.
    changed = amounts.clone()
    changed[:4] = 0
    changed[4:8] = 0.001
    _change(layer, changed)
    workload.end_epoch()
    second = workload.lineage()[0].kept.tolist()
    return {"first": first, "second": second}


def ratios() -> dict[str, list[float]]:
    """Return the left-out shares of three layers: one that changes much, one less, one hardly."""
    tp = TensorGroup()
    torch.manual_seed(2)
    model = nn.Sequential(*(RowParallelLinear(512, 16, tp, bias=False) for _ in range(3)))
    workload = Workload(model, tp, selection=Selection.PRIORITY_BY_LAYER)
    for layer, most in zip(model, (1.0, 0.5, 0.1), strict=True):
        _change(layer, most * torch.rand(128))
    workload.end_epoch()
    answers: dict[str, list[float]] = {}
    for resized in (4, 8, 14):
        workload.apply(_everywhere(resized))
        left_out = [1 - len(row.kept) / 128 for row in workload.lineage()]
        answers[str(resized / 16)] = left_out
    return answers


def restored_state() -> dict[str, bool]:
    """Return the optimizer state of its first step under a plan: zeros in left-out columns."""
    tp = TensorGroup()
    answers: dict[str, bool] = {}
    for granularity in Granularity:
        torch.manual_seed(3)
        layer = RowParallelLinear(64, 8, tp, bias=False)
        optimizer = torch.optim.AdamW(layer.parameters(), lr=0.1, weight_decay=0.5)
        workload = Workload(
            layer, tp, optimizer, granularity=granularity, selection=Selection.RANDOM
        )
        workload.apply(_everywhere(10))
        before = layer.weight.detach().clone()
        layer(torch.randn(4, 16)).square().sum().backward()
        optimizer.step()
        lost = torch.ones(16, dtype=torch.bool)
        lost[workload.lineage()[0].kept] = False
        state = optimizer.state[layer.weight]
        answers[granularity.value] = bool(
            torch.equal(layer.weight[:, lost], before[:, lost])
            and not state["exp_avg"][:, lost].any()
            and not state["exp_avg_sq"][:, lost].any()
            and (layer.weight[:, ~lost] != before[:, ~lost]).all()
        )
    return answers
