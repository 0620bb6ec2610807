"""Tensor-parallel layers whose work follows the speed of their ranks; requires PyTorch.

Resizing and migration are those of "Accelerating Heterogeneous Tensor Parallelism via Flexible
Workload Control".
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # torch is optional, and takes seconds to import
    from paceline_client.tensor.controller import Consent, Controller, Costs, pre_test
    from paceline_client.tensor.group import TensorGroup, Transport
    from paceline_client.tensor.layers import (
        ColumnParallelLinear,
        ParallelAttention,
        ParallelMLP,
        RowParallelLinear,
        TransformerBlock,
        adapt,
    )
    from paceline_client.tensor.plan import Granularity, Method, Plan, PlanError, RankShare
    from paceline_client.tensor.service import Peer
    from paceline_client.tensor.units import Imputation
    from paceline_client.tensor.watch import CpuWatch, CudaWatch, Pace
    from paceline_client.tensor.workload import Selection, Workload

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

_MODULES = {
    "controller": ("Consent", "Controller", "Costs", "pre_test"),
    "group": ("TensorGroup", "Transport"),
    "layers": (
        "ColumnParallelLinear",
        "ParallelAttention",
        "ParallelMLP",
        "RowParallelLinear",
        "TransformerBlock",
        "adapt",
    ),
    "plan": ("Granularity", "Method", "Plan", "PlanError", "RankShare"),
    "service": ("Peer",),
    "units": ("Imputation",),
    "watch": ("CpuWatch", "CudaWatch", "Pace"),
    "workload": ("Selection", "Workload"),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> object:
    """Import a name on demand, so that plans can be read without PyTorch."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
