"""TorchDynamo: while code is compiled, a rank neither computes nor waits for others.

In sessions a compilation is part of the computation that it happens in, as it always was; the pulse
has it apart, so that a rank that compiles anew is not taken for a slow one.
"""

from __future__ import annotations

import logging
import sys
from typing import Any, Final

from paceline_client.torch.tap import COMPILE, Tap
from paceline_client.torch.targets.kind import Function, Hook, Job, Level, Target, Undo

_log = logging.getLogger("paceline_client")

# It is imported by who compiles, and takes a second.
_CALLBACKS: Final = "torch._dynamo.callback"


class _Compilations:
    """What TorchDynamo calls when a compilation begins and when it ends, all inner ones within."""

    def __init__(self) -> None:
        self._tap: Tap | None = None
        self._before: tuple[str, int] | None = None
        self._start: Any = None
        self._begun = False

    def watch(self, tap: Tap) -> None:
        """Have TorchDynamo call this, as soon as it is there."""
        self._tap = tap
        handler = getattr(sys.modules.get(_CALLBACKS), "callback_handler", None)
        try:
            # Resetting the compiler forgets who is to be called.
            if handler is not None and self._begins not in handler.start_callbacks:
                handler.register_start_callback(self._begins)
                handler.register_end_callback(self._ends)
        except Exception as error:  # noqa: BLE001 - of another version
            _log.warning("compilations are not told apart: %r", error)

    def leave(self) -> None:
        """Have it call this no more."""
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
            tap.goes_on(self._before[0])


def _asked(job: Job, original: Function) -> Function:
    def compile_(*args: Any, **kwargs: Any) -> Any:
        compiled = original(*args, **kwargs)
        job.one(_Compilations).watch(job.tap)
        return compiled

    return compile_


def _install(job: Job, _level: Level) -> Undo:
    found = job.one(_Compilations)
    found.watch(job.tap)
    return found.leave


COMPILING: Final = Target(
    "compile",
    "TorchDynamo",
    wanted=lambda _: True,
    hooks=(Hook("torch:compile", ("model",), Level.COMPUTE, _asked),),
    install=_install,
)
