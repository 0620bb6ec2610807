"""Tensor-parallel layers whose work follows the speed of their ranks; requires PyTorch.

Resizing and migration are those of "Accelerating Heterogeneous Tensor Parallelism via Flexible
Workload Control".
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paceline_client.tensor.block import ParallelAttention, ParallelMLP, TransformerBlock
    from paceline_client.tensor.controller import Consent, Controller
    from paceline_client.tensor.group import TensorGroup, Transport
    from paceline_client.tensor.layers import ColumnParallelLinear, RowParallelLinear
    from paceline_client.tensor.megatron import adapt
    from paceline_client.tensor.plan import Granularity, Method, Plan, PlanError, RankShare
    from paceline_client.tensor.pretest import Costs, pre_test
    from paceline_client.tensor.selection import Selection
    from paceline_client.tensor.service import Peer
    from paceline_client.tensor.shedding import Imputation
    from paceline_client.tensor.watch import CpuWatch, CudaWatch, Pace
    from paceline_client.tensor.workload import Workload

_MODULES = {
    "block": ("ParallelAttention", "ParallelMLP", "TransformerBlock"),
    "controller": ("Consent", "Controller"),
    "group": ("TensorGroup", "Transport"),
    "layers": ("ColumnParallelLinear", "RowParallelLinear"),
    "megatron": ("adapt",),
    "plan": ("Granularity", "Method", "Plan", "PlanError", "RankShare"),
    "pretest": ("Costs", "pre_test"),
    "selection": ("Selection",),
    "service": ("Peer",),
    "shedding": ("Imputation",),
    "watch": ("CpuWatch", "CudaWatch", "Pace"),
    "workload": ("Workload",),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "ColumnParallelLinear",
    "Consent",
    "Controller",
    "Costs",
    "CpuWatch",
    "CudaWatch",
    "Granularity",
    "Imputation",
    "Method",
    "Pace",
    "ParallelAttention",
    "ParallelMLP",
    "Peer",
    "Plan",
    "PlanError",
    "RankShare",
    "RowParallelLinear",
    "Selection",
    "TensorGroup",
    "TransformerBlock",
    "Transport",
    "Workload",
    "adapt",
    "pre_test",
]


def __getattr__(name: str) -> object:
    """Import on demand: plans are read without PyTorch, which takes seconds to import."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
