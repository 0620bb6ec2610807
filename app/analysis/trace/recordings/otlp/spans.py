"""Spans of Megatron-LM, as its main branch names them and as releases before did.

Sources: ``megatron/training/training.py`` and ``docs/user-guide/observability/span-groups.md`` of
NVIDIA/Megatron-LM (pull request 6385). Spans of microbatches, transfers and gradients have one name
in both; a step and its parts were renamed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from app.analysis.trace.model import (
    BACKWARD_COMPUTE,
    BACKWARD_RECV,
    BACKWARD_SEND,
    CHECKPOINT,
    EVALUATION,
    FORWARD_COMPUTE,
    FORWARD_RECV,
    FORWARD_SEND,
    GRADS_REDUCE_SCATTER,
    OPTIMIZER,
)

PREFIX: Final = "megatron."
STEPS: Final = frozenset({"megatron.train_step", "megatron.train.iteration"})
# Around the first step of a process, which compiles, captures and connects.
FIRST_STEP: Final = "megatron.train.first_iteration"
WHY_ODD: Final = "Megatron-LM marks it as the first one of its process"
OPERATIONS: Final[Mapping[str, str]] = {
    "megatron.microbatch.forward": FORWARD_COMPUTE,
    "megatron.microbatch.backward": BACKWARD_COMPUTE,
    "megatron.p2p.send_forward": FORWARD_SEND,
    "megatron.p2p.recv_forward": FORWARD_RECV,
    "megatron.p2p.send_backward": BACKWARD_SEND,
    "megatron.p2p.recv_backward": BACKWARD_RECV,
    "megatron.grad_sync.finish": GRADS_REDUCE_SCATTER,
    "megatron.optimizer_step": OPTIMIZER,
    "megatron.train.iteration.optimizer": OPTIMIZER,
}
# What a rank does between steps; the outermost of spans that lie in each other is meant.
BETWEEN: Final[Mapping[str, str]] = {
    "megatron.evaluate": EVALUATION,
    "megatron.save_checkpoint": CHECKPOINT,
    "megatron.checkpoint.exposed_save": CHECKPOINT,
    "megatron.checkpoint.save": CHECKPOINT,
}
READ: Final = frozenset({*OPERATIONS, *BETWEEN, *STEPS, FIRST_STEP})
# Spans around those of operations, or of what no step has.
AROUND: Final = frozenset(
    {
        "megatron.pretrain",
        "megatron.train",
        "megatron.forward_backward",
        "megatron.train.iteration.forward_backward",
    }
)
