"""All targets, in the order of attachment: callers before what they call."""

from __future__ import annotations

from typing import Final

from paceline_client.torch.targets.between import BETWEEN
from paceline_client.torch.targets.collectives import COLLECTIVES
from paceline_client.torch.targets.compiling import COMPILING
from paceline_client.torch.targets.ddp import DDP
from paceline_client.torch.targets.fsdp2 import FSDP2
from paceline_client.torch.targets.garbage import GARBAGE
from paceline_client.torch.targets.kind import Target
from paceline_client.torch.targets.loop import LOOP
from paceline_client.torch.targets.megatron import MEGATRON
from paceline_client.torch.targets.optimizer import OPTIMIZERS
from paceline_client.torch.targets.pipelining import PIPELINING
from paceline_client.torch.targets.process_groups import PROCESS_GROUPS
from paceline_client.torch.targets.tensor_parallel import TENSOR_PARALLEL

TARGETS: Final[tuple[Target, ...]] = (
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
