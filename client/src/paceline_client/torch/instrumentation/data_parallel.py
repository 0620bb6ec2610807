"""Hooks on DistributedDataParallel (DDP) and FSDP2 (`fully_shard`).

DDP: the wait at the end of a backward is recorded, without a communication hook. DDP accepts one
communication hook only, and it would change how gradients are rounded. Autograd calls the callbacks
that are queued during a backward in order, and DDP's reducer waits for its all-reduces in one of
them: the wait is measured by a callback before it and one after it. All modules that run a forward
while the job is recorded are instrumented, so that it does not matter whether `attach` was given
the wrapped model, or what a trainer has wrapped since.

FSDP2: all-gathers of parameters and reductions of gradients. Inside a computation, only waits are
recorded, as nested operations: an all-gather in parallel with a computation does not slow it down.
"""

from __future__ import annotations

import functools
import sys
from typing import Any, Final

from paceline_client.torch.instrumentation.base import (
    Function,
    Hook,
    Instrumentation,
    Job,
    Level,
    Undo,
)
from paceline_client.torch.tap import GRADIENTS, PARAMETERS

_DDP_MODULE: Final = "torch.nn.parallel.distributed"


class _BackwardCallbacks:
    """Queues the callbacks of each backward pass of a DDP module that reduces gradients."""

    def __init__(self, job: Job, module: Any) -> None:
        self._tap = job.tap
        self._module = module
        self._queued = False
        self._start: Any = None

    def attach(self) -> Undo:
        # This hook runs before the reducer's hook on the same parameter, so its callback is queued
        # first.
        last = [p for p in self._module.module.parameters() if p.requires_grad][-1]
        undo: Undo = last.register_post_accumulate_grad_hook(self._gradient_ready).remove
        return undo

    def _gradient_ready(self, _parameter: Any) -> None:
        if self._queued or not self._tap.on or not self._module.require_backward_grad_sync:
            return
        self._queued = True
        self._queue(self._computed)

    def _computed(self) -> None:
        self._queued = False
        self._start = self._tap.begins(GRADIENTS) if self._tap.on else None
        self._queue(self._reduced)

    def _reduced(self) -> None:
        if self._tap.on:
            self._tap.ends(GRADIENTS, self._start)

    @staticmethod
    def _queue(callback: Any) -> None:
        sys.modules["torch"].autograd.Variable._execution_engine.queue_callback(callback)


def _install_ddp(job: Job, level: Level) -> Undo:
    if level < Level.P2P:
        return lambda: None
    kind = sys.modules[_DDP_MODULE].DistributedDataParallel
    compiler = sys.modules["torch"].compiler

    def record() -> Undo:
        watched: dict[int, Undo] = {}
        original = kind.forward

        @functools.wraps(original)
        def forward(module: Any, *args: Any, **kwargs: Any) -> Any:
            if id(module) not in watched and not compiler.is_compiling():
                watched[id(module)] = _BackwardCallbacks(job, module).attach()
            return original(module, *args, **kwargs)

        kind.forward = forward

        def stop() -> None:
            # If other code has wrapped the replacement since, it remains and only calls the
            # original.
            if kind.forward is forward:
                kind.forward = original
            for undo in watched.values():
                undo()

        return stop

    return job.while_recording(record)


DDP: Final = Instrumentation(
    "ddp",
    "DistributedDataParallel",
    wanted=lambda _: _DDP_MODULE in sys.modules,
    install=_install_ddp,
)


_FSDP2_MODULE: Final = "torch.distributed.fsdp._fully_shard._fsdp_param_group"
_GROUP: Final = f"{_FSDP2_MODULE}:FSDPParamGroup"


def _synchronous(group: Any, result: Any) -> bool:
    """Return whether an all-gather is complete when its call returns, as on CPUs."""
    return result.all_gather_work is None and group.device.type == "cpu"


def _unshard(job: Job, original: Function) -> Function:
    def unshard(group: Any, *args: Any, **kwargs: Any) -> Any:
        tap = job.tap
        if not tap.on or group._all_gather_result is not None:
            return original(group, *args, **kwargs)
        start = tap.begins(PARAMETERS)
        with tap.quietly():
            value = original(group, *args, **kwargs)
        result = group._all_gather_result
        if result is None:
            return value  # no parameters to gather
        if _synchronous(group, result):
            tap.ends(PARAMETERS, start)
        elif tap.depth == 0 and result.all_gather_work is not None:
            # The wait precedes the computation. FSDP waits for the work itself.
            tap.watch(PARAMETERS, result.all_gather_work, start)
        return value

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
        # On a GPU this queues the reduction, which runs in parallel with the backward pass. Before
        # that, the computing stream waits until earlier reductions have freed their buffers.
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
        # The backward pass waits here for the remaining reductions.
        with tap.span(GRADIENTS):
            return original(state, *args, **kwargs)

    return root_post_backward_final_callback


FSDP2: Final = Instrumentation(
    "fsdp2",
    "FSDP2 (fully_shard)",
    wanted=lambda _: _FSDP2_MODULE in sys.modules,
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
