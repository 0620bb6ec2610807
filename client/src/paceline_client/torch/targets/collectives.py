"""Collectives of expert- and context-parallel groups, called through `torch.distributed`.

The group determines what a collective is for. Therefore one hook per function is enough for
Megatron-Core's token dispatcher, Transformer Engine's attention and hand-written code. Ring
exchanges between ranks are no collectives and are not recorded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import torch

from paceline_client.torch.groups import CONTEXT, EXPERT
from paceline_client.torch.targets.kind import Function, Hook, Job, Level, Target, Undo

# The number of steps of a session with a count of tokens, the same on all ranks.
_STEPS_COUNTED: Final = 8
_TOKENS_KEY: Final = "expert_tokens"
# Names of operations, to be prefixed with the kind of the group.
_ALL_TO_ALL: Final = "all-to-all"
_ALL_GATHER: Final = "all-gather"
_REDUCE_SCATTER: Final = "reduce-scatter"


class _Experts:
    """Counts a step's exchanges with experts, and the tokens for this rank's experts."""

    def __init__(self) -> None:
        self._step = -1
        self._exchanges = 0
        self.tokens: dict[int, int] = {}

    def exchanged(self, step: int, tokens: int) -> None:
        """Count an exchange.

        The first and every second one after it bring tokens to the experts; the others return the
        results. In a backward, they carry gradients of the same tokens.
        """
        if step != self._step:
            self._step, self._exchanges = step, 0
        brings, self._exchanges = self._exchanges % 2 == 0, self._exchanges + 1
        if brings and not _in_backward():
            self.tokens[step] = self.tokens.get(step, 0) + tokens


def _in_backward() -> bool:
    # The id of the running backward, or -1.
    return bool(torch._C._current_graph_task_id() != -1)


def _carries_tokens(tensor: Any) -> bool:
    """Whether a tensor has a row per token; probabilities and counts do not."""
    return bool(tensor.is_floating_point() and tensor.dim() > 1)


def _watched(what: str, parameters: tuple[str, ...], job: Job, original: Function) -> Function:
    """Record a collective of a known group."""
    output_at, input_at = 0, 1
    group_at = parameters.index("group")

    def given(args: tuple[Any, ...], kwargs: Mapping[str, Any], at: int) -> Any:
        return args[at] if len(args) > at else kwargs.get(parameters[at])

    def collective(*args: Any, **kwargs: Any) -> Any:
        tap = job.tap
        # Code that is being compiled does not run.
        if not tap.on or torch.compiler.is_compiling():
            return original(*args, **kwargs)
        group = given(args, kwargs, group_at) or torch.distributed.group.WORLD
        kind = job.groups.get(str(getattr(group, "group_name", "")))
        tensors = given(args, kwargs, input_at)
        first = tensors[0] if isinstance(tensors, list) else tensors
        if kind is None or not _is_recorded(kind, what, first):
            return original(*args, **kwargs)
        if kind == EXPERT and tap.sink is not None and not tap.hidden:
            output = given(args, kwargs, output_at)
            rows = sum(map(len, output)) if isinstance(output, list) else len(output)
            job.one(_Experts).exchanged(tap.step, rows)
        op = f"{kind}-{what}"
        start = tap.begins(op)
        work = original(*args, **kwargs)
        if work is None:
            tap.ends(op, start)
            return None
        return tap.watch(op, work, start)

    return collective


def _is_recorded(kind: str, what: str, tensor: Any) -> bool:
    if kind == EXPERT:
        return what == _ALL_TO_ALL and _carries_tokens(tensor)
    return bool(tensor.is_floating_point())


def _hook(function: str, what: str, parameters: tuple[str, ...]) -> Hook:
    return Hook(
        f"torch.distributed:{function}",
        parameters,
        Level.ALL,
        lambda job, original: _watched(what, parameters, job, original),
    )


def _install(job: Job, level: Level) -> Undo:
    """Add the tokens for this rank's experts to the metadata of sessions."""
    if level < Level.ALL or EXPERT not in job.groups.values():
        return lambda: None

    def note(steps: range) -> Mapping[str, Any]:
        tokens = job.one(_Experts).tokens
        # The same steps on every rank, from all of the session.
        some = steps[:: max(1, -(-len(steps) // _STEPS_COUNTED))]
        counts = {str(step): {str(job.rank): tokens[step]} for step in some if step in tokens}
        tokens.clear()
        return {_TOKENS_KEY: counts} if counts else {}

    job.notes.append(note)
    return lambda: job.notes.remove(note)


COLLECTIVES: Final = Target(
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
    install=_install,
)
