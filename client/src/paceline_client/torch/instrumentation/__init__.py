"""The instrumentation of PyTorch, Megatron-Core and Python through hooks and callbacks."""

from __future__ import annotations

from typing import Final

from paceline_client.torch.instrumentation.base import Instrumentation
from paceline_client.torch.instrumentation.collectives import COLLECTIVES, PROCESS_GROUPS
from paceline_client.torch.instrumentation.data_parallel import DDP, FSDP2
from paceline_client.torch.instrumentation.loop import BETWEEN, COMPILING, GARBAGE, LOOP, OPTIMIZERS
from paceline_client.torch.instrumentation.megatron import MEGATRON, TENSOR_PARALLEL
from paceline_client.torch.instrumentation.pipelining import PIPELINING

# In order of attachment: a function is hooked before the functions that it calls.
INSTRUMENTATIONS: Final[tuple[Instrumentation, ...]] = (
    PIPELINING,
    MEGATRON,
    LOOP,
    FSDP2,
    DDP,
    PROCESS_GROUPS,
    TENSOR_PARALLEL,
    COLLECTIVES,
    OPTIMIZERS,
    GARBAGE,
    BETWEEN,
    COMPILING,
)
