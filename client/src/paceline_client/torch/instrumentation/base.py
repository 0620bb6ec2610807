"""Hooks on a framework's functions, and the job whose operations they record."""

from __future__ import annotations

import enum
import functools
import importlib
import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from paceline_client.torch.layout import Layout
from paceline_client.torch.tap import Tap

_log = logging.getLogger("paceline_client")

Function = Callable[..., Any]
Undo = Callable[[], None]
_Shared = TypeVar("_Shared")


class Level(enum.IntEnum):
    """How much is recorded; each level includes the levels before it."""

    COMPUTE = 0  # forward, backward, optimizer and garbage collection
    P2P = 1  # transfers between stages and data-parallel collectives
    ALL = 2  # tensor-, context- and expert-parallel collectives


@dataclass(frozen=True)
class Job:
    """The parts of a job on this rank that hooks need."""

    tap: Tap
    layout: Layout
    model: Any = None
    schedule: Any = None
    megatron_config: Any = None
    rank: int = 0
    # The kinds of process groups, ``ep``, ``cp`` or ``dp``, by group name
    groups: Mapping[str, str] = field(default_factory=dict)
    # Functions called on the training's thread when recording begins; the functions that they
    # return are called when it ends
    on_record: list[Callable[[], Undo]] = field(default_factory=list)
    # Functions called with the steps of a session when it ends; the mappings that they return are
    # added to its metadata
    notes: list[Callable[[range], Mapping[str, Any]]] = field(default_factory=list)
    _shared: dict[type, Any] = field(default_factory=dict)

    def while_recording(self, begin: Callable[[], Undo]) -> Undo:
        """Call `begin` whenever recording begins, until the returned function is called."""
        self.on_record.append(begin)
        return lambda: self.on_record.remove(begin)

    def shared(self, kind: type[_Shared]) -> _Shared:
        """Return the job's instance of a class, which several hooks share."""
        if kind not in self._shared:
            self._shared[kind] = kind()
        shared: _Shared = self._shared[kind]
        return shared

    def models(self) -> list[Any]:
        """Return the model's chunks on this rank."""
        if self.model is None:
            return []
        return list(self.model) if isinstance(self.model, list | tuple) else [self.model]


@dataclass(frozen=True)
class Hook:
    """Replaces a framework's function by a function that records the operation and calls it."""

    where: str  # ``package.module:Class.function`` or ``package.module:function``
    parameters: Sequence[str]  # the function's first ones, which the replacement uses
    level: Level  # the lowest level with this hook
    wrap: Callable[[Job, Function], Function]  # returns the replacement

    def function(self) -> Function:
        """Return the framework's function.

        Raises `ImportError` or `AttributeError` if this version does not have it.
        """
        owner, name = self._owner()
        function: Function = getattr(owner, name)
        return function

    def fault(self) -> str | None:
        """Return why the hook does not fit this version of the framework; None if it fits."""
        try:
            actual = list(inspect.signature(self.function()).parameters)
        except (ImportError, AttributeError, TypeError, ValueError) as error:
            return f"{self.where}: {error}"
        expected = list(self.parameters)
        if actual[: len(expected)] != expected:
            return f"{self.where} takes ({', '.join(actual)}), not ({', '.join(expected)}, …)"
        return None

    def attach(self, job: Job) -> Undo:
        """Replace the function; return a function that restores it."""
        owner, name = self._owner()
        original = getattr(owner, name)
        replacement = functools.wraps(original)(self.wrap(job, original))
        setattr(owner, name, replacement)

        def undo() -> None:
            # If other code has wrapped the replacement since, it remains and only calls the
            # original.
            if getattr(owner, name) is replacement:
                setattr(owner, name, original)

        return undo

    def _owner(self) -> tuple[Any, str]:
        module, _, path = self.where.partition(":")
        owner: Any = importlib.import_module(module)
        *classes, name = path.split(".")
        for part in classes:
            owner = getattr(owner, part)
        return owner, name


@dataclass(frozen=True)
class Instrumentation:
    """A framework, or a part of it, whose operations are recorded."""

    name: str  # for metadata
    title: str  # for messages
    wanted: Callable[[Job], bool]  # whether the job uses it
    hooks: Sequence[Hook] = ()
    # Installs callbacks if hooks do not suffice; returns a function that removes the callbacks.
    install: Callable[[Job, Level], Undo] | None = None

    def attach(
        self, job: Job, level: Level, hooks: Level | None = None
    ) -> tuple[list[Undo], list[str]]:
        """Attach all hooks that fit; return functions to remove them, and the others' names.

        `hooks` is the level of the hooks, if it differs from the level of sessions.
        """
        undo: list[Undo] = []
        left_out: list[str] = []
        for hook in self.hooks:
            if hook.level > (level if hooks is None else hooks):
                continue
            fault = hook.fault()
            if fault is None:
                undo.append(hook.attach(job))
            else:
                left_out.append(hook.where)
                _log.warning("not recorded, unknown version: %s", fault)
        if self.install is not None:
            try:
                undo.append(self.install(job, level))
            except Exception as error:  # noqa: BLE001 - raised by the framework
                left_out.append(self.name)
                _log.warning("not recorded: %s (%r)", self.title, error)
        return undo, left_out
