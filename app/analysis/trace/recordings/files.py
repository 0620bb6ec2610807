"""Files of one job: rank, host and steps of each, and checks that they fit together.

Ranks come from file names (``rank_3/trace.json``), or are counted host by host; steps come from
``ProfilerStep#12`` or the path (``iteration_100/``). Ranks of one start of a job take a step at
the same time; files of another start are refused, a step recorded twice as well.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import combinations
from pathlib import PurePosixPath
from typing import Final, NoReturn

import numpy as np
from numpy.typing import NDArray

from app.analysis.trace.limits import MAX_FAULTS
from app.analysis.trace.merge import TraceChunk
from app.analysis.trace.model import SessionMeta, Sizes, Trace
from app.errors import Fault, UnanalyzableError

# ---- Files of the hosts of one job, each of which counts its ranks from 0 ----------------------


def natural_key(name: str) -> tuple[tuple[int, str], ...]:
    """Return by what names sort as people count: ``host2`` comes before ``host10``.

    Examples
    --------
    >>> sorted(["w-10.xplane.pb", "w-2.xplane.pb"], key=natural_key)
    ['w-2.xplane.pb', 'w-10.xplane.pb']
    """
    parts = re.split(r"([0-9]{1,18})", name)
    return tuple((int(part) if part.isdecimal() else -1, part) for part in parts)


def number_ranks(
    names: Sequence[str], traces: Sequence[Trace], meta: SessionMeta | None
) -> list[Trace]:
    """Return the traces of hosts with ranks that count through all of them, in order of names.

    Parameters
    ----------
    meta : SessionMeta or None
        What is given with them: their sizes are those of the job.
    """
    counts = [int(trace.rank.max()) + 1 for trace in traces]
    tensor = {trace.meta.sizes.tp for trace in traces}
    tp = tensor.pop() if len(tensor) == 1 and meta is None else 1
    sizes = Sizes(dp=sum(counts) // tp, pp=1, tp=tp) if meta is None else meta.sizes
    numbered = list(traces)
    first = 0
    for place in sorted(range(len(names)), key=lambda number: natural_key(names[number])):
        numbered[place] = _shifted(traces[place], first, sizes)
        first += counts[place]
    return numbered


def _shifted(trace: Trace, first: int, sizes: Sizes) -> Trace:
    rank = trace.rank + first
    inner = sizes.tp * sizes.cp
    hosts = {first + own: host for own, host in trace.meta.hosts.items()}
    return replace(
        trace,
        meta=replace(trace.meta, sizes=sizes, hosts=hosts),
        rank=rank,
        dp=(rank // inner % sizes.dp).astype(trace.dp.dtype),
    )


# ---- What names of files say: of which rank each is, and how many ranks there are --------------
# Profilers that are not told a rank leave it to the name of the file (``rank3.json.gz``,
# ``rank_3/trace.json``).


_RANK: Final = re.compile(r"(?<![a-z])rank[-_. =]?([0-9]{1,7})(?![0-9])", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class FileNames:
    """What the names of a session's files say of one of them."""

    rank: int | None = None  # its own
    # How many there are: where there are several files, of all ranks from 0 on, each once.
    world: int | None = None


UNNAMED: Final = FileNames()


def rank_in(name: str) -> int | None:
    """Return the rank that a path names, the last one where it names several.

    Examples
    --------
    >>> rank_in("job/rank_3/trace.json"), rank_in("host7_rank12.pt.trace.json.gz")
    (3, 12)
    >>> rank_in("frank3.json") is None
    True
    """
    found = _RANK.findall(name)
    return int(found[-1]) if found else None


def names_of(name: str, among: Iterable[str]) -> FileNames:
    """Return what a file's name says, `among` the names of all files of its session."""
    ranks = [rank_in(one) for one in among]
    complete = sorted(rank for rank in ranks if rank is not None) == list(range(len(ranks)))
    return FileNames(rank_in(name), len(ranks) if complete and len(ranks) > 1 else None)


# ---- Whether files are of one recording: all ranks take a step at the same time ----------------
# Files lie in one folder because they were written there, by one start of a job or by several.
# Ranks of one start take a step together, as far apart as their clocks are; those of another start
# take the step of the same number minutes or days apart. Mixed, they would give a verdict about no
# job at all.


# Clocks of hosts that train together are seconds apart at most: NTP, certificates and Kerberos do
# not work else. Ranks of one stage each are busy at other times of a long step.
APART_NS: Final = 60 * 1_000_000_000
APART_STEPS: Final = 3.0
_NS_PER_S: Final = 1_000_000_000
# Files of each recording that a refusal names.
_NAMED: Final = 3


def check_one_recording(chunks: Sequence[TraceChunk]) -> None:
    """Refuse files of which some take the same step at another time than the others.

    Parameters
    ----------
    chunks : sequence of TraceChunk
        Those of times that count from the start of their step are not judged.

    Raises
    ------
    UnanalyzableError
        ``trace.two_recordings``, with files of each.
    """
    if any(chunk.trace.step_relative for chunk in chunks):
        return
    at: dict[int, list[tuple[int, int]]] = {}
    extents: list[NDArray[np.int64]] = []
    for number, chunk in enumerate(chunks):
        steps, begins, ends = _extents(chunk)
        extents.append(ends - begins)
        for step, begin in zip(steps.tolist(), begins.tolist(), strict=True):
            at.setdefault(step, []).append((begin, number))
    typical_ns = float(np.median(np.concatenate(extents))) if extents else 0.0
    most_ns = max(APART_NS, APART_STEPS * typical_ns)
    for step in sorted(at):
        begun = sorted(at[step])
        for place in range(1, len(begun)):
            apart_ns = begun[place][0] - begun[place - 1][0]
            if apart_ns > most_ns:
                first, second = (
                    _named([chunks[number].producer for _, number in some])
                    for some in (begun[:place], begun[place:])
                )
                moment = datetime.fromtimestamp(begun[0][0] // _NS_PER_S, UTC)
                _refuse_files(first, second, step, moment, apart_ns)


def _extents(
    chunk: TraceChunk,
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return the steps of a chunk, and when each begins and ends, nanoseconds."""
    trace = chunk.trace
    steps, place = np.unique(trace.step, return_inverse=True)
    begins = np.full(len(steps), np.iinfo(np.int64).max)
    ends = np.full(len(steps), np.iinfo(np.int64).min)
    np.minimum.at(begins, place, trace.start_ns)
    # An impossible duration says nothing about when the step ended.
    np.maximum.at(ends, place, trace.start_ns)
    return steps.astype(np.int64), begins, ends


def _named(files: Sequence[str]) -> str:
    """Return the names of files, of many the first ones and how many more there are."""
    names = sorted(set(files))
    more = [f"{len(names) - _NAMED} more"] if len(names) > _NAMED else []
    return ", ".join([*names[:_NAMED], *more])


def _refuse_files(first: str, second: str, step: int, moment: datetime, apart_ns: int) -> NoReturn:
    message = (
        f"two recordings: step {step} of {first} begins at {moment:%Y-%m-%d %H:%M:%S} UTC, of "
        f"{second} {apart_ns / _NS_PER_S:,.0f} s later. Put the files of each start of the job "
        "into a folder of its own"
    )
    raise UnanalyzableError(message, code="trace.two_recordings")


# ---- Whether files can be of one job: of which ranks they are, and where these stand -----------


def check_cells(chunks: Sequence[TraceChunk], sizes: Sizes) -> None:
    """Refuse files of more ranks at one place than the sizes have there.

    Each file says for itself where its rank stands; of two jobs, or where the process groups of a
    file are wrong, two ranks claim one place.

    Raises
    ------
    UnanalyzableError
        ``trace.place_taken``, with both files.
    """
    most = sizes.tp * sizes.cp
    known: dict[tuple[int, int], dict[int, str]] = {}
    for chunk in chunks:
        trace = chunk.trace
        for place in np.unique(trace.rank, return_index=True)[1].tolist():
            cell = int(trace.dp[place]), int(trace.pp[place])
            ranks = known.setdefault(cell, {})
            ranks.setdefault(int(trace.rank[place]), chunk.producer)
            if len(ranks) > most:
                _refuse_place(cell, ranks, most)


def _refuse_place(cell: tuple[int, int], ranks: dict[int, str], most: int) -> None:
    (one, its_file), *_, (other, others_file) = ranks.items()
    message = (
        f"{its_file} (rank {one}) and {others_file} (rank {other}) both stand at DP rank "
        f"{cell[0]}, stage {cell[1]}, where the sizes of the job have {most}: the files are of "
        "two jobs, or the process groups in one of them are wrong"
    )
    raise UnanalyzableError(
        message, code="trace.place_taken", faults=(Fault("place_taken", message),)
    )


def check_ranks(chunks: Sequence[TraceChunk]) -> None:
    """Refuse files that are two recordings of one rank, of the same step.

    Parameters
    ----------
    chunks : sequence of TraceChunk
        Of which some are known to have the same operations at different times.

    Raises
    ------
    UnanalyzableError
        ``trace.rank_twice``, with both files.
    """
    steps = [_steps_of_ranks(chunk) for chunk in chunks]
    for (chunk, its_steps), (other, others_steps) in combinations(
        zip(chunks, steps, strict=True), 2
    ):
        shared = its_steps & others_steps
        if not shared:
            continue
        rank, step = min(shared)
        message = (
            f"{chunk.producer} and {other.producer} are two recordings of rank {rank}, which "
            f"differ in step {step}: leave one of them out"
        )
        raise UnanalyzableError(
            message, code="trace.rank_twice", faults=(Fault("rank_twice", message),)
        )


def _steps_of_ranks(chunk: TraceChunk) -> set[tuple[int, int]]:
    pairs = np.unique(np.stack([chunk.trace.rank, chunk.trace.step]), axis=1)
    return {(int(rank), int(step)) for rank, step in pairs.T}


# ---- Files that hold some steps of a rank each, as profilers write them, put into one order ----
# A profiler that writes one step a file numbers it, if it numbers its steps (``ProfilerStep#12``).
# Where each recording begins to count anew, the names of files and folders say which step it is:
# ``iteration_100/rank0_trace.json`` (TorchTitan), ``rank0_step_100.json``. Chunks of one producer
# are in the order of their numbers. The same step of a rank in two recordings is there twice,
# unless one is a copy of the other.


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
