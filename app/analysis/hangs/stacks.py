"""Who waits by the stacks of the training threads alone, where no recorder says what is pending.

Recorders of gloo know no transfers, and many jobs have no recorder at all. A rank waits where its
innermost frame is one in which PyTorch waits for other ranks, or where most ranks stand in the same
lines: the program is the same on all of them, so a rank that is elsewhere is what they wait for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from app.analysis.hangs.state import Frame, RankState

# Where PyTorch waits for other ranks, or for the device that does: ends of files, and functions.
# Without one of these a rank that waits is taken for one that does not.
_WAITS: Final = (
    ("torch/distributed/", ""),
    ("torch/autograd/graph.py", "_engine_run_backward"),
    ("torch/cuda/__init__.py", "synchronize"),
    ("torch/cuda/streams.py", "synchronize"),
    ("pipeline_parallel/p2p_communication.py", ""),
    ("deepspeed/comm/", ""),
)
_OURS: Final = "/paceline_client/"
_TORCH: Final = "/torch/"
# Frames that say where a rank is; of deeper ones loops of the framework differ by chance.
_INNERMOST: Final = 3
# More ranks than this share are no exception: nothing says then who waits for whom.
_MOST_BLAMED: Final = 0.25


@dataclass(frozen=True, slots=True)
class Standing:
    """Ranks that wait, those that do not, and the line in which most of the first wait."""

    waiting: tuple[int, ...]
    others: tuple[int, ...]
    line: Frame


def standing(ranks: Mapping[int, RankState]) -> Standing | None:
    """Return who waits by the stacks; None where they do not tell.

    They do not where fewer than half of the ranks have one, where all wait, and where more ranks
    than a quarter (and more than one) do not.

    Examples
    --------
    >>> def at(rank: int, function: str, file: str, line: int) -> RankState:
    ...     return RankState(rank, stack=(Frame(function, file, line),))
    >>> wait = ("_wait_batch_p2p", "torch/distributed/pipelining/schedules.py", 683)
    >>> found = standing({0: at(0, *wait), 1: at(1, "forward", "train.py", 7), 2: at(2, *wait)})
    >>> found.waiting, found.others
    ((0, 2), (1,))
    """
    stacks = {
        rank: _without_hooks(state.stack) for rank, state in sorted(ranks.items()) if state.stack
    }
    if len(stacks) < max(2, len(ranks) / 2):
        return None
    alike = Counter(stack[:_INNERMOST] for stack in stacks.values())
    usual, count = alike.most_common(1)[0]
    most_alike = count > len(stacks) / 2
    waiting = {
        rank: stack
        for rank, stack in stacks.items()
        if _is_wait(stack[0]) or (most_alike and stack[:_INNERMOST] == usual)
    }
    others = tuple(rank for rank in stacks if rank not in waiting)
    if not others or not waiting or len(others) > max(1, len(stacks) * _MOST_BLAMED):
        return None
    lines = Counter(stack[0] for stack in waiting.values())
    return Standing(tuple(waiting), others, lines.most_common(1)[0][0])


def calling(stack: tuple[Frame, ...]) -> Frame:
    """Return the line of the program, or of its framework, that called what waits.

    Examples
    --------
    >>> calling((Frame("all_reduce", "/lib/torch/distributed/c10d.py", 9), Frame("f", "a.py", 3)))
    Frame(function='f', file='a.py', line=3)
    """
    own = (one for one in stack if _OURS not in one.file and _TORCH not in one.file)
    return next(own, stack[0])


def _without_hooks(stack: tuple[Frame, ...]) -> tuple[Frame, ...]:
    """Return a stack without what our own client put around a wait of PyTorch's."""
    first = next((n for n, frame in enumerate(stack) if _OURS not in frame.file), 0)
    return stack[first:] if _is_wait(stack[first]) else stack


def _is_wait(frame: Frame) -> bool:
    return any(
        place in frame.file and frame.function.startswith(function) for place, function in _WAITS
    )
