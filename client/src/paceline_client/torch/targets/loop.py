"""A hand-written loop over microbatches, without a pipeline: forwards and backwards."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, Final

import torch

from paceline_client.torch.tap import BACKWARD, FORWARD
from paceline_client.torch.targets.kind import Function, Hook, Job, Level, Target, Undo


class _Microbatches:
    """Counts the forwards and backwards of a step."""

    def __init__(self) -> None:
        self._step = -1
        self._passes = {FORWARD: 0, BACKWARD: 0}

    def next(self, op: str, step: int) -> int:
        """Return the microbatch of the next forward or backward."""
        if step != self._step:
            self._step = step
            self._passes = {FORWARD: 0, BACKWARD: 0}
        self._passes[op] += 1
        return self._passes[op] - 1


class _Called:
    """A hook of a module, of which copies of the module, also pickled ones, have none."""

    def __init__(self, function: Function) -> None:
        self._function = function

    def __call__(self, *given: Any) -> None:
        self._function(*given)

    def __deepcopy__(self, _known: Any) -> Function:
        return nullcontext().__exit__

    def __reduce__(self) -> tuple[Any, ...]:
        # Something of the standard library that takes anything and does nothing: a saved model is
        # loaded where the client is not.
        return getattr, (nullcontext(), "__exit__")


def _backward(job: Job, original: Function) -> Function:
    def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        tap = job.tap
        if not tap.on or tap.depth:
            return original(tensors, *args, **kwargs)
        with tap.computing(BACKWARD, job.one(_Microbatches).next(BACKWARD, tap.step), None):
            return original(tensors, *args, **kwargs)

    return backward


def _install(job: Job, _level: Level) -> Undo:
    (model,) = job.models()
    tap = job.tap

    def record() -> Undo:
        spans: list[Any] = []

        def before(*_: Any) -> None:
            # Inside of code that is being compiled, nothing runs.
            if torch.compiler.is_compiling() or not tap.on or tap.depth:
                return
            if torch.is_grad_enabled():
                span = tap.computing(FORWARD, job.one(_Microbatches).next(FORWARD, tap.step), None)
                span.__enter__()
                spans.append(span)

        def after(*_: Any) -> None:
            if not torch.compiler.is_compiling() and spans:
                spans.pop().__exit__(None, None, None)

        # Before FSDP's own hook, and after all others.
        handles = [
            model.register_forward_pre_hook(_Called(before), prepend=True),
            model.register_forward_hook(_Called(after), always_call=True),
        ]

        def stop() -> None:
            after()
            for handle in handles:
                handle.remove()

        return stop

    return job.while_recording(record)


LOOP: Final = Target(
    "loop",
    "a hand-written training loop",
    wanted=lambda job: (
        job.schedule is None and job.megatron_config is None and len(job.models()) == 1
    ),
    hooks=(Hook("torch.autograd:backward", ("tensors",), Level.COMPUTE, _backward),),
    install=_install,
)
