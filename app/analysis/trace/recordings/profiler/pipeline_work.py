"""Computations, sends and receives of a pipeline rank from a recording without labels.

On the host, the operators of a microbatch are contiguous between transfers. Operators that autograd
runs, on any thread, belong to a backward; other operators belong to a forward. Computing times are
those of the operators or, with a device, those of the launched kernels.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from app.analysis.trace.recordings.profiler.launches import rows_of
from app.analysis.trace.recordings.profiler.process_groups import is_of_pipeline
from app.analysis.trace.recordings.profiler.scan import (
    Activity,
    Issue,
    Kernels,
    Links,
    PackedTable,
    Scan,
    Span,
    Work,
)

# Least duration of a computation as a share of a typical computation; a shorter block of operators
# between two transfers is bookkeeping. The larger shares are tried after the first, since
# bookkeeping takes longer on a delayed host.
LEAST_SHARES: Final = (0.05, 0.1, 0.2, 0.4)
_TYPICAL: Final = 0.75


@dataclass(frozen=True, slots=True)
class Block:
    """Contiguous operators of one microbatch in one direction.

    Parameters
    ----------
    backward : bool
        Autograd ran the operators.
    host, span : Span
        Time in which the host ran or launched the operators, and time of computing. Both are equal
        if the rank has no device.
    """

    backward: bool
    host: Span
    span: Span


@dataclass(frozen=True, slots=True, eq=False)
class Computed:
    """Operators or kernels of a rank in the order of their host times; times in ns."""

    # host: time of the operator, or of the kernel's launch, on the host; start, end: computing time
    host: NDArray[np.int64]
    start: NDArray[np.int64]
    end: NDArray[np.int64]
    backward: NDArray[np.bool_]


def computed_of(scan: Scan, apart: Sequence[Span]) -> Computed:
    """Return the kernels of a rank that computes on a device, or the operators of another rank.

    Parameters
    ----------
    apart : sequence of Span
        Ranges on the host that belong to no forward or backward: data loaders, optimizers.
    """
    if len(scan.kernels):
        columns = (Kernels.START, Kernels.DURATION, Kernels.CORRELATION, Kernels.EXTERNAL)
        read = [
            np.stack(part)
            for part in scan.kernels.table.read(*columns, Kernels.WORK, Kernels.ACTIVITY)
        ]
        start, duration, correlation, external, work, activity = np.concatenate(read, axis=1)
        computing = (work < 0) & (activity == Activity.KERNEL)
        start, duration = start[computing], duration[computing]
        host = np.full(len(start), -1, np.int64)
        thread = np.full(len(start), -1, np.int64)
        _look_up(scan.launches, correlation[computing], host, thread)
        _look_up(scan.operators, external[computing], host, thread)
        launched = thread >= 0
        host, thread = host[launched], thread[launched]
        start, end = start[launched], (start + duration)[launched]
    else:
        start, duration, thread = columns_of(scan.outer.table, 3)
        host, end = start, start + duration
    usable = ~_inside(host, [(span.start, span.end) for span in apart])
    host, thread, start, end = host[usable], thread[usable], start[usable], end[usable]
    # Operators and launches while autograd runs a node on their thread belong to a backward.
    backward = np.zeros(len(host), np.bool_)
    node_start, node_duration, where = columns_of(scan.gradients.table, 3)
    for number in np.unique(where).tolist():
        mine, there = thread == number, where == number
        ranges = zip(
            node_start[there].tolist(),
            (node_start[there] + node_duration[there]).tolist(),
            strict=True,
        )
        backward[mine] = _inside(host[mine], list(ranges))
    order = np.argsort(host, kind="stable")
    return Computed(host[order], start[order], end[order], backward[order])


def blocks_of(computed: Computed, between: Sequence[int], least_share: float) -> list[Block]:
    """Return the computations of a step in the order of their host times.

    Parameters
    ----------
    least_share : float
        Least duration of a computation as a share of a typical computation; a value of
        `LEAST_SHARES`.
    between : sequence of int
        Host times that separate computations, ns, ascending: of transfers, and of the starts of
        microbatches.
    """
    if not len(computed.host):
        return []
    part = np.searchsorted(np.array(between, np.int64), computed.host, side="right")
    new = (np.diff(part) != 0) | (np.diff(computed.backward.astype(np.int8)) != 0)
    first = np.concatenate([[0], np.flatnonzero(new) + 1])
    last = np.concatenate([first[1:], [len(computed.host)]])
    busy = np.add.reduceat(computed.end - computed.start, first)
    blocks = [
        Block(
            bool(computed.backward[begin]),
            Span(int(computed.host[begin]), int(computed.host[stop - 1]), -1),
            Span(int(computed.start[begin:stop].min()), int(computed.end[begin:stop].max()), -1),
        )
        for begin, stop in zip(first.tolist(), last.tolist(), strict=True)
    ]
    least = least_share * float(np.quantile(busy, _TYPICAL))
    kept = [block for block, time in zip(blocks, busy.tolist(), strict=True) if time >= least]
    while kept and not kept[-1].backward:
        # Forward work after the last backward, such as scaling gradients, belongs to no microbatch.
        kept.pop()
    return _joined(kept, between)


def blocks_named(
    computed: Computed, between: Sequence[int], named: Sequence[tuple[Span, bool]]
) -> list[Block]:
    """Return the computations of a step whose microbatches have named ranges, in host order.

    The range of a microbatch also holds work before and after its transfers: the longest part
    between transfers is its computation.

    Parameters
    ----------
    between : sequence of int
        Host times of transfers, ns, ascending.
    named : sequence of (Span, bool)
        Range of each microbatch, and whether it is a backward; ascending.
    """
    bounds = np.array(between, np.int64)
    blocks = []
    for span, backward in named:
        first, stop = np.searchsorted(computed.host, (span.start, span.end)).tolist()
        if first == stop:
            continue
        part = np.searchsorted(bounds, computed.host[first:stop], side="right")
        cuts = [first, *(first + 1 + np.flatnonzero(np.diff(part))).tolist(), stop]
        busy = computed.end - computed.start
        begin, end = max(pairwise(cuts), key=lambda cut: int(busy[cut[0] : cut[1]].sum()))
        blocks.append(
            Block(
                backward,
                Span(int(computed.host[begin]), int(computed.host[end - 1]), -1),
                Span(int(computed.start[begin:end].min()), int(computed.end[begin:end].max()), -1),
            )
        )
    return blocks


def _joined(blocks: Sequence[Block], between: Sequence[int]) -> list[Block]:
    """Join blocks of a microbatch between which a block was dropped because it is too short."""
    joined: list[Block] = []
    for block in blocks:
        last = joined[-1] if joined else None
        if (
            last is not None
            and last.backward == block.backward
            and np.searchsorted(between, last.host.start, side="right")
            == np.searchsorted(between, block.host.start, side="right")
        ):
            joined[-1] = Block(
                block.backward,
                Span(last.host.start, block.host.end, -1),
                Span(
                    min(last.span.start, block.span.start), max(last.span.end, block.span.end), -1
                ),
            )
        else:
            joined.append(block)
    return joined


def _look_up(
    links: Links, wanted: NDArray[np.int64], host: NDArray[np.int64], thread: NDArray[np.int64]
) -> None:
    """Set missing launch times and threads of kernels from their launches or operators."""
    if not len(links) or not len(wanted):
        return
    started, _, where = columns_of(links.table, 3)
    rows = rows_of(links, wanted)
    matched = (rows >= 0) & (wanted >= 0) & (thread < 0)
    host[matched] = started[rows[matched]]
    thread[matched] = where[rows[matched]]


def _inside(times: NDArray[np.int64], ranges: Sequence[tuple[int, int]]) -> NDArray[np.bool_]:
    """Return whether each time lies within any of the ranges, which may overlap."""
    if not ranges:
        return np.zeros(len(times), np.bool_)
    bounds = np.array(sorted(ranges), np.int64)
    begins, ends = bounds[:, 0], np.maximum.accumulate(bounds[:, 1])
    at = np.searchsorted(begins, times, side="right") - 1
    return (at >= 0) & (times < ends[at])


def columns_of(table: PackedTable, count: int) -> NDArray[np.int64]:
    """Return columns of a packed table as an array, shape (count, rows)."""
    parts = [np.stack(part) for part in table.read(*range(count))]
    return np.concatenate(parts, axis=1) if parts else np.zeros((count, 0), np.int64)


_SEND, _RECEIVE = "send", "recv"
# Names of kernels that carry out several sends and receives issued together.
FUSED: Final = frozenset({"sendrecv", "coalesced"})
TRANSFERS: Final = frozenset({_SEND, _RECEIVE}) | FUSED


@dataclass(frozen=True, slots=True)
class Transfer:
    """A send or a receive between pipeline stages.

    Parameters
    ----------
    issued : int
        Time of the call on the host, ns.
    span : Span
        Time from the posting of the transfer to its end.
    peer : int or None
        Rank at the other end; None if it is not recorded.
    """

    sends: bool
    issued: int
    span: Span
    peer: int | None


def issues_transfers(scan: Scan) -> bool:
    """Return whether a rank's recording has sends or receives between pipeline stages."""
    return bool(_issues(scan))


def transfers_of(scan: Scan) -> list[Transfer]:
    """Return the sends and receives of a rank in the order of their calls on the host."""
    works = [
        work for work in scan.works if work.name in TRANSFERS and is_of_pipeline(work.description)
    ]
    issues = _issues(scan)
    if len(scan.kernels):
        transfers = _on_device(scan, [work for work in works if work.on_device], issues)
    else:
        transfers = _on_host(works, issues)
    return sorted(transfers, key=lambda transfer: transfer.issued)


def _issues(scan: Scan) -> list[Issue]:
    """Return the calls that issued transfers, and of nested calls only the innermost call."""
    issues = [
        issue
        for issue in scan.issues
        if issue.name in {_SEND, _RECEIVE} and is_of_pipeline(issue.description)
    ]
    issues.sort(key=lambda issue: (issue.span.start, -issue.span.end))
    return [
        issue
        for place, issue in enumerate(issues)
        if place + 1 == len(issues)
        or issues[place + 1].span.start >= issue.span.end
        or issues[place + 1].name != issue.name
        or issues[place + 1].thread != issue.thread
    ]


def _on_host(works: Sequence[Work], issues: Sequence[Issue]) -> Iterator[Transfer]:
    """Yield a transfer for each call, with the backend's first range that began after the call."""
    for name in (_SEND, _RECEIVE):
        mine = sorted(
            (work for work in works if work.name == name), key=lambda work: work.span.start
        )
        at = 0
        for issue in issues:
            if issue.name != name:
                continue
            while at < len(mine) and mine[at].span.start < issue.span.start:
                at += 1
            if at == len(mine):
                return
            yield Transfer(name == _SEND, issue.span.start, mine[at].span, mine[at].peer)
            at += 1


def _on_device(scan: Scan, works: Sequence[Work], issues: Sequence[Issue]) -> Iterator[Transfer]:
    """Yield a transfer for each call, with its kernel; calls may share a fused kernel."""
    times = _times(scan.launches, [work.correlation for work in works])
    by_operator = _times(scan.operators, [work.external for work in works])
    launched = [
        launch if launch is not None else operator if operator is not None else work.span.start
        for launch, operator, work in zip(times, by_operator, works, strict=True)
    ]
    pending = list(issues)
    for launch, work in sorted(zip(launched, works, strict=True), key=lambda pair: pair[0]):
        if work.name not in FUSED:
            same = [
                issue for issue in pending if issue.name == work.name and issue.span.start <= launch
            ]
            by_number = [issue for issue in same if issue.external == work.external >= 0]
            issued = launch
            for issue in (by_number or same[-1:])[:1]:
                pending.remove(issue)
                issued = issue.span.start
            yield Transfer(work.name == _SEND, issued, work.span, work.peer)
            continue
        carried = [issue for issue in pending if issue.span.start <= launch]
        pending = [issue for issue in pending if issue.span.start > launch]
        for issue in carried:
            yield Transfer(issue.name == _SEND, issue.span.start, work.span, issue.peer)


def _times(links: Links, numbers: Sequence[int]) -> list[int | None]:
    """Return the start of the launch or operator with each id, ns; None for unknown ids."""
    started, number, _ = columns_of(links.table, 3)
    wanted = np.isin(number, np.array([n for n in numbers if n >= 0], np.int64))
    start_of = dict(zip(number[wanted].tolist(), started[wanted].tolist(), strict=True))
    return [start_of.get(n) for n in numbers]
