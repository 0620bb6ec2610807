"""Hooks on collectives of expert-, context- and data-parallel process groups.

For expert- and context-parallel groups, the group determines what a collective is for. Therefore
one hook per function of `torch.distributed` is enough for Megatron-Core's token dispatcher,
Transformer Engine's attention and hand-written code. Ring exchanges between ranks are no
collectives and are not recorded.

For data-parallel groups, a job's own loop reduces its gradients by `torch.distributed.all_reduce`;
DeepSpeed's engine and the norm of sharded gradients do so in their own ways. All of them call a
method of the process group, or a functional collective and `wait_tensor`; the waits of the training
there are recorded, and collectives that run meanwhile are not.
"""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

import torch

from paceline_client.torch.instrumentation.base import (
    Function,
    Hook,
    Instrumentation,
    Job,
    Level,
    Undo,
)
from paceline_client.torch.layout import CONTEXT, DATA, EXPERT
from paceline_client.torch.tap import GRADIENTS, PARAMETERS

_log = logging.getLogger("paceline_client")

# Number of steps of a session in which tokens are counted; all ranks choose the same steps.
_STEPS_COUNTED: Final = 8
_TOKENS_KEY: Final = "expert_tokens"
# Names of operations, without the prefix for the kind of the group.
_ALL_TO_ALL: Final = "all-to-all"
_ALL_GATHER: Final = "all-gather"
_REDUCE_SCATTER: Final = "reduce-scatter"


class _Experts:
    """Counts the exchanges with experts in a step, and the tokens for this rank's experts."""

    def __init__(self) -> None:
        self._step = -1
        self._exchanges = 0
        self.tokens: dict[int, int] = {}

    def exchanged(self, step: int, tokens: int) -> None:
        """Count an exchange with experts.

        Exchanges alternate: the first, third, … send tokens to the experts, the others return the
        results. In a backward pass they carry gradients of the same tokens, which are not counted.
        """
        if step != self._step:
            self._step, self._exchanges = step, 0
        brings, self._exchanges = self._exchanges % 2 == 0, self._exchanges + 1
        in_backward = torch._C._current_graph_task_id() != -1
        if brings and not in_backward:
            self.tokens[step] = self.tokens.get(step, 0) + tokens


def _group_collective(
    what: str, parameters: tuple[str, ...], job: Job, original: Function
) -> Function:
    """Record a collective of an expert- or context-parallel group."""
    output_at, input_at = 0, 1
    group_at = parameters.index("group")

    def argument(args: tuple[Any, ...], kwargs: Mapping[str, Any], at: int) -> Any:
        return args[at] if len(args) > at else kwargs.get(parameters[at])

    def collective(*args: Any, **kwargs: Any) -> Any:
        tap = job.tap
        # Hooks do not run in code that is being compiled.
        if not tap.on or torch.compiler.is_compiling():
            return original(*args, **kwargs)
        group = argument(args, kwargs, group_at) or torch.distributed.group.WORLD
        kind = job.groups.get(str(getattr(group, "group_name", "")))
        tensors = argument(args, kwargs, input_at)
        first = tensors[0] if isinstance(tensors, list) else tensors
        if kind is None or not _carries_activations(kind, what, first):
            return original(*args, **kwargs)
        if kind == EXPERT and tap.sink is not None and not tap.hidden:
            output = argument(args, kwargs, output_at)
            rows = sum(map(len, output)) if isinstance(output, list) else len(output)
            job.shared(_Experts).exchanged(tap.step, rows)
        op = f"{kind}-{what}"
        start = tap.begins(op)
        work = original(*args, **kwargs)
        if work is None:
            tap.ends(op, start)
            return None
        return tap.watch(op, work, start)

    return collective


def _carries_activations(kind: str, what: str, tensor: Any) -> bool:
    if kind == EXPERT:
        # Tokens are rows of a floating-point matrix; probabilities and counts are not.
        return bool(what == _ALL_TO_ALL and tensor.is_floating_point() and tensor.dim() > 1)
    return bool(tensor.is_floating_point())


def _hook(function: str, what: str, parameters: tuple[str, ...]) -> Hook:
    return Hook(
        f"torch.distributed:{function}",
        parameters,
        Level.ALL,
        lambda job, original: _group_collective(what, parameters, job, original),
    )


def _install_token_counts(job: Job, level: Level) -> Undo:
    """Add the number of tokens for this rank's experts to the metadata of sessions."""
    if level < Level.ALL or EXPERT not in job.groups.values():
        return lambda: None

    def note(steps: range) -> Mapping[str, Any]:
        tokens = job.shared(_Experts).tokens
        # The same steps on every rank, evenly distributed over the session.
        chosen = steps[:: max(1, -(-len(steps) // _STEPS_COUNTED))]
        counts = {str(step): {str(job.rank): tokens[step]} for step in chosen if step in tokens}
        tokens.clear()
        return {_TOKENS_KEY: counts} if counts else {}

    job.notes.append(note)
    return lambda: job.notes.remove(note)


COLLECTIVES: Final = Instrumentation(
    "collectives",
    "collectives of expert- and context-parallel groups",
    wanted=lambda job: not {EXPERT, CONTEXT}.isdisjoint(job.groups.values()),
    hooks=(
        _hook(
            "all_to_all_single",
            _ALL_TO_ALL,
            ("output", "input", "output_split_sizes", "input_split_sizes", "group"),
        ),
        _hook("all_to_all", _ALL_TO_ALL, ("output_tensor_list", "input_tensor_list", "group")),
        _hook("all_gather_into_tensor", _ALL_GATHER, ("output_tensor", "input_tensor", "group")),
        _hook("reduce_scatter_tensor", _REDUCE_SCATTER, ("output", "input", "op", "group")),
    ),
    install=_install_token_counts,
)


# Operation types of the methods of a process group; each version of PyTorch has some of them.
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
# Operation types of functional collectives, each with the position of the group in its arguments.
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
# Name of the attribute with the operation type, on the result of a functional collective.
_LABEL: Final = "_paceline_op"


class _RecordedWork:
    """A proxy of a work that records the training's wait for it.

    If the collective was synchronous, the time from `start` is recorded.
    """

    def __init__(self, job: Job, op: str, work: Any, start: Any) -> None:
        self._job = job
        self._op = op
        self._work = work
        self._start = start

    def wait(self, *timeout: Any) -> Any:
        """Wait like `Work.wait`."""
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


def _is_data_parallel(job: Job, group: Any) -> bool:
    """Return whether a group, given as object or name, is a group of data-parallel ranks."""
    kind = job.groups.get(str(getattr(group, "group_name", group)))
    # Without other parallelism all groups are data-parallel.
    return kind == DATA if kind is not None else job.layout.world == job.layout.dp


def _method(job: Job, op: str, original: Function) -> Function:
    def collective(group: Any, *args: Any, **kwargs: Any) -> Any:
        tap = job.tap
        if (
            not tap.on
            or tap.quiet
            or torch.compiler.is_compiling()
            or not _is_data_parallel(job, group)
        ):
            return original(group, *args, **kwargs)
        start = tap.begins(op)
        work = original(group, *args, **kwargs)
        options = kwargs.get("opts", args[-1] if args else None)
        waits = not getattr(options, "asyncOp", True)
        if work is None:
            if waits:
                tap.ends_waiting(op, start)
            return work
        return _RecordedWork(job, op, work, start if waits else None)

    return collective


def _function(job: Job, op: str, group_at: int, original: Function) -> Function:
    def collective(*args: Any, **kwargs: Any) -> Any:
        # Checked first, so that compiled code does not depend on whether the job is recorded.
        if torch.compiler.is_compiling() or not job.tap.on or job.tap.quiet:
            return original(*args, **kwargs)
        result = original(*args, **kwargs)
        try:
            group = kwargs.get("group", args[group_at] if len(args) > group_at else None)
            if _is_data_parallel(job, sys.modules[_FUNCTIONAL]._resolve_group(group)):
                for tensor in result if isinstance(result, list) else [result]:
                    # `wait_tensor` gets the inner tensor, so the label is set on it.
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
    # Taken from the class's dictionary to restore it, because getattr unwraps the descriptor of a
    # C++ method.
    attribute, original = vars(owner)[name], getattr(owner, name)
    replacement = functools.wraps(original)(wrap(original))
    setattr(owner, name, replacement)

    def undo() -> None:
        # If other code has wrapped the replacement since, it remains and only calls the original.
        if vars(owner)[name] is replacement:
            setattr(owner, name, attribute)

    return undo


def _install_process_groups(job: Job, level: Level) -> Undo:
    if level < Level.P2P:
        return lambda: None
    group = torch.distributed.ProcessGroup

    def record() -> Undo:
        return _undo_all(
            [
                _replace(group, name, partial(_method, job, op))
                for name, op in _METHODS.items()
                if name in vars(group)
            ]
        )

    undo = []
    functional = sys.modules.get(_FUNCTIONAL)
    if functional is not None and hasattr(functional, "_resolve_group"):
        # Once, not for each window, because compiled code would be compiled again after each
        # change.
        undo = [
            _replace(functional, name, partial(_function, job, op, group_at))
            for name, (op, group_at) in _FUNCTIONS.items()
            if name in vars(functional)
        ]
        undo.append(_replace(functional, "wait_tensor", partial(_wait, job)))
    return _undo_all([*undo, job.while_recording(record)])


def _undo_all(parts: list[Undo]) -> Undo:
    """Return a function that calls all given functions in reverse order."""

    def undo() -> None:
        for part in reversed(parts):
            part()

    return undo


PROCESS_GROUPS: Final = Instrumentation(
    "process-groups",
    "collectives of data-parallel process groups",
    # Megatron-Core has its own hooks, which know the purpose of each of its collectives.
    wanted=lambda job: job.megatron_config is None and job.layout.dp > 1,
    install=_install_process_groups,
)
