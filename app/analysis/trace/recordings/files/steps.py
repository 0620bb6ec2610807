"""Files that hold some steps of a rank each, as profilers write them, put into one order.

A profiler that writes one step a file numbers it, if it numbers its steps (``ProfilerStep#12``).
Where each recording begins to count anew, the names of files and folders say which step it is:
``iteration_100/rank0_trace.json`` (TorchTitan), ``rank0_step_100.json``. Chunks of one producer are
in the order of their numbers. The same step of a rank in two recordings is there twice, unless one
is a copy of the other.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Final, NoReturn

import numpy as np
from numpy.typing import NDArray

from app.analysis.trace.limits import MAX_FAULTS
from app.analysis.trace.merge import TraceChunk
from app.errors import Fault, UnanalyzableError

_NUMBER: Final = re.compile(
    r"(?:^|[^a-z])(?:global_?)?(?:iteration|iter|step)s?[_.\-]?(\d{1,15})", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class _Twice:
    """A step of a rank that two recordings have."""

    rank: int
    step: int
    one: int  # places of the recordings
    other: int


def in_order(chunks: Sequence[TraceChunk], *, of_files: bool) -> list[TraceChunk]:
    """Return recordings whose steps have numbers of their own; the same ones where they have.

    Parameters
    ----------
    chunks : sequence of TraceChunk
        Of a format whose recordings hold whole steps of their ranks.
    of_files : bool
        Producers are names of files, with their folders, which may say the step; else a producer's
        chunks follow one another by number.

    Raises
    ------
    UnanalyzableError
        ``trace.rank_twice``, with both recordings: a rank has the same step in two, and nothing
        says which steps they are.
    """
    twice = _twice(chunks)
    if not twice:
        return list(chunks)
    first = _by_name(chunks) if of_files else _by_chunk(chunks)
    if first is None:
        _refuse(twice, chunks, of_files=of_files)
    numbered = [_from(chunk, first[place]) for place, chunk in enumerate(chunks)]
    still = _twice(numbered)
    if still:
        _refuse(still, chunks, of_files=of_files)
    return numbered


def number_in(name: str) -> int | None:
    """Return the step that the name of a file or of a folder above it says, the nearest first.

    Examples
    --------
    >>> number_in("profile_trace/iteration_100/rank0_trace.json"), number_in("rank0_step-7.json.gz")
    (100, 7)
    >>> number_in("rank3.pt.trace.json") is None
    True
    """
    for part in reversed(PurePosixPath(name).parts):
        found = _NUMBER.findall(part)
        if found:
            return int(found[-1])
    return None


def _twice(chunks: Sequence[TraceChunk]) -> list[_Twice]:
    """Return the steps of ranks that two recordings have, none where one is a copy."""
    seen: dict[tuple[int, int], int] = {}
    found = []
    alike: dict[tuple[int, int], bool] = {}
    for place, chunk in enumerate(chunks):
        for rank, step in _steps(chunk):
            before = seen.setdefault((rank, step), place)
            if before == place:
                continue
            pair = (before, place)
            if pair not in alike:
                alike[pair] = _copy(chunks[before], chunk)
            if not alike[pair]:
                found.append(_Twice(rank, step, before, place))
    return found


def _steps(chunk: TraceChunk) -> list[tuple[int, int]]:
    """Return the ranks of a recording and their steps, ascending."""
    first = chunk.trace.stretches().first
    pairs = np.stack([chunk.trace.rank[first].astype(np.int64), chunk.trace.step[first]], axis=1)
    return [(rank, step) for rank, step in np.unique(pairs, axis=0).tolist()]


def _copy(one: TraceChunk, other: TraceChunk) -> bool:
    return np.array_equal(_times(one), _times(other))


def _times(chunk: TraceChunk) -> NDArray[np.int64]:
    trace = chunk.trace
    return np.sort(trace.start_ns + (trace.duration_ns << 1))


def _by_name(chunks: Sequence[TraceChunk]) -> Mapping[int, int] | None:
    """Return the first step of each file, by place; None where not all names say one.

    A file is written when its last step has ended, and named after it.
    """
    first = {}
    for place, chunk in enumerate(chunks):
        number = number_in(chunk.producer)
        if number is None:
            return None
        count = len(np.unique(chunk.trace.step))
        first[place] = max(number - count + 1, 0)
    return first


def _by_chunk(chunks: Sequence[TraceChunk]) -> Mapping[int, int]:
    """Return the first step of each chunk, by place.

    It comes after those of the chunk before it of the same producer, and of the same ranks.
    """
    first, following = {}, dict[tuple[str, ...], int]()
    for place in sorted(range(len(chunks)), key=lambda place: chunks[place].number):
        chunk = chunks[place]
        whose = (chunk.producer, *map(str, np.unique(chunk.trace.rank).tolist()))
        first[place] = following.get(whose, int(chunk.trace.step.min()))
        following[whose] = first[place] + len(np.unique(chunk.trace.step))
    return first


def _from(chunk: TraceChunk, first: int) -> TraceChunk:
    """Return a recording whose steps count from `first` on."""
    steps = np.unique(chunk.trace.step, return_inverse=True)[1].astype(np.int64) + first
    return replace(chunk, trace=replace(chunk.trace, step=steps))


def _refuse(twice: Sequence[_Twice], chunks: Sequence[TraceChunk], *, of_files: bool) -> NoReturn:
    def name(place: int) -> str:
        chunk = chunks[place]
        return chunk.producer if of_files else f"chunk {chunk.producer}/{chunk.number}"

    def words(one: _Twice) -> str:
        return (
            f"{name(one.one)} and {name(one.other)} are two recordings of rank {one.rank}, which "
            f"differ in step {one.step}"
        )

    remedy = (
        "leave out one of them, or name files or folders after their steps, as iteration_100"
        if of_files
        else "send the chunks of a rank as one producer"
    )
    raise UnanalyzableError(
        f"{words(twice[0])}: {remedy}",
        code="trace.rank_twice",
        faults=tuple(Fault("rank_twice", words(one)) for one in twice[:MAX_FAULTS]),
    )
