"""Collectives of a rank without labels, and the parallelism of their process groups.

A collective kernel starts at the arrival of its own rank and ends with the arrival of the last
one plus the transfer. Newer recordings name the group with the kernel, older ones with the call
(external id). A group without a description is data-parallel where it reduces in backwards only,
and tensor-parallel where it reduces in forwards as well.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Final

import numpy as np

from app.analysis.trace.model import SessionMeta, Sizes
from app.analysis.trace.recordings.profiler.host_program import Part
from app.analysis.trace.recordings.profiler.launches import launch_times
from app.analysis.trace.recordings.profiler.process_groups import (
    DATA_DIMENSIONS,
    Cell,
    Dimension,
    Group,
    cell_of,
    dimension_of,
)
from app.analysis.trace.recordings.profiler.scan import (
    Activity,
    Issue,
    Kernels,
    PackedTable,
    Scan,
    Span,
    Work,
)

# ---- Collectives of a rank, each with its process group and the call that issued it ------------
# On a device a collective is a kernel, which starts when its own rank has come to it and ends when
# the last rank had, plus the transfer. Newer recordings name the group with the kernel; in older
# ones the record of the call does, which the kernel names by its external id. Without a device the
# call is when the rank came, and the range of the backend's own thread ends when the collective is
# done: one follows the other in the same order.


# Names by what is done: also those of PyTorch's calls, of NCCL's and RCCL's kernels.
ALL_REDUCE: Final = "allreduce"
REDUCE_SCATTER: Final = "reducescatter"
ALL_GATHER: Final = "allgather"
ALL_TO_ALL: Final = "alltoall"
BROADCAST: Final = "broadcast"
# Kernels that RCCL and NCCL use for several collectives say in their names none of them; those of
# sends and receives exchange tokens of experts as well.
_GENERIC: Final = ("generic", "", "sendrecv")
_KINDS: Final = (ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER, ALL_TO_ALL, BROADCAST)


@dataclass(frozen=True, slots=True)
class Collective:
    """A collective as this rank saw it; times in ns."""

    name: str
    group: str
    description: str
    size: int | None  # ranks of its group
    start: int
    end: int
    issued: int  # when the host called it
    returned: int  # when that call was over
    event: int


def adopt_kernels(scan: Scan) -> None:
    """Take kernels for works of process groups whose names do not say it.

    Those are what the record of a call launched, of backends other than NCCL: XPU's for example.
    Only where a recording has no works of a device.
    """
    records = {
        issue.external: issue for issue in scan.issues if issue.group and issue.external >= 0
    }
    if not records or any(work.on_device for work in scan.works):
        return
    numbers = np.array(sorted(records), np.int64)
    table = PackedTable(Kernels.COLUMNS)
    for columns in scan.kernels.table.read(*range(Kernels.COLUMNS)):
        external = columns[Kernels.EXTERNAL]
        place = np.minimum(np.searchsorted(numbers, external), len(numbers) - 1)
        called = (numbers[place] == external) & (columns[Kernels.ACTIVITY] == Activity.KERNEL)
        work = columns[Kernels.WORK].copy()
        for row in np.flatnonzero(called).tolist():
            record = records[int(external[row])]
            start = int(columns[Kernels.START][row])
            span = Span(start, start + int(columns[Kernels.DURATION][row]), record.span.event)
            correlation = int(columns[Kernels.CORRELATION][row])
            work[row] = len(scan.works)
            scan.works.append(
                Work(
                    record.name,
                    record.group,
                    record.description,
                    record.seq,
                    span,
                    on_device=True,
                    correlation=correlation,
                    external=record.external,
                    size=record.size,
                )
            )
        kept = list(columns)
        kept[Kernels.WORK] = work
        table.extend(*kept)
    scan.kernels.table = table


def kind_of(name: str) -> str:
    """Return what a collective does, whatever its variant is called.

    Examples
    --------
    >>> kind_of("allgathercoalesced"), kind_of("allreduce")
    ('allgather', 'allreduce')
    """
    return next((kind for kind in _KINDS if name.startswith(kind)), name)


def collectives_of(scan: Scan) -> list[Collective]:
    """Return a scan's collectives, by start."""
    found = _on_device(scan) if len(scan.kernels) else _on_host(scan)
    return sorted(found, key=lambda one: (one.start, one.end))


def _on_device(scan: Scan) -> Iterator[Collective]:
    works = [work for work in scan.works if work.on_device]
    launched = launch_times(scan, works)
    records = _by_external(scan.issues)
    groups = [work.group for work in scan.works] + [issue.group for issue in records.values()]
    streams = {} if any(groups) else _streams(scan)
    ranges = sorted((w for w in scan.works if not w.on_device), key=lambda work: work.span.start)
    starts = [work.span.start for work in ranges]
    # Several kernels with one number are one collective.
    joined: dict[tuple[str, str, int], Collective] = {}
    for number, work in enumerate(works):
        record = records.get(work.external)
        issued = launched.get(work.correlation)
        if issued is None:
            issued = work.span.start if record is None else record.span.start
        name = kind_of(work.name)
        if name not in _KINDS:
            said = "" if record is None else record.name
            at = bisect_right(starts, issued) - 1
            if kind_of(said) not in _KINDS and at >= 0 and ranges[at].span.end >= issued:
                said = ranges[at].name
            name = kind_of(said) if said and name in (*_GENERIC, *_KINDS) else kind_of(name)
        one = _collective(name, work, record, issued)
        if id(work) in streams:
            one = replace(one, group=f"stream {streams[id(work)]}")
        seq = work.seq if work.seq is not None else None if record is None else record.seq
        key = (one.group, one.name, -1 - number if seq is None else seq)
        known = joined.get(key)
        joined[key] = (
            one
            if known is None
            else replace(known, start=min(known.start, one.start), end=max(known.end, one.end))
        )
    yield from joined.values()


def _collective(name: str, work: Work, record: Issue | None, issued: int) -> Collective:
    said = None if record is None else record
    return Collective(
        name,
        work.group or (said.group if said else ""),
        work.description or (said.description if said else ""),
        work.size if work.size is not None else (said.size if said else None),
        work.span.start,
        work.span.end,
        issued,
        issued,
        work.span.event,
    )


def _streams(scan: Scan) -> dict[int, int]:
    """Return the stream that carried each work out, by the work's identity.

    Every process group of PyTorch has one of its own, which tells groups apart that have no names.
    """
    found: dict[int, int] = {}
    for work, stream in scan.kernels.table.read(Kernels.WORK, Kernels.STREAM):
        mine = work >= 0
        for number, of in zip(work[mine].tolist(), stream[mine].tolist(), strict=True):
            found[id(scan.works[number])] = of
    return found


def _by_external(issues: Sequence[Issue]) -> Mapping[int, Issue]:
    """Return what was called by its external id: the record of a process group, where there is."""
    named = [issue for issue in issues if issue.external >= 0]
    found = {issue.external: issue for issue in named}
    return found | {issue.external: issue for issue in named if issue.group}


def _on_host(scan: Scan) -> Iterator[Collective]:
    works = sorted(
        (work for work in scan.works if not work.on_device), key=lambda work: work.span.start
    )
    issues = sorted(
        (issue for issue in scan.issues if kind_of(issue.name) in _KINDS),
        key=lambda issue: issue.span.start,
    )
    # Of two records of one call, the dispatcher's and the process group's, the outer one counts.
    outer = [next(alike) for _, alike in groupby(issues, _Nested())]
    at = 0
    for work in works:
        if kind_of(work.name) not in _KINDS:
            continue
        # The backend begins what was called first first.
        if at < len(outer) and outer[at].span.start <= work.span.start:
            issue = outer[at]
            at += 1
            yield Collective(
                kind_of(issue.name),
                issue.group or work.group,
                issue.description or work.description,
                issue.size,
                issue.span.start,
                work.span.end,
                issue.span.start,
                issue.span.end,
                work.span.event,
            )


class _Nested:
    """Groups calls, which come by start: those within the first of a group belong to it."""

    def __init__(self) -> None:
        self._number = 0
        self._end = -1
        self._thread = -1

    def __call__(self, issue: Issue) -> int:
        if issue.thread != self._thread or issue.span.start > self._end:
            self._number += 1
            self._end, self._thread = issue.span.end, issue.thread
        return self._number


# ---- What the process groups of a job without labels share out, and where a rank stands --------
# Gradients are reduced while a backward runs and never in a forward; tensor-parallel ranks reduce
# activations in both. Groups whose description says what they are, as those of device meshes do,
# are taken at their word.


_REDUCES: Final = (ALL_REDUCE, REDUCE_SCATTER)


@dataclass(frozen=True, slots=True)
class Roles:
    """What groups share out, by their names; None for a group that only has other collectives."""

    of_group: Mapping[str, Dimension | None]
    data: frozenset[str]  # groups whose ranks hold the same parameters or parts of them
    # experts: groups whose ranks exchange tokens, and are data-parallel ranks as well
    experts: frozenset[str] = frozenset()

    @property
    def exchanging(self) -> frozenset[str]:
        """Return the groups whose ranks exchange what they compute: what comes next needs it."""
        within = (Dimension.TENSOR, Dimension.CONTEXT)
        return self.experts | {group for group, role in self.of_group.items() if role in within}

    def is_data(self, one: Collective) -> bool:
        """Return whether a collective is one of data-parallel ranks."""
        return one.group in self.data


def roles_of(found: Iterable[tuple[Collective, Part]], world: int | None = None) -> Roles:
    """Tell groups apart by what they do in which part of a step.

    Where all ranks of the `world` reduce gradients together, those that exchange tokens are among
    them: they share out experts and no sequences.
    """
    done: dict[str, Counter[tuple[str, Part]]] = {}
    described: dict[str, str] = {}
    sizes: dict[str, int | None] = {}
    for one, part in found:
        done.setdefault(one.group, Counter())[one.name, part] += 1
        described.setdefault(one.group, one.description)
        sizes.setdefault(one.group, one.size)
    roles: dict[str, Dimension | None] = {}
    for group, counts in done.items():
        named = dimension_of(described[group])
        roles[group] = named or _role(counts)
    data = {group for group, role in roles.items() if role in DATA_DIMENSIONS}
    if not data:
        # A loop of its own reduces gradients after the backward.
        data = {g for g, counts in done.items() if roles[g] is None and _synchronizes(counts)}
    experts: set[str] = set()
    # Where no sizes are recorded, all ranks count as data-parallel ones.
    if any(sizes[group] in {world, None} for group in data):
        experts = {
            group
            for group, counts in done.items()
            if dimension_of(described[group]) is None and any(n == ALL_TO_ALL for n, _ in counts)
        }
        roles |= dict.fromkeys(experts - data)
    return Roles(roles, frozenset(data), frozenset(experts))


def _role(counts: Counter[tuple[str, Part]]) -> Dimension | None:
    forward = sum(counts[name, Part.FORWARD] for name in _REDUCES)
    backward = sum(counts[name, Part.BACKWARD] for name in _REDUCES)
    if forward and backward:
        return Dimension.TENSOR
    if backward:
        shards = counts[ALL_GATHER, Part.FORWARD] + counts[REDUCE_SCATTER, Part.BACKWARD]
        return Dimension.SHARD if shards else Dimension.DATA
    if any(name == ALL_TO_ALL for name, _ in counts):
        return Dimension.CONTEXT
    return None


def _synchronizes(counts: Counter[tuple[str, Part]]) -> bool:
    return any(name in (*_REDUCES, ALL_GATHER) for name, _ in counts)


def place(  # noqa: PLR0913, PLR0917 - all that says where a rank stands
    rank: int,
    world: int,
    groups: Sequence[Group],
    roles: Roles,
    sizes: Mapping[str, int],
    meta: SessionMeta | None,
) -> Cell:
    """Return where a rank stands in a job of one pipeline stage.

    Parameters
    ----------
    groups : sequence of Group
        With the ranks that they have.
    sizes : mapping of str to int
        Ranks of each group, as its collectives say.
    meta : SessionMeta or None
        What was given with the recording.

    Raises
    ------
    InvalidMetadataError
        See `cell_of`.
    """
    if meta is not None or any(dimension_of(group.description) for group in groups):
        return cell_of(rank, world, groups, (), meta)
    known = {group.name: group for group in groups if rank in group.ranks}
    data = [known[name] for name in sorted(roles.data) if name in known]
    data = [group for group in data if len(group.ranks) > 1]
    if any(len(group.ranks) == world for group in data) or not data:
        return _without_ranks(rank, world, roles, sizes)
    data.sort(key=lambda group: len(group.ranks))
    # Of ranks that shard and ranks that replicate one group is a slice across the others.
    kept: list[Group] = []
    for group in reversed(data):
        if all(len(set(group.ranks) & set(other.ranks)) == 1 for other in kept):
            kept.append(group)
    dp, dp_rank = 1, 0
    for group in sorted(kept, key=lambda group: group.ranks[1] - group.ranks[0], reverse=True):
        dp_rank = dp_rank * len(group.ranks) + group.ranks.index(rank)
        dp *= len(group.ranks)
    if world % dp:
        return _without_ranks(rank, world, roles, sizes)
    return Cell(Sizes(dp=dp, pp=1, tp=world // dp), dp_rank, 0)


def _without_ranks(rank: int, world: int, roles: Roles, sizes: Mapping[str, int]) -> Cell:
    """Place a rank by the sizes of groups alone: the innermost ranks are no data-parallel ones."""
    inner = 1
    for group, role in roles.of_group.items():
        size = sizes.get(group, 1)
        if role in {Dimension.TENSOR, Dimension.CONTEXT} and size < world and world % size == 0:
            inner = max(inner, size)
    return Cell(Sizes(dp=world // inner, pp=1, tp=inner), rank // inner, 0)
