"""Files of one job: the rank and steps of each file from its name, and checks of the whole set.

Ranks come from file names (``rank_3/trace.json``), or are counted host by host; steps come from
``ProfilerStep#12`` or the path (``iteration_100/``). The ranks of one start of a job begin a step
at the same time, up to the difference of their clocks; another start of the job begins the step of
the same number minutes or days later. Files of several starts are refused, and so is a step
recorded twice, because a verdict on such a mixture would describe no real job.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import combinations
from pathlib import PurePosixPath
from typing import Final, NoReturn

import numpy as np
from numpy.typing import NDArray

from app.analysis.trace.limits import MAX_FAULTS, NS_PER_S
from app.analysis.trace.merge import TraceChunk
from app.analysis.trace.model import SessionMeta, Sizes, Trace
from app.errors import Fault, UnanalyzableError


def natural_key(name: str) -> tuple[tuple[int, str], ...]:
    """Return a sort key that orders numbers in names by value: ``host2`` before ``host10``.

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
    """Return the hosts' traces with global ranks, numbered in natural order of the file names.

    Parameters
    ----------
    meta : SessionMeta or None
        The session's metadata, whose sizes are then those of the job.
    """
    counts = [int(trace.rank.max()) + 1 for trace in traces]
    tensor = {trace.meta.sizes.tp for trace in traces}
    tp = tensor.pop() if len(tensor) == 1 and meta is None else 1
    sizes = Sizes(dp=sum(counts) // tp, pp=1, tp=tp) if meta is None else meta.sizes
    numbered = list(traces)
    first = 0
    for place in sorted(range(len(names)), key=lambda number: natural_key(names[number])):
        trace = traces[place]
        rank = trace.rank + first
        hosts = {first + own: host for own, host in trace.meta.hosts.items()}
        numbered[place] = replace(
            trace,
            meta=replace(trace.meta, sizes=sizes, hosts=hosts),
            rank=rank,
            dp=(rank // (sizes.tp * sizes.cp) % sizes.dp).astype(trace.dp.dtype),
        )
        first += counts[place]
    return numbered


_RANK: Final = re.compile(r"(?<![a-z])rank[-_. =]?([0-9]{1,7})(?![0-9])", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class FileNames:
    """Rank and world size of a file, from the names of its session's files."""

    rank: int | None = None
    # Number of ranks; known only if several files name all ranks from 0 on, equally often.
    world: int | None = None
    place: int = 0  # index of the file among the session's files in natural order of their names
    files: int = 1  # number of the session's files


UNNAMED: Final = FileNames()


# Numbers in names that are the rank where no word ``rank`` is there: ``worker0_step_12`` of
# `tensorboard_trace_handler`, and ``…-TP-0.trace.json.gz`` or ``[TP02]`` of inference servers.
_WORKER: Final = re.compile(r"(?<![a-z])worker[-_. =]?([0-9]{1,7})(?![0-9])", re.IGNORECASE)
_COORDINATE: Final = re.compile(r"(?<![A-Za-z])(TP|PP|DP|CP)-?([0-9]{1,7})(?![0-9A-Za-z])")
# Least form of coordinates: ``-TP-0`` or ``[TP02``; ``TP8`` elsewhere is a size.
_COORDINATES: Final = re.compile(r"(?<![A-Za-z])(?:TP|PP|DP|CP)-[0-9]|\[(?:TP|PP|DP|CP)-?[0-9]")


def rank_in(name: str) -> int | None:
    """Return the last rank number in a path; None if the path has none.

    Examples
    --------
    >>> rank_in("job/rank_3/trace.json"), rank_in("host7_rank12.pt.trace.json.gz")
    (3, 12)
    >>> rank_in("worker0_step_12.json"), rank_in("1718-TP-3.trace.json.gz"), rank_in("[TP02] 7")
    (0, 3, 2)
    >>> rank_in("frank3.json") is None
    True
    """
    ranks = _RANK.findall(name) or _WORKER.findall(name)
    return int(ranks[-1]) if ranks else _rank_of_coordinates(PurePosixPath(name).name)


def _rank_of_coordinates(name: str) -> int | None:
    """Return the rank that coordinates in a name imply without the sizes; None if they do not.

    Tensor-parallel ranks vary fastest.
    """
    if _COORDINATES.search(name) is None:
        return None
    numbers = {dimension: int(number) for dimension, number in _COORDINATE.findall(name)}
    if len(numbers) == 1:
        return next(iter(numbers.values()))
    tensor = numbers.pop("TP", None)
    return tensor if not any(numbers.values()) else None


def names_of(names: Sequence[str]) -> Mapping[str, FileNames]:
    """Return rank and world size of each file of a session by its name."""
    ranks, world = _ranks_of(names), world_of(names)
    return {
        name: FileNames(ranks[name], world, place, len(ranks))
        for place, name in enumerate(sorted(names, key=natural_key))
    }


def world_of(names: Sequence[str]) -> int | None:
    """Return the number of ranks if names of files name all from 0 on, equally often; else None.

    Ranks that write a file for each step have several files.
    """
    files = Counter(_ranks_of(names).values())
    ranks = [rank for rank in files if rank is not None]
    complete = len(ranks) == len(files) > 1 and sorted(ranks) == list(range(len(ranks)))
    return len(ranks) if complete and len(set(files.values())) == 1 else None


def _ranks_of(names: Sequence[str]) -> Mapping[str, int | None]:
    """Return the rank of each file by its name.

    A number of a worker is no rank if several files of a step have it, as those of the processes of
    a pod, ``job-worker-3_4711.json``.
    """
    ranks = {name: rank_in(name) for name in names}
    workers = {name: (ranks[name], number_in(name)) for name in names if not _RANK.search(name)}
    counts = Counter(workers.values())
    shared = {name for name, worker in workers.items() if counts[worker] > 1}
    return {name: None if name in shared else rank for name, rank in ranks.items()}


# Starts of a step that differ by more than both of these bounds are from two recordings. The clocks
# of hosts that train together differ by seconds at most, since NTP, certificates and Kerberos fail
# with larger differences. The second bound exists because the pipeline stages of a long step are
# busy at different times.
APART_NS: Final = 60 * NS_PER_S
APART_STEPS: Final = 3.0
# Maximum number of files of each start of the job that a refusal names.
_NAMED: Final = 3


def check_one_recording(chunks: Sequence[TraceChunk]) -> None:
    """Refuse files of several starts of a job: some begin a step far later than the others.

    Parameters
    ----------
    chunks : sequence of TraceChunk
        Files of one session. They are not checked if the times of any file count from the start of
        their step.

    Raises
    ------
    UnanalyzableError
        ``trace.two_recordings``, with the names of files of each start.
    """
    if any(chunk.trace.step_relative for chunk in chunks):
        return
    begins_of_step: dict[int, list[tuple[int, int]]] = {}
    extents: list[NDArray[np.int64]] = []
    for number, chunk in enumerate(chunks):
        trace = chunk.trace
        steps, at = np.unique(trace.step, return_inverse=True)
        begins = np.full(len(steps), np.iinfo(np.int64).max)
        np.minimum.at(begins, at, trace.start_ns)
        # The last start, not the last end, is used because a recorded duration may be impossible.
        ends = np.full(len(steps), np.iinfo(np.int64).min)
        np.maximum.at(ends, at, trace.start_ns)
        extents.append(ends - begins)
        for step, begin in zip(steps.tolist(), begins.tolist(), strict=True):
            begins_of_step.setdefault(step, []).append((begin, number))
    typical_ns = float(np.median(np.concatenate(extents))) if extents else 0.0
    most_ns = max(APART_NS, APART_STEPS * typical_ns)
    for step in sorted(begins_of_step):
        begun = sorted(begins_of_step[step])
        for place in range(1, len(begun)):
            apart_ns = begun[place][0] - begun[place - 1][0]
            if apart_ns > most_ns:
                first, second = (
                    _names_of_files([chunks[number].producer for _, number in group])
                    for group in (begun[:place], begun[place:])
                )
                moment = datetime.fromtimestamp(begun[0][0] // NS_PER_S, UTC)
                message = (
                    f"two recordings: step {step} of {first} begins at {moment:%Y-%m-%d %H:%M:%S} "
                    f"UTC, of {second} {apart_ns / NS_PER_S:,.0f} s later. Put the files of each "
                    "start of the job into a folder of its own"
                )
                raise UnanalyzableError(message, code="trace.two_recordings")


def _names_of_files(files: Sequence[str]) -> str:
    """Return the names of the first few files as text."""
    names = sorted(set(files))
    more = [f"{len(names) - _NAMED} more"] if len(names) > _NAMED else []
    return ", ".join([*names[:_NAMED], *more])


def check_cells(chunks: Sequence[TraceChunk], sizes: Sizes) -> None:
    """Refuse files that have more ranks in a DP × PP cell than the sizes of the job allow.

    Each file names the cell of its rank. Files of two jobs, or files with wrong process groups,
    claim the same cell.

    Raises
    ------
    UnanalyzableError
        ``trace.place_taken``, with the two files that claim a cell.
    """
    most = sizes.tp * sizes.cp
    ranks_by_cell: dict[tuple[int, int], dict[int, str]] = {}
    for chunk in chunks:
        trace = chunk.trace
        for place in np.unique(trace.rank, return_index=True)[1].tolist():
            cell = int(trace.dp[place]), int(trace.pp[place])
            ranks = ranks_by_cell.setdefault(cell, {})
            ranks.setdefault(int(trace.rank[place]), chunk.producer)
            if len(ranks) > most:
                (first, first_file), *_, (last, last_file) = ranks.items()
                message = (
                    f"{first_file} (rank {first}) and {last_file} (rank {last}) both stand at DP "
                    f"rank {cell[0]}, stage {cell[1]}, where the sizes of the job have {most}: the "
                    "files are of two jobs, or the process groups in one of them are wrong"
                )
                raise UnanalyzableError(
                    message, code="trace.place_taken", faults=(Fault("place_taken", message),)
                )


def check_ranks(chunks: Sequence[TraceChunk]) -> None:
    """Refuse two files that contain the same step of a rank.

    Parameters
    ----------
    chunks : sequence of TraceChunk
        Files that have some operations twice, at different times.

    Raises
    ------
    UnanalyzableError
        ``trace.rank_twice``, with the two files that contain the step.
    """
    steps = [set(_rank_steps(chunk)) for chunk in chunks]
    for (chunk, chunk_steps), (other, other_steps) in combinations(
        zip(chunks, steps, strict=True), 2
    ):
        shared = chunk_steps & other_steps
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


_NUMBER: Final = re.compile(
    r"(?:^|[^a-z])(?:global_?)?(?:iteration|iter|step)s?[_.\-]?(\d{1,15})", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class _RepeatedStep:
    """A step of a rank that is in two recordings."""

    rank: int
    step: int
    # first, second: indices of the two recordings
    first: int
    second: int


def in_order(chunks: Sequence[TraceChunk], *, of_files: bool) -> list[TraceChunk]:
    """Return recordings with distinct steps, renumbered if step numbers of a rank repeat.

    A profiler that writes one file per step may number the steps (``ProfilerStep#12``). If each
    recording counts its steps from 0, the step comes from the names of files and folders
    (``iteration_100/`` of TorchTitan, ``rank0_step_100.json``), or from the order of the chunks of
    a producer.

    Parameters
    ----------
    chunks : sequence of TraceChunk
        Recordings in a format that never splits a step of a rank over two recordings.
    of_files : bool
        Producers are paths of files, which may contain the step.

    Raises
    ------
    UnanalyzableError
        ``trace.rank_twice``, with both recordings: two different recordings contain the same step
        of a rank, and cannot be renumbered.
    """
    repeated = _repeated_steps(chunks)
    if not repeated:
        return list(chunks)
    first_steps = _first_steps_by_name(chunks) if of_files else _first_steps_by_chunk(chunks)
    if first_steps is None:
        _refuse(repeated, chunks, of_files=of_files)
    numbered = []
    for place, chunk in enumerate(chunks):
        steps = np.unique(chunk.trace.step, return_inverse=True)[1].astype(np.int64)
        trace = replace(chunk.trace, step=steps + first_steps[place])
        numbered.append(replace(chunk, trace=trace))
    repeated = _repeated_steps(numbered)
    if repeated:
        _refuse(repeated, chunks, of_files=of_files)
    return numbered


def number_in(name: str) -> int | None:
    """Return the step number in a file's name, or in the name of its nearest folder; else None.

    Examples
    --------
    >>> number_in("profile_trace/iteration_100/rank0_trace.json"), number_in("rank0_step-7.json.gz")
    (100, 7)
    >>> number_in("rank3.pt.trace.json") is None
    True
    """
    for part in reversed(PurePosixPath(name).parts):
        numbers = _NUMBER.findall(part)
        if numbers:
            return int(numbers[-1])
    return None


def _repeated_steps(chunks: Sequence[TraceChunk]) -> list[_RepeatedStep]:
    """Return the steps of ranks that two recordings contain, unless the recordings are copies."""
    seen: dict[tuple[int, int], int] = {}
    repeated = []
    copies: dict[tuple[int, int], bool] = {}
    for place, chunk in enumerate(chunks):
        for rank, step in _rank_steps(chunk):
            before = seen.setdefault((rank, step), place)
            if before == place:
                continue
            pair = (before, place)
            if pair not in copies:
                copies[pair] = np.array_equal(_times(chunks[before]), _times(chunk))
            if not copies[pair]:
                repeated.append(_RepeatedStep(rank, step, before, place))
    return repeated


def _rank_steps(chunk: TraceChunk) -> list[tuple[int, int]]:
    """Return the (rank, step) pairs of a recording in ascending order."""
    first = chunk.trace.stretches().first
    pairs = np.stack([chunk.trace.rank[first].astype(np.int64), chunk.trace.step[first]], axis=1)
    return [(rank, step) for rank, step in np.unique(pairs, axis=0).tolist()]


def _times(chunk: TraceChunk) -> NDArray[np.int64]:
    """Return a fingerprint of a recording: a sorted hash of each operation's times."""
    trace = chunk.trace
    return np.sort(trace.start_ns + (trace.duration_ns << 1))


def _first_steps_by_name(chunks: Sequence[TraceChunk]) -> Mapping[int, int] | None:
    """Return the first step of each file by index, from its name; None if a name has no step.

    A profiler writes a file after its last step, and names the file after this step.
    """
    first = {}
    for place, chunk in enumerate(chunks):
        number = number_in(chunk.producer)
        if number is None:
            return None
        count = len(np.unique(chunk.trace.step))
        first[place] = max(number - count + 1, 0)
    return first


def _first_steps_by_chunk(chunks: Sequence[TraceChunk]) -> Mapping[int, int]:
    """Return the first step of each chunk by index, counted from the chunk before.

    The first step of a chunk follows the last step of the previous chunk with the same producer and
    ranks.
    """
    first, following = {}, dict[tuple[str, ...], int]()
    for place in sorted(range(len(chunks)), key=lambda place: chunks[place].number):
        chunk = chunks[place]
        whose = (chunk.producer, *map(str, np.unique(chunk.trace.rank).tolist()))
        first[place] = following.get(whose, int(chunk.trace.step.min()))
        following[whose] = first[place] + len(np.unique(chunk.trace.step))
    return first


def _refuse(
    repeated: Sequence[_RepeatedStep], chunks: Sequence[TraceChunk], *, of_files: bool
) -> NoReturn:
    def name(place: int) -> str:
        chunk = chunks[place]
        return chunk.producer if of_files else f"chunk {chunk.producer}/{chunk.number}"

    def words(step: _RepeatedStep) -> str:
        return (
            f"{name(step.first)} and {name(step.second)} are two recordings of rank {step.rank}, "
            f"which differ in step {step.step}"
        )

    remedy = (
        "leave out one of them, or name files or folders after their steps, as iteration_100"
        if of_files
        else "send the chunks of a rank as one producer"
    )
    raise UnanalyzableError(
        f"{words(repeated[0])}: {remedy}",
        code="trace.rank_twice",
        faults=tuple(Fault("rank_twice", words(step)) for step in repeated[:MAX_FAULTS]),
    )
