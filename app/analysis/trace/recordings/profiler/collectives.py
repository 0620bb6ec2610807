"""Collectives of a rank without labels, and the parallel dimensions of their process groups.

A collective kernel starts when its own rank arrives, and ends after the last rank has arrived and
the data are transferred. Newer recordings name the process group in the kernel's event, older
recordings in the event of the call (same external id). Without a device a collective lasts from the
call to the end of the range on the backend's thread, which runs collectives in the order of their
calls. A process group without a description is data-parallel if it reduces only in backwards, and
tensor-parallel if it also reduces in forwards (activations).
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

# Kinds of collectives: prefixes of the names of PyTorch's calls and of NCCL's and RCCL's kernels.
ALL_REDUCE: Final = "allreduce"
REDUCE_SCATTER: Final = "reducescatter"
ALL_GATHER: Final = "allgather"
ALL_TO_ALL: Final = "alltoall"
BROADCAST: Final = "broadcast"
# Kernel names that RCCL and NCCL use for several collectives. Send-receive kernels also exchange
# the tokens of experts, so their name does not identify the collective either.
_GENERIC: Final = ("generic", "", "sendrecv")
_KINDS: Final = (ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER, ALL_TO_ALL, BROADCAST)
_REDUCES: Final = (ALL_REDUCE, REDUCE_SCATTER)


@dataclass(frozen=True, slots=True)
class Collective:
    """A collective on one rank; times in ns."""

    name: str
    group: str
    description: str
    size: int | None  # number of ranks of the group
    start: int
    end: int
    issued: int  # start of the call on the host
    returned: int  # end of the call on the host
    event: int
    # Whether the recording lacks the kernel of the call; start and end are then those of the call.
    lost: bool = False


def assign_kernels(scan: Scan) -> None:
    """Add works for kernels of collectives whose names do not identify the collective, as on XPU.

    A kernel belongs to a collective if the call of a process group launched it. A scan that already
    has works on a device is not changed. A "work" is a collective or transfer of a process group.
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
        launched = (numbers[place] == external) & (columns[Kernels.ACTIVITY] == Activity.KERNEL)
        work = columns[Kernels.WORK].copy()
        for row in np.flatnonzero(launched).tolist():
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
    """Return the kind of a collective from the name of one of its variants.

    Examples
    --------
    >>> kind_of("allgathercoalesced"), kind_of("allreduce")
    ('allgather', 'allreduce')
    """
    return next((kind for kind in _KINDS if name.startswith(kind)), name)


def collectives_of(scan: Scan) -> list[Collective]:
    """Return a scan's collectives, sorted by start."""
    collectives = _on_device(scan) if len(scan.kernels) else _on_host(scan)
    return sorted(collectives, key=lambda collective: (collective.start, collective.end))


def _on_device(scan: Scan) -> Iterator[Collective]:
    works = [work for work in scan.works if work.on_device]
    launched = launch_times(scan, works)
    # Calls by external id. A call has two records; the record of the process group is used, since
    # it names the group.
    named = [issue for issue in scan.issues if issue.external >= 0]
    records = {issue.external: issue for issue in named}
    records |= {issue.external: issue for issue in named if issue.group}
    groups = [work.group for work in scan.works] + [issue.group for issue in records.values()]
    streams = {} if any(groups) else _streams(scan)
    ranges = sorted((w for w in scan.works if not w.on_device), key=lambda work: work.span.start)
    starts = [work.span.start for work in ranges]
    # Several kernels with the same sequence number belong to one collective.
    joined: dict[tuple[str, str, int], Collective] = {}
    for number, work in enumerate(works):
        record = records.get(work.external)
        issued = launched.get(work.correlation)
        if issued is None:
            issued = work.span.start if record is None else record.span.start
        name = kind_of(work.name)
        if name not in _KINDS:
            recorded = "" if record is None else record.name
            at = bisect_right(starts, issued) - 1
            if kind_of(recorded) not in _KINDS and at >= 0 and ranges[at].span.end >= issued:
                recorded = ranges[at].name
            if recorded and name in (*_GENERIC, *_KINDS):
                name = kind_of(recorded)
        collective = Collective(
            name,
            work.group or (record.group if record else ""),
            work.description or (record.description if record else ""),
            work.size if work.size is not None else (record.size if record else None),
            work.span.start,
            work.span.end,
            issued,
            issued,
            work.span.event,
        )
        if id(work) in streams:
            collective = replace(collective, group=f"stream {streams[id(work)]}")
        seq = work.seq if work.seq is not None else None if record is None else record.seq
        key = (collective.group, collective.name, -1 - number if seq is None else seq)
        earlier = joined.get(key)
        if earlier is not None:
            start, end = min(earlier.start, collective.start), max(earlier.end, collective.end)
            collective = replace(earlier, start=start, end=end)
        joined[key] = collective
    yield from joined.values()
    yield from _without_kernels(scan, list(joined.values()))


# A profiler that lost kernels still has most kernels of the calls.
_LOST_AT_MOST: Final = 0.5


def _without_kernels(scan: Scan, found: Sequence[Collective]) -> Iterator[Collective]:
    """Yield the reductions that a rank called but whose kernels the profiler lost.

    Calls of which most launch no kernel within the call are of another backend, or their kernels
    are launched together later.
    """
    launched = np.sort(np.array([collective.issued for collective in found], np.int64))
    calls: dict[str, list[Issue]] = {}
    issues = sorted(
        (issue for issue in scan.issues if kind_of(issue.name) in _REDUCES),
        key=lambda issue: issue.span.start,
    )
    for _, nested in groupby(issues, _Nested()):
        alike = list(nested)
        named = next((issue for issue in alike if issue.group), alike[-1])
        calls.setdefault(named.group, []).append(replace(named, span=alike[0].span))
    for group, of_group in calls.items():
        within = [
            int(np.searchsorted(launched, issue.span.end, side="right"))
            > int(np.searchsorted(launched, issue.span.start))
            for issue in of_group
        ]
        if sum(within) < len(within) * _LOST_AT_MOST:
            continue
        template = next((c for c in found if c.group == group), None) or found[0]
        for issue, is_launched in zip(of_group, within, strict=True):
            if not is_launched:
                yield replace(
                    template,
                    name=kind_of(issue.name),
                    start=issue.span.start,
                    end=issue.span.end,
                    issued=issue.span.start,
                    returned=issue.span.end,
                    event=issue.span.event,
                    lost=True,
                )


def _streams(scan: Scan) -> dict[int, int]:
    """Return the device stream of each work by `id(work)`.

    PyTorch runs each process group on its own stream, so streams distinguish groups without names.
    """
    streams: dict[int, int] = {}
    for work, stream in scan.kernels.table.read(Kernels.WORK, Kernels.STREAM):
        mine = work >= 0
        for number, stream_number in zip(work[mine].tolist(), stream[mine].tolist(), strict=True):
            streams[id(scan.works[number])] = stream_number
    return streams


def _on_host(scan: Scan) -> Iterator[Collective]:
    works = sorted(
        (work for work in scan.works if not work.on_device), key=lambda work: work.span.start
    )
    issues = sorted(
        (issue for issue in scan.issues if kind_of(issue.name) in _KINDS),
        key=lambda issue: issue.span.start,
    )
    # A call has two nested records, by the dispatcher and by the process group; only the outer
    # record counts.
    outer = [next(alike) for _, alike in groupby(issues, _Nested())]
    at = 0
    for work in works:
        if kind_of(work.name) not in _KINDS:
            continue
        # Calls and backend ranges are matched in order, since a backend runs collectives in the
        # order of their calls.
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
    """Grouping key of calls by start: nested calls get the number of the outermost call."""

    def __init__(self) -> None:
        self._number = 0
        self._end = -1
        self._thread = -1

    def __call__(self, issue: Issue) -> int:
        if issue.thread != self._thread or issue.span.start > self._end:
            self._number += 1
            self._end, self._thread = issue.span.end, issue.thread
        return self._number


@dataclass(frozen=True, slots=True)
class Roles:
    """Parallel dimension of each process group by name; None if it is unknown."""

    of_group: Mapping[str, Dimension | None]
    data: frozenset[str]  # groups whose ranks hold the same parameters or shards of them
    # Expert-parallel groups. Their ranks exchange tokens, and are also data-parallel ranks.
    experts: frozenset[str] = frozenset()

    @property
    def exchanging(self) -> frozenset[str]:
        """Return the groups that exchange activations for the next computation."""
        within = (Dimension.TENSOR, Dimension.CONTEXT)
        return self.experts | {group for group, role in self.of_group.items() if role in within}

    def is_data(self, collective: Collective) -> bool:
        """Return whether a collective's group is data-parallel."""
        return collective.group in self.data


def roles_of(collectives: Iterable[tuple[Collective, Part]], world: int | None = None) -> Roles:
    """Return the parallel dimension of each group from its collectives in each part of a step.

    If all ranks of the `world` reduce gradients together, the ranks that exchange tokens are
    data-parallel as well: their groups are expert-parallel, not context-parallel.
    """
    done: dict[str, Counter[tuple[str, Part]]] = {}
    described: dict[str, str] = {}
    sizes: dict[str, int | None] = {}
    for collective, part in collectives:
        group = collective.group
        done.setdefault(group, Counter())[collective.name, part] += 1
        described.setdefault(group, collective.description)
        sizes.setdefault(group, collective.size)
    roles: dict[str, Dimension | None] = {}
    for group, counts in done.items():
        named = dimension_of(described[group])
        roles[group] = named or _role(counts)
    data = {group for group, role in roles.items() if role in DATA_DIMENSIONS}
    if not data:
        # No group reduces during the backward: a hand-written loop reduces gradients after it.
        data = {
            group
            for group, counts in done.items()
            if roles[group] is None and any(n in (*_REDUCES, ALL_GATHER) for n, _ in counts)
        }
    experts: set[str] = set()
    # If the sizes of groups are not recorded, all ranks are assumed to be data-parallel.
    if any(sizes[group] in {world, None} for group in data):
        experts = {
            group
            for group, counts in done.items()
            if dimension_of(described[group]) is None and any(n == ALL_TO_ALL for n, _ in counts)
        }
        roles |= dict.fromkeys(experts - data)
    return Roles(roles, frozenset(data), frozenset(experts))


def _role(counts: Counter[tuple[str, Part]]) -> Dimension | None:
    """Return the parallel dimension of a group from its collectives in each part of a step."""
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


def place(  # noqa: PLR0913, PLR0917 - sources of a rank's place
    rank: int,
    world: int,
    groups: Sequence[Group],
    roles: Roles,
    sizes: Mapping[str, int],
    meta: SessionMeta | None,
) -> Cell:
    """Return the sizes and the DP rank of a rank in a job with a single pipeline stage.

    Parameters
    ----------
    groups : sequence of Group
        Process groups of the rank, with the ranks in each group.
    sizes : mapping of str to int
        Number of ranks of each group, from its collectives.
    meta : SessionMeta or None
        Metadata given with the recording.

    Raises
    ------
    InvalidMetadataError
        See `cell_of`.
    """
    if meta is not None or any(dimension_of(group.description) for group in groups):
        return cell_of(rank, world, groups, (), meta)
    own_groups = {group.name: group for group in groups if rank in group.ranks}
    data = [own_groups[name] for name in sorted(roles.data) if name in own_groups]
    data = [group for group in data if len(group.ranks) > 1]
    if any(len(group.ranks) == world for group in data) or not data:
        return _without_ranks(rank, world, roles, sizes)
    data.sort(key=lambda group: len(group.ranks))
    # Of data-parallel groups, a sharding group and a replicating group share exactly one rank.
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
    """Return a rank's place from group sizes alone; consecutive ranks are tensor-parallel."""
    inner = 1
    for group, role in roles.of_group.items():
        size = sizes.get(group, 1)
        if role in {Dimension.TENSOR, Dimension.CONTEXT} and size < world and world % size == 0:
            inner = max(inner, size)
    return Cell(Sizes(dp=world // inner, pp=1, tp=inner), rank // inner, 0)
