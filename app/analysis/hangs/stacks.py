"""Stacks of training threads: ranks that wait for others, and ranks that do something else."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from app.analysis.hangs.state import Frame, RankState

# Frames in which PyTorch waits for other ranks or the device: part of the file's path, and the
# beginning of the function's name.
_WAITS: Final = (
    ("torch/distributed/", ""),
    ("torch/autograd/graph.py", "_engine_run_backward"),
    ("torch/cuda/__init__.py", "synchronize"),
    ("torch/cuda/streams.py", "synchronize"),
    ("pipeline_parallel/p2p_communication.py", ""),
    ("deepspeed/comm/", ""),
)
_TRANSFER: Final = re.compile(r"send|recv|p2p|wait")
_OURS: Final = "/paceline_client/"
_TORCH: Final = "/torch/"
_INNERMOST: Final = 3  # compared frames; deeper ones differ by chance in loops of the framework
_MOST_BLAMED: Final = 0.25  # share of ranks; more of them are no exception


@dataclass(frozen=True, slots=True)
class StackSplit:
    """Ranks split by their stacks: waiting ranks, others, and the line where most ranks wait."""

    waiting: tuple[int, ...]
    others: tuple[int, ...]
    line: Frame


def split_by_stacks(ranks: Mapping[int, RankState]) -> StackSplit | None:
    """Return the ranks that wait and the ranks that do not; None if their stacks do not show it.

    Stacks do not show it if fewer than half of the ranks have a stack, if all ranks wait, or if
    more than a quarter of them (and more than one) do not wait and are at different places. A
    majority at one line waits there too, unless the only other ranks wait in PyTorch: then the
    majority is late.

    Examples
    --------
    >>> def at(rank: int, function: str, file: str, line: int) -> RankState:
    ...     return RankState(rank, stack=(Frame(function, file, line),))
    >>> wait = ("_wait_batch_p2p", "torch/distributed/pipelining/schedules.py", 683)
    >>> states = {0: at(0, *wait), 1: at(1, "forward", "train.py", 7), 2: at(2, *wait)}
    >>> split = split_by_stacks(states)
    >>> split.waiting, split.others
    ((0, 2), (1,))
    """
    stacks: dict[int, tuple[Frame, ...]] = {}
    for rank, state in sorted(ranks.items()):
        if state.stack:
            # Frames of Paceline's client around a wait of PyTorch are left out.
            own = (n for n, frame in enumerate(state.stack) if _OURS not in frame.file)
            first = next(own, 0)
            stacks[rank] = state.stack[first:] if is_wait(state.stack[first]) else state.stack
    if len(stacks) < max(2, len(ranks) / 2):
        return None
    waiting = [rank for rank, stack in stacks.items() if is_wait(stack[0])]
    alike = Counter(stack[:_INNERMOST] for stack in stacks.values())
    usual, count = alike.most_common(1)[0]
    if count > len(stacks) / 2:
        with_usual = [
            rank
            for rank, stack in stacks.items()
            if is_wait(stack[0]) or stack[:_INNERMOST] == usual
        ]
        if len(with_usual) < len(stacks):
            waiting = with_usual
    others = tuple(sorted(stacks.keys() - set(waiting)))
    if not others or not waiting:
        return None
    lines = Counter(stacks[rank][0] for rank in waiting)
    is_exception = len(others) <= max(1, len(stacks) * _MOST_BLAMED)
    if not is_exception and not _share_a_place([stacks[rank] for rank in others]):
        return None
    return StackSplit(tuple(waiting), others, lines.most_common(1)[0][0])


def waits_of_stacks(ranks: Mapping[int, RankState]) -> Mapping[tuple[Frame, Frame], list[int]]:
    """Return the ranks by the lines where they wait, if all wait; else an empty mapping.

    The lines are that of PyTorch and that of the program, those of most ranks first. Fewer stacks
    than half of the ranks show nothing.
    """
    stacks = {rank: state.stack for rank, state in sorted(ranks.items()) if state.stack}
    if len(stacks) < max(2, len(ranks) / 2):
        return {}
    by_line: dict[tuple[Frame, Frame], list[int]] = {}
    for rank, stack in stacks.items():
        inner = next((frame for frame in stack if _OURS not in frame.file), stack[0])
        if not is_wait(inner):
            return {}
        by_line.setdefault((inner, calling(stack)), []).append(rank)
    return dict(sorted(by_line.items(), key=lambda item: -len(item[1])))


def is_collective(frame: Frame) -> bool:
    """Return whether a rank at this line waits in a collective and not in a transfer."""
    return "torch/distributed/" in frame.file and not _TRANSFER.search(frame.function)


def _share_a_place(stacks: Sequence[tuple[Frame, ...]]) -> bool:
    """Return whether ranks are in one call of the program, at any depth within the library."""
    return len({calling(stack) for stack in stacks}) == 1


def calling(stack: tuple[Frame, ...]) -> Frame:
    """Return the innermost frame of the program or its framework, outside of PyTorch.

    Examples
    --------
    >>> calling((Frame("all_reduce", "/lib/torch/distributed/c10d.py", 9), Frame("f", "a.py", 3)))
    Frame(function='f', file='a.py', line=3)
    """
    own = (frame for frame in stack if _OURS not in frame.file and _TORCH not in f"/{frame.file}")
    return next(own, stack[0])


def is_wait(frame: Frame) -> bool:
    """Return whether a rank whose innermost frame this is waits for other ranks or the device."""
    return any(
        place in frame.file and frame.function.startswith(function) for place, function in _WAITS
    )
