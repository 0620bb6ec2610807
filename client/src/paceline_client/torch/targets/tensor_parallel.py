"""Collectives of Megatron-Core's tensor-parallel layers."""

from __future__ import annotations

from typing import Any, Final

from paceline_client.torch.targets.kind import Function, Hook, Job, Level, Target

_MAPPINGS: Final = "megatron.core.tensor_parallel.mappings"
_OF_FUNCTION: Final = {
    "_reduce": "tp-all-reduce",
    "_gather_along_last_dim": "tp-all-gather",
    "_gather_along_first_dim": "tp-all-gather",
    "_reduce_scatter_along_first_dim": "tp-reduce-scatter",
}


def _collective(op: str, job: Job, original: Function) -> Function:
    def collective(input_: Any, *args: Any, **kwargs: Any) -> Any:
        if not job.tap.on:
            return original(input_, *args, **kwargs)
        with job.tap.span(op):
            return original(input_, *args, **kwargs)

    return collective


def _hook(function: str, op: str) -> Hook:
    return Hook(
        f"{_MAPPINGS}:{function}",
        ("input_", "group"),
        Level.ALL,
        lambda job, original: _collective(op, job, original),
    )


TENSOR_PARALLEL: Final = Target(
    "tensor-parallel",
    "Megatron-Core's tensor parallelism",
    wanted=lambda job: job.megatron_config is not None and job.layout.tp > 1,
    hooks=tuple(_hook(function, op) for function, op in _OF_FUNCTION.items()),
)
