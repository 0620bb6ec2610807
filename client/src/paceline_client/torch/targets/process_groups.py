"""Collectives of data-parallel ranks, by whoever calls them.

A loop of the job's own reduces its gradients with `torch.distributed.all_reduce`, DeepSpeed's
engine and the norm of sharded gradients do so in their own ways. All of them call a method of the
process group, or a functional collective and `wait_tensor`; what the training waits there is
recorded, and nothing that goes on meanwhile.
"""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final

import torch

from paceline_client.torch.groups import DATA
from paceline_client.torch.tap import GRADIENTS, PARAMETERS
from paceline_client.torch.targets.kind import Function, Job, Level, Target, Undo

_log = logging.getLogger("paceline_client")

# Methods of a process group, by what they are recorded as; a version has some of them.
_METHODS: Final[Mapping[str, str]] = {
    "allreduce": GRADIENTS,
    "allreduce_coalesced": GRADIENTS,
    "reduce": GRADIENTS,
    "reduce_scatter": GRADIENTS,
    "_reduce_scatter_base": GRADIENTS,
    "reduce_scatter_single": GRADIENTS,
    "reduce_scatter_tensor_coalesced": GRADIENTS,
    "reduce_scatter_single_coalesced": GRADIENTS,
    "barrier": GRADIENTS,
    "allgather": PARAMETERS,
    "_allgather_base": PARAMETERS,
    "all_gather_single": PARAMETERS,
    "allgather_coalesced": PARAMETERS,
    "allgather_into_tensor_coalesced": PARAMETERS,
    "all_gather_single_coalesced": PARAMETERS,
    "broadcast": PARAMETERS,
}
# Functional collectives, with the position of their group.
_FUNCTIONAL: Final = "torch.distributed._functional_collectives"
_FUNCTIONS: Final[Mapping[str, tuple[str, int]]] = {
    "all_reduce": (GRADIENTS, 2),
    "all_reduce_coalesced": (GRADIENTS, 2),
    "reduce_scatter_tensor": (GRADIENTS, 3),
    "reduce_scatter_single": (GRADIENTS, 3),
    "reduce_scatter_tensor_coalesced": (GRADIENTS, 3),
    "reduce_scatter_single_coalesced": (GRADIENTS, 3),
    "all_gather_tensor": (PARAMETERS, 2),
    "all_gather_single": (PARAMETERS, 2),
    "all_gather_into_tensor_coalesced": (PARAMETERS, 1),
    "all_gather_single_coalesced": (PARAMETERS, 1),
    "broadcast": (PARAMETERS, 2),
}
# The attribute of a functional collective's result that says what it is recorded as.
_LABEL: Final = "_paceline_op"


class _Awaited:
    """A work whose wait is recorded, from `start` on if nothing else runs meanwhile."""

    def __init__(self, job: Job, op: str, work: Any, start: Any) -> None:
        self._job = job
        self._op = op
        self._work = work
        self._start = start

    def wait(self, *timeout: Any) -> Any:
        """Wait as `Work.wait` does."""
        tap = self._job.tap
        if not tap.on or tap.quiet:
            return self._work.wait(*timeout)
        start = tap.begins(self._op) if self._start is None else self._start
        self._start = None
        result = self._work.wait(*timeout)
        tap.ends_waiting(self._op, start)
        return result

    def __getattr__(self, name: str) -> Any:
        return getattr(self._work, name)


def _is_recorded(job: Job, group: Any) -> bool:
    """Return whether a group, or the one of that name, is one of data-parallel ranks."""
    kind = job.groups.get(str(getattr(group, "group_name", group)))
    # Without other parallelism every group is.
    return kind == DATA if kind is not None else job.layout.world == job.layout.dp


def _method(job: Job, op: str, original: Function) -> Function:
    def collective(group: Any, *args: Any, **kwargs: Any) -> Any:
        tap = job.tap
        if not tap.on or tap.quiet or torch.compiler.is_compiling() or not _is_recorded(job, group):
            return original(group, *args, **kwargs)
        start = tap.begins(op)
        work = original(group, *args, **kwargs)
        options = kwargs.get("opts", args[-1] if args else None)
        waits = not getattr(options, "asyncOp", True)
        if work is None:
            if waits:
                tap.ends_waiting(op, start)
            return work
        return _Awaited(job, op, work, start if waits else None)

    return collective


def _function(job: Job, op: str, group_at: int, original: Function) -> Function:
    def collective(*args: Any, **kwargs: Any) -> Any:
        # First, so that what is compiled does not depend on whether the job is recorded.
        if torch.compiler.is_compiling() or not job.tap.on or job.tap.quiet:
            return original(*args, **kwargs)
        result = original(*args, **kwargs)
        try:
            group = kwargs.get("group", args[group_at] if len(args) > group_at else None)
            if _is_recorded(job, sys.modules[_FUNCTIONAL]._resolve_group(group)):
                for tensor in result if isinstance(result, list) else [result]:
                    # What waits is given the tensor inside.
                    setattr(getattr(tensor, "elem", tensor), _LABEL, op)
        except Exception as error:  # noqa: BLE001 - the training continues
            _log.debug("a collective is not recorded: %r", error)
        return result

    return collective


def _wait(job: Job, original: Function) -> Function:
    def wait_tensor(tensor: Any) -> Any:
        if torch.compiler.is_compiling() or not job.tap.on:
            return original(tensor)
        op = getattr(tensor, _LABEL, None)
        if op is None:
            return original(tensor)
        tap = job.tap
        start = tap.begins(op)
        result = original(tensor)
        tap.ends_waiting(op, start)
        return result

    return wait_tensor


def _replace(owner: Any, name: str, wrap: Callable[[Function], Function]) -> Undo:
    # A method of a class written in C++ is bound only as its class has it.
    kept, original = vars(owner)[name], getattr(owner, name)
    replacement = functools.wraps(original)(wrap(original))
    setattr(owner, name, replacement)

    def undo() -> None:
        # If other code has wrapped it since, it stays and only calls the original.
        if vars(owner)[name] is replacement:
            setattr(owner, name, kept)

    return undo


def _install(job: Job, level: Level) -> Undo:
    if level < Level.P2P:
        return lambda: None
    group = torch.distributed.ProcessGroup

    def record() -> Undo:
        return _joined(
            _replace(group, name, partial(_method, job, op))
            for name, op in _METHODS.items()
            if name in vars(group)
        )

    return _joined([_install_functional(job), job.while_recording(record)])


def _install_functional(job: Job) -> Undo:
    """Replace functional collectives once: compiled code would be compiled anew for each window."""
    functional = sys.modules.get(_FUNCTIONAL)
    if functional is None or not hasattr(functional, "_resolve_group"):
        return lambda: None
    undo = [
        _replace(functional, name, partial(_function, job, op, group_at))
        for name, (op, group_at) in _FUNCTIONS.items()
        if name in vars(functional)
    ]
    return _joined([*undo, _replace(functional, "wait_tensor", partial(_wait, job))])


def _joined(parts: Iterable[Undo]) -> Undo:
    """Return what reverts all parts, the last one first."""
    undo = list(parts)

    def revert() -> None:
        for one in reversed(undo):
            one()

    return revert


PROCESS_GROUPS: Final = Target(
    "process-groups",
    "collectives of data-parallel process groups",
    # Megatron-Core's own hooks know what each of its collectives is for.
    wanted=lambda job: job.megatron_config is None and job.layout.dp > 1,
    install=_install,
)
