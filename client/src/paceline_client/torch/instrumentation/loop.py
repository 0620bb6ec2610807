"""Hooks on any training loop: computations, optimizers, loaders, checkpoints, compilations."""

from __future__ import annotations

import gc
import logging
import sys
import threading
from contextlib import nullcontext
from functools import partial
from typing import Any, Final

import torch
from torch.optim import optimizer as torch_optimizer

from paceline_client.torch.instrumentation.base import (
    Function,
    Hook,
    Instrumentation,
    Job,
    Level,
    Undo,
)
from paceline_client.torch.tap import (
    BACKWARD,
    CHECKPOINT,
    COMPILE,
    DATA_LOADING,
    FORWARD,
    GC,
    OPTIMIZER,
    Tap,
)

_log = logging.getLogger("paceline_client")


class _Microbatches:
    """Counts the forward and backward passes of a step."""

    def __init__(self) -> None:
        self._step = -1
        self._passes = {FORWARD: 0, BACKWARD: 0}

    def next(self, op: str, step: int) -> int:
        """Return the microbatch of the next forward or backward pass."""
        if step != self._step:
            self._step = step
            self._passes = {FORWARD: 0, BACKWARD: 0}
        self._passes[op] += 1
        return self._passes[op] - 1


class _ModuleHook:
    """A hook of a module that is not included in copies and pickles of the module."""

    def __init__(self, function: Function) -> None:
        self._function = function

    def __call__(self, *args: Any) -> None:
        self._function(*args)

    def __deepcopy__(self, _memo: Any) -> Function:
        return nullcontext().__exit__

    def __reduce__(self) -> tuple[Any, ...]:
        # Pickled as a function of the standard library that accepts any arguments and does nothing,
        # so that a saved model can be loaded without the client.
        return getattr, (nullcontext(), "__exit__")


def _backward(job: Job, original: Function) -> Function:
    def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        tap = job.tap
        if not tap.on or tap.depth:
            return original(tensors, *args, **kwargs)
        with tap.computing(BACKWARD, job.shared(_Microbatches).next(BACKWARD, tap.step), None):
            return original(tensors, *args, **kwargs)

    return backward


def _install_forwards(job: Job, _level: Level) -> Undo:
    (model,) = job.models()
    tap = job.tap

    def record() -> Undo:
        spans: list[Any] = []

        def before(*_: Any) -> None:
            # Hooks do not run in code that is being compiled.
            if torch.compiler.is_compiling() or not tap.on or tap.depth:
                return
            if torch.is_grad_enabled():
                span = tap.computing(
                    FORWARD, job.shared(_Microbatches).next(FORWARD, tap.step), None
                )
                span.__enter__()
                spans.append(span)

        def after(*_: Any) -> None:
            if not torch.compiler.is_compiling() and spans:
                spans.pop().__exit__(None, None, None)

        # Hooks that run before FSDP's own hook, and after all other hooks.
        handles = [
            model.register_forward_pre_hook(_ModuleHook(before), prepend=True),
            model.register_forward_hook(_ModuleHook(after), always_call=True),
        ]

        def stop() -> None:
            after()
            for handle in handles:
                handle.remove()

        return stop

    return job.while_recording(record)


LOOP: Final = Instrumentation(
    "loop",
    "a hand-written training loop",
    wanted=lambda job: (
        job.schedule is None and job.megatron_config is None and len(job.models()) == 1
    ),
    hooks=(Hook("torch.autograd:backward", ("tensors",), Level.COMPUTE, _backward),),
    install=_install_forwards,
)


def _install_optimizers(job: Job, _level: Level) -> Undo:
    """Record optimizers through the global hooks of their steps.

    The rank's own work between its last recorded operation and the optimizer, such as unscaling and
    clipping gradients, is recorded with the optimizer.
    """
    tap = job.tap

    def record() -> Undo:
        starts: list[Any] = []

        def before(*_: Any) -> None:
            tap.flush()
            if not tap.on:
                starts.append(None)
                return
            start = tap.begins(OPTIMIZER)
            starts.append(start if tap.ended is None else tap.ended)

        def after(*_: Any) -> None:
            start = starts.pop() if starts else None
            # The step of a nested optimizer is part of the outer optimizer's step.
            if start is not None and tap.on and not starts:
                tap.flush()
                # Computations in a closure, such as Lightning's, are not part of the optimizer.
                tap.add(OPTIMIZER, start if tap.ended is None else tap.ended, tap.now())

        handles = [
            torch_optimizer.register_optimizer_step_pre_hook(before),
            torch_optimizer.register_optimizer_step_post_hook(after),
        ]

        def stop() -> None:
            for handle in handles:
                handle.remove()

        return stop

    return job.while_recording(record)


OPTIMIZERS: Final = Instrumentation(
    "optimizer", "torch.optim", wanted=lambda _: True, install=_install_optimizers
)


# Minimum duration of a recorded collection: those of the youngest generation take microseconds and
# occur hundreds of times per step.
_SHORTEST_NS: Final = 100_000


def _install_garbage(job: Job, _level: Level) -> Undo:
    tap = job.tap
    on_host = tap.timeline.name == "host"

    def record() -> Undo:
        started: list[Any] = []

        def collected(phase: str, info: dict[str, int]) -> None:
            if phase == "start":
                started.append(tap.now())
                return
            start = started.pop() if started else None
            if start is None or not tap.on:
                return
            end = tap.now()
            short = end - start < _SHORTEST_NS if on_host else info.get("generation", 0) == 0
            if not short:
                tap.add_aside(GC, start, end)

        gc.callbacks.append(collected)
        return lambda: gc.callbacks.remove(collected)

    return job.while_recording(record)


GARBAGE: Final = Instrumentation(
    "gc", "Python's garbage collector", wanted=lambda _: True, install=_install_garbage
)


def _between_steps(op: str, job: Job, original: Function) -> Function:
    """Record the calls of a function as operations between steps.

    On the main thread only: a checkpoint that another thread saves does not delay a step.
    """
    tap = job.tap

    def recorded(*args: Any, **kwargs: Any) -> Any:
        aside = not tap.on or tap.depth or not tap.takes
        if aside or threading.current_thread() is not threading.main_thread():
            return original(*args, **kwargs)
        with tap.between(op):
            return original(*args, **kwargs)

    return recorded


BETWEEN: Final = Instrumentation(
    "between",
    "loaders and checkpoints",
    wanted=lambda _: True,
    hooks=(
        Hook(
            "torch.utils.data.dataloader:_BaseDataLoaderIter.__next__",
            ("self",),
            Level.COMPUTE,
            partial(_between_steps, DATA_LOADING),
        ),
        Hook("torch:save", ("obj", "f"), Level.COMPUTE, partial(_between_steps, CHECKPOINT)),
        Hook(
            "torch.distributed.checkpoint:save",
            ("state_dict",),
            Level.COMPUTE,
            partial(_between_steps, CHECKPOINT),
        ),
    ),
)


# Imported only in jobs that compile, because the import takes a second.
_CALLBACKS: Final = "torch._dynamo.callback"


class _Compilations:
    """Callbacks of TorchDynamo at the start and the end of a compilation, including nested ones.

    While code is compiled, a rank neither computes nor waits for others. In sessions a compilation
    is part of the computation in which it happens; the pulse separates it, so that a rank that
    compiles again is not taken for a slow one.
    """

    def __init__(self) -> None:
        self._tap: Tap | None = None
        self._before: tuple[str, int] | None = None
        self._start: Any = None
        self._begun = False

    def register(self, tap: Tap) -> None:
        """Register the callbacks if TorchDynamo is imported and has not registered them."""
        self._tap = tap
        handler = getattr(sys.modules.get(_CALLBACKS), "callback_handler", None)
        try:
            # A reset of the compiler removes the callbacks.
            if handler is not None and self._begins not in handler.start_callbacks:
                handler.register_start_callback(self._begins)
                handler.register_end_callback(self._ends)
        except Exception as error:  # noqa: BLE001 - of another version
            _log.warning("compilations are not told apart: %r", error)

    def unregister(self) -> None:
        """Remove the callbacks."""
        self._tap = None
        handler = getattr(sys.modules.get(_CALLBACKS), "callback_handler", None)
        if handler is not None and self._begins in getattr(handler, "start_callbacks", ()):
            handler.remove_start_callback(self._begins)
            handler.remove_end_callback(self._ends)

    def _begins(self, *_: Any) -> None:
        tap = self._tap
        if tap is None or not tap.on:
            return
        self._before = tap.phase
        self._start = tap.begins(COMPILE)
        self._begun = True

    def _ends(self, *_: Any) -> None:
        tap = self._tap
        begun, self._begun = self._begun, False
        if tap is None or not begun:
            return
        if self._start is not None and tap.on:
            tap.add_to_pulse(COMPILE, self._start, tap.now())
        if self._before is not None:
            tap.resumes(self._before[0])


def _compile(job: Job, original: Function) -> Function:
    def compile_(*args: Any, **kwargs: Any) -> Any:
        compiled = original(*args, **kwargs)
        job.shared(_Compilations).register(job.tap)
        return compiled

    return compile_


def _install_compiling(job: Job, _level: Level) -> Undo:
    compilations = job.shared(_Compilations)
    compilations.register(job.tap)
    return compilations.unregister


COMPILING: Final = Instrumentation(
    "compile",
    "TorchDynamo",
    wanted=lambda _: True,
    hooks=(Hook("torch:compile", ("model",), Level.COMPUTE, _compile),),
    install=_install_compiling,
)
