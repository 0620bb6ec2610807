"""What a target is: the functions of a framework that are watched, and how."""

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
_Kept = TypeVar("_Kept")


class Level(enum.IntEnum):
    """How much is recorded; each level has what is below it too.

    ``COMPUTE`` is forward, backward, optimizer and garbage collection, ``P2P`` adds transfers
    between stages and collectives of data-parallel ranks, ``ALL`` those of tensor-, context- and
    expert-parallel ranks.
    """

    COMPUTE = 0
    P2P = 1
    ALL = 2


@dataclass(frozen=True)
class Job:
    """What `attach` was given."""

    tap: Tap
    layout: Layout
    # model, schedule, megatron_config: as given, or None
    model: Any = None
    schedule: Any = None
    megatron_config: Any = None
    rank: int = 0  # this process's
    # What process groups are of, ``ep`` or ``cp``, by their names.
    groups: Mapping[str, str] = field(default_factory=dict)
    # Called on the training's thread when recording begins; what they return, when it ends.
    on_record: list[Callable[[], Undo]] = field(default_factory=list)
    # Called when a session ends, with its steps; what they return is added to its metadata.
    notes: list[Callable[[range], Mapping[str, Any]]] = field(default_factory=list)
    _kept: dict[type, Any] = field(default_factory=dict)

    def while_recording(self, begin: Callable[[], Undo]) -> Undo:
        """Call `begin` whenever recording begins, until what is returned is called."""
        self.on_record.append(begin)
        return lambda: self.on_record.remove(begin)

    def one(self, kind: type[_Kept]) -> _Kept:
        """Return this job's only object of a kind, which several hooks share."""
        if kind not in self._kept:
            self._kept[kind] = kind()
        kept: _Kept = self._kept[kind]
        return kept

    def models(self) -> list[Any]:
        """Return the model's chunks on this rank."""
        if self.model is None:
            return []
        return list(self.model) if isinstance(self.model, list | tuple) else [self.model]


@dataclass(frozen=True)
class Hook:
    """A function of a framework that is replaced by one that records and calls it."""

    where: str  # ``package.module:Class.function`` or ``package.module:function``
    # Those that the replacement knows by name; they must be the function's first.
    parameters: Sequence[str]
    level: Level  # from which on it is attached
    # Takes the job and the function, and returns the replacement.
    wrap: Callable[[Job, Function], Function]

    def function(self) -> Function:
        """Return the framework's function.

        Raises
        ------
        ImportError, AttributeError
            If this version does not have it.
        """
        owner, name = self._owner()
        found: Function = getattr(owner, name)
        return found

    def fault(self) -> str | None:
        """Return why it does not fit this version of the framework; None where it does."""
        try:
            known = list(inspect.signature(self.function()).parameters)
        except (ImportError, AttributeError, TypeError, ValueError) as error:
            return f"{self.where}: {error}"
        if known[: len(self.parameters)] != list(self.parameters):
            return f"{self.where} takes ({', '.join(known)}), not ({', '.join(self.parameters)}, …)"
        return None

    def attach(self, job: Job) -> Undo:
        """Replace the function, and return what puts it back."""
        owner, name = self._owner()
        original = getattr(owner, name)
        replacement = functools.wraps(original)(self.wrap(job, original))
        setattr(owner, name, replacement)

        def undo() -> None:
            # Other code may have wrapped it since: then it stays, and calls through.
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
class Target:
    """A framework, or a part of one, that is attached to."""

    # name, title: for metadata and logs; for people
    name: str
    title: str
    wanted: Callable[[Job], bool]  # whether the job has it
    hooks: Sequence[Hook] = ()
    # What takes more than hooks; returns what takes it back.
    install: Callable[[Job, Level], Undo] | None = None

    def attach(self, job: Job, level: Level) -> tuple[list[Undo], list[str]]:
        """Attach what fits.

        Returns
        -------
        undo : list of callable
        left_out : list of str
            What did not fit, by name.
        """
        undo: list[Undo] = []
        left_out: list[str] = []
        for hook in self.hooks:
            if hook.level > level:
                continue
            fault = hook.fault()
            if fault is None:
                undo.append(hook.attach(job))
            else:
                left_out.append(hook.where)
                _log.warning("left out, since it does not fit this version: %s", fault)
        if self.install is not None:
            try:
                undo.append(self.install(job, level))
            except Exception as error:  # noqa: BLE001 - of the framework's making
                left_out.append(self.name)
                _log.warning("left out: %s (%r)", self.title, error)
        return undo, left_out
