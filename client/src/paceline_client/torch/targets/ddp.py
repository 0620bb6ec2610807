"""DistributedDataParallel: the wait of the last backward, without a communication hook.

DDP accepts one communication hook only, and it would change how gradients are rounded. Autograd
calls the callbacks that are queued during a backward in order, and DDP's reducer waits for its
all-reduces in one of them: the wait is measured by a callback before it and one after it.

Every module that runs a forward while the job is recorded is watched, so that it does not matter
whether `attach` was given the wrapped model, or what a trainer had wrapped since.
"""

from __future__ import annotations

import functools
import sys
from typing import Any, Final

from paceline_client.torch.tap import GRADIENTS
from paceline_client.torch.targets.kind import Job, Level, Target, Undo

_MODULE: Final = "torch.nn.parallel.distributed"


class _Watch:
    """Queues the callbacks in each backward of a DDP module that reduces gradients."""

    def __init__(self, job: Job, module: Any) -> None:
        self._tap = job.tap
        self._module = module
        self._queued = False
        self._start: Any = None

    def attach(self) -> Undo:
        # It runs before the reducer's hook of the same parameter, so before its callback is queued.
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


def _install(job: Job, level: Level) -> Undo:
    if level < Level.P2P:
        return lambda: None
    kind = sys.modules[_MODULE].DistributedDataParallel
    compiler = sys.modules["torch"].compiler

    def record() -> Undo:
        watched: dict[int, Undo] = {}
        original = kind.forward

        @functools.wraps(original)
        def forward(module: Any, *args: Any, **kwargs: Any) -> Any:
            if id(module) not in watched and not compiler.is_compiling():
                watched[id(module)] = _Watch(job, module).attach()
            return original(module, *args, **kwargs)

        kind.forward = forward

        def stop() -> None:
            # If other code has wrapped it since, it stays and only calls the original.
            if kind.forward is forward:
                kind.forward = original
            for undo in watched.values():
                undo()

        return stop

    return job.while_recording(record)


DDP: Final = Target(
    "ddp",
    "DistributedDataParallel",
    wanted=lambda _: _MODULE in sys.modules,
    install=_install,
)
