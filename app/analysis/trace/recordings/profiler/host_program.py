"""Parts of each step on the host (forward, backward, optimizer) from a recording without labels.

Autograd runs the nodes of a backward one after the other (``autograd::engine::evaluate_function``).
Operators before the first backward are a forward, operators between two backwards are the forward
of the next accumulation round, and operators after the last backward are the optimizer.
Recomputation within a backward (activation checkpointing) is part of the backward.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from app.analysis.trace.model import DATA_LOADING
from app.analysis.trace.recordings.profiler.scan import Links, Mark, Ranges, Scan, Span

IntArray = NDArray[np.int64]

# Framework ranges that end a backward, after its last autograd node.
_ENDS_BACKWARD: Final = (
    "FSDP::root_post_backward",
    "FullyShardedDataParallel._post_backward_final",
)
# Framework ranges that occur only within a forward.
_IN_FORWARD: Final = (
    "DistributedDataParallel.forward",
    "FSDP::pre_forward",
    "FSDP::root_pre_forward",
    "FullyShardedDataParallel.forward",
    "## forward",
)
_ZEROES: Final = "Optimizer.zero_grad#"
_STEPS: Final = "Optimizer.step#"
# Fewest operators of a forward; summing the losses, which is no forward, calls fewer.
_LEAST_OPERATORS: Final = 8


class Part(Enum):
    """Kind of a part of a training step."""

    FORWARD = auto()
    BACKWARD = auto()
    OPTIMIZER = auto()  # from the end of the last backward
    AFTER = auto()  # after the optimizer, before the next forward, and steps without a backward


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of a step on the host; it ends at the begin of the next segment."""

    begin: int  # ns
    step: int
    part: Part
    mb: int  # round of gradient accumulation


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """Segments of all steps of a rank on the host; times in ns."""

    main: int  # thread that runs the steps
    segments: tuple[Segment, ...]  # sorted by begin
    begins: IntArray  # (segments,): begin of each segment, ns
    called: IntArray  # (calls,): operators and launches of the main thread, rising
    own: IntArray  # `called` without autograd, the optimizer and the loader
    optimizers: tuple[Span, ...]
    loaders: tuple[Span, ...]
    backward_ends: IntArray  # (segments,): end of a backward's last node, 0 for other segments

    def at(self, times: IntArray) -> IntArray:
        """Return the index of the segment at each time; -1 before the first segment."""
        return np.searchsorted(self.begins, times, side="right") - 1


def read_program(scan: Scan) -> Program:
    """Return the segments of all steps of a scan on the host."""
    gradients = _gradients(scan)
    main = _main_thread(scan, gradients)
    called = np.sort(
        np.concatenate(
            [
                start[thread == main]
                for table in (scan.operators.table, scan.launches.table)
                for start, thread in table.read(Links.START, Links.THREAD)
            ]
            or [np.zeros(0, np.int64)]
        )
    )
    loaders = tuple(sorted((s for op, s in scan.between if op == DATA_LOADING), key=_begin))
    optimizers = tuple(sorted(scan.optimizers, key=_begin))
    zeroes = [mark.span for mark in scan.marks if mark.name.startswith(_ZEROES)]
    apart = sorted([*loaders, *optimizers, *zeroes], key=_begin)
    own = _outside(
        called,
        np.array([span.start for span in apart], np.int64),
        np.array([span.end for span in apart], np.int64),
    )
    gradients = _with_final_calls(scan, gradients, main)
    on_main = gradients.thread == main
    own = _outside(own, gradients.start[on_main], gradients.end[on_main])
    passes = _passes(scan.marks, gradients, own)
    openings = np.array(
        sorted([span.start for span in loaders] + [z.end for z in zeroes]), np.int64
    )
    segments, ends = [], []
    for begin, end, step in _windows(scan, optimizers, passes, called):
        opens = _first_forward(begin, passes, openings, own)
        for segment, backward_end in _segments(begin, opens, end, step, passes, optimizers):
            segments.append(segment)
            ends.append(backward_end)
    begins = np.array([segment.begin for segment in segments], np.int64)
    return Program(
        main,
        tuple(segments),
        begins,
        called,
        own,
        optimizers,
        loaders,
        np.array(ends, np.int64),
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Gradients:
    """Autograd nodes, and framework ranges that end a backward, sorted by start."""

    start: IntArray
    end: IntArray
    thread: IntArray


def _begin(span: Span) -> int:
    return span.start


def _gradients(scan: Scan) -> _Gradients:
    columns = [
        np.stack([start, start + duration, thread])
        for start, duration, thread in scan.gradients.table.read(
            Ranges.START, Ranges.DURATION, Ranges.THREAD
        )
    ]
    columns += [
        np.array([[mark.span.start], [mark.span.end], [mark.thread]], np.int64)
        for mark in scan.marks
        if mark.name.startswith(_ENDS_BACKWARD)
    ]
    every = np.concatenate(columns, axis=1) if columns else np.zeros((3, 0), np.int64)
    every = every[:, np.argsort(every[0], kind="stable")]
    return _Gradients(*every)


def _with_final_calls(scan: Scan, gradients: _Gradients, main: int) -> _Gradients:
    """Add the calls of collectives on autograd's threads, which may follow the last node.

    DDP reduces its last buckets in a callback of autograd after the nodes of a backward.
    """
    threads = set(gradients.thread.tolist()) - {main}
    calls = [issue for issue in scan.issues if issue.thread in threads]
    if not calls:
        return gradients
    added = [[call.span.start, call.span.end, call.thread] for call in calls]
    every = np.stack([gradients.start, gradients.end, gradients.thread])
    every = np.concatenate([every, np.array(added, np.int64).T], axis=1)
    return _Gradients(*every[:, np.argsort(every[0], kind="stable")])


def _main_thread(scan: Scan, gradients: _Gradients) -> int:
    """Return the thread of the optimizers, or the thread with most calls outside of backwards."""
    for mark in scan.marks:
        if mark.name.startswith(_STEPS):
            return mark.thread
    counts = np.zeros(max(len(scan.threads), 1), np.int64)
    for start, thread in scan.operators.table.read(Links.START, Links.THREAD):
        np.add.at(counts, thread, 1)
        for other in np.unique(thread).tolist():
            mine = gradients.thread == other
            outside = _outside(start[thread == other], gradients.start[mine], gradients.end[mine])
            counts[other] += len(outside) - int((thread == other).sum())
    return int(counts.argmax())


def _outside(times: IntArray, starts: IntArray, ends: IntArray) -> IntArray:
    """Return the times that lie in none of the ranges, which are sorted by start."""
    if not len(starts):
        return times
    latest = np.maximum.accumulate(ends)
    place = np.searchsorted(starts, times, side="right") - 1
    return times[(place < 0) | (times > latest[np.maximum(place, 0)])]


def _passes(marks: Sequence[Mark], gradients: _Gradients, own: IntArray) -> tuple[Span, ...]:
    """Return the spans of the backwards: runs of autograd nodes without a forward in between."""
    if not len(gradients.start):
        return ()
    forwards = np.array(
        sorted(mark.span.start for mark in marks if mark.name.startswith(_IN_FORWARD)), np.int64
    )
    done = np.maximum.accumulate(gradients.end)
    between = np.searchsorted(own, gradients.start[1:]) - np.searchsorted(own, done[:-1])
    marked = np.searchsorted(forwards, gradients.start[1:]) - np.searchsorted(forwards, done[:-1])
    cuts = np.flatnonzero((between >= _LEAST_OPERATORS) | (marked > 0)) + 1
    firsts, lasts = np.concatenate([[0], cuts]), np.concatenate([cuts, [len(done)]]) - 1
    return tuple(
        Span(int(gradients.start[first]), int(done[last]), -1)
        for first, last in zip(firsts, lasts, strict=True)
    )


def _windows(
    scan: Scan, optimizers: Sequence[Span], passes: Sequence[Span], called: IntArray
) -> list[tuple[int, int, int]]:
    """Return (begin in ns, end in ns, step number) of each step on the host.

    Steps are the ranges of the profiler. Without such ranges a step ends with the last optimizer
    after a backward; without optimizers the recording is one step.
    """
    if scan.steps:
        numbered = sorted(dict(sorted(scan.steps, reverse=True)).items())
        begins = [begin for begin, _ in numbered] + [max(scan.ends, numbered[-1][0] + 1)]
        return [
            (begin, end, number) for (begin, number), end in zip(numbered, begins[1:], strict=True)
        ]
    if not passes:
        return []
    starts = [span.start for span in passes]
    ends = _last_optimizers(scan, optimizers, starts)
    loading = (span.start for op, span in scan.between if op == DATA_LOADING)
    first = min([*called[:1].tolist(), starts[0], *loading])
    if not ends:
        return [(first, max(passes[-1].end, int(called[-1]) if len(called) else 0) + 1, 0)]
    edges = [first, *ends]
    return [(begin, end, number) for number, (begin, end) in enumerate(pairwise(edges))]


def _last_optimizers(scan: Scan, optimizers: Sequence[Span], backwards: Sequence[int]) -> list[int]:
    """Return the ends of steps, ns: the last optimizers before another forward and backward.

    If several optimizers have their own backwards, such as those of a generator and a
    discriminator, the last optimizer ends the step.
    """
    names = {mark.span: mark.name for mark in scan.marks if mark.name.startswith(_STEPS)}
    last_name = names.get(optimizers[-1], "") if optimizers else ""
    ends = []
    for number, span in enumerate(optimizers):
        following = optimizers[number + 1].start if number + 1 < len(optimizers) else None
        at = bisect_left(backwards, span.end)
        goes_on = following is not None and (at == len(backwards) or backwards[at] > following)
        if not goes_on and names.get(span, "") == last_name:
            ends.append(span.end)
    return ends


def _first_forward(begin: int, passes: Sequence[Span], openings: IntArray, own: IntArray) -> int:
    """Return the begin of the first forward of a step on the host, ns.

    The forward begins when its batch is fetched, or later when gradients have been zeroed; an
    evaluation, or zeroing at the end of a training loop, comes before the forward. A candidate with
    fewer operators between it and the backward than before it lies inside the forward, for example
    a batch fetched ahead, or gradients zeroed after the forward.
    """
    at = bisect_left(passes, begin, key=_begin)
    if at == len(passes):
        return begin
    until = passes[at].start
    first, last = np.searchsorted(openings, [begin, until])
    edges: list[int] = [begin, *openings[first:last].tolist(), until]
    counts = np.diff(np.searchsorted(own, edges))
    for place in range(len(edges) - 2, 0, -1):
        after = int(counts[place:].sum())
        if after >= _LEAST_OPERATORS and after >= counts[place - 1]:
            return edges[place]
    return begin


def _segments(  # noqa: PLR0913, PLR0917 - boundaries of a step
    begin: int,
    opens: int,
    end: int,
    step: int,
    passes: Sequence[Span],
    optimizers: Sequence[Span],
) -> list[tuple[Segment, int]]:
    """Return the segments of a step, each with the end of its backward in ns (0 if it has none)."""
    starts = [span.start for span in passes]
    mine = passes[bisect_left(starts, begin) : bisect_left(starts, end)]
    if not mine:
        return [(Segment(begin, step, Part.AFTER, 0), 0)]
    optimizer_starts = [span.start for span in optimizers]
    updates = optimizers[bisect_left(optimizer_starts, begin) : bisect_right(optimizer_starts, end)]
    segments = [(Segment(begin, step, Part.AFTER, 0), 0)] if opens > begin else []
    segments.append((Segment(opens, step, Part.FORWARD, 0), 0))
    for mb, backward in enumerate(mine):
        segments.append((Segment(backward.start, step, Part.BACKWARD, mb), backward.end))
        until = mine[mb + 1].start if mb + 1 < len(mine) else end
        between = [span for span in updates if backward.start <= span.start < until]
        last = mb + 1 == len(mine)
        if between or last:
            segments.append((Segment(backward.end, step, Part.OPTIMIZER, mb), 0))
        if last and between:
            segments.append((Segment(between[-1].end, step, Part.AFTER, 0), 0))
        elif not last:
            opens = between[-1].end if between else backward.end
            segments.append((Segment(opens, step, Part.FORWARD, mb + 1), 0))
    return segments
