"""FSDP2 (`fully_shard`): all-gathers of parameters, reductions of gradients.

Inside a computation, only its waits are recorded, as nested operations: an all-gather in parallel
with a computation does not slow it down.
"""

from __future__ import annotations

import sys
from typing import Any, Final

from paceline_client.torch.tap import GRADIENTS, PARAMETERS
from paceline_client.torch.targets.kind import Function, Hook, Job, Level, Target

_MODULE: Final = "torch.distributed.fsdp._fully_shard._fsdp_param_group"
_GROUP: Final = f"{_MODULE}:FSDPParamGroup"


def _synchronous(group: Any, result: Any) -> bool:
    """Whether an all-gather is complete when its call returns, as on CPUs."""
    return result.all_gather_work is None and group.device.type == "cpu"


def _unshard(job: Job, original: Function) -> Function:
    def unshard(group: Any, *args: Any, **kwargs: Any) -> Any:
        tap = job.tap
        if not tap.on or group._all_gather_result is not None:
            return original(group, *args, **kwargs)
        start = tap.begins(PARAMETERS)
        with tap.quietly():
            answer = original(group, *args, **kwargs)
        result = group._all_gather_result
        if result is None:
            return answer  # nothing to gather
        if _synchronous(group, result):
            tap.ends(PARAMETERS, start)
        elif tap.depth == 0 and result.all_gather_work is not None:
            # Before the computation. FSDP waits for the work itself.
            tap.watch(PARAMETERS, result.all_gather_work, start)
        return answer

    return unshard


def _wait_for_unshard(job: Job, original: Function) -> Function:
    def wait_for_unshard(group: Any, *args: Any, **kwargs: Any) -> Any:
        tap = job.tap
        result = group._all_gather_result
        if not tap.on or tap.depth == 0 or result is None or _synchronous(group, result):
            return original(group, *args, **kwargs)
        with tap.span(PARAMETERS):
            return original(group, *args, **kwargs)

    return wait_for_unshard


def _post_backward(job: Job, original: Function) -> Function:
    def post_backward(group: Any, *args: Any, **kwargs: Any) -> Any:
        tap = job.tap
        # On a GPU this queues the reduction, which runs in parallel with the backward. But before
        # that the computing stream waits until earlier ones have left their buffers.
        if not tap.on or tap.quiet or not group.reduce_grads:
            return original(group, *args, **kwargs)
        with tap.span(GRADIENTS):
            return original(group, *args, **kwargs)

    return post_backward


def _final(job: Job, original: Function) -> Function:
    def root_post_backward_final_callback(state: Any, *args: Any, **kwargs: Any) -> Any:
        tap = job.tap
        on_cpu = getattr(getattr(state, "_device", None), "type", "cpu") == "cpu"
        if not tap.on or tap.quiet or on_cpu:
            return original(state, *args, **kwargs)
        # Here the backward waits for the remaining reductions.
        with tap.span(GRADIENTS):
            return original(state, *args, **kwargs)

    return root_post_backward_final_callback


FSDP2: Final = Target(
    "fsdp2",
    "FSDP2 (fully_shard)",
    wanted=lambda _: _MODULE in sys.modules,
    hooks=(
        Hook(f"{_GROUP}.unshard", ("self", "async_op"), Level.P2P, _unshard),
        Hook(f"{_GROUP}.wait_for_unshard", ("self",), Level.P2P, _wait_for_unshard),
        Hook(f"{_GROUP}.post_backward", ("self",), Level.P2P, _post_backward),
        Hook(
            "torch.distributed.fsdp._fully_shard._fsdp_state:FSDPState._root_post_backward_final_callback",
            ("self",),
            Level.P2P,
            _final,
        ),
    ),
)
