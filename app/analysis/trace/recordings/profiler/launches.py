"""Device times of the kernels that a host range launched.

A kernel refers to its launch by the correlation id of the runtime call and the external id of the
framework operator. A call or operator belongs to the range in which it starts, even on another
thread, because a backward launches kernels from autograd's threads.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from app.analysis.trace.recordings.profiler.scan import (
    Activity,
    Half,
    Kernels,
    Links,
    Scan,
    Span,
    Work,
)

_NOWHERE: Final = -1
# Maximum number of launches and operators that are matched at once, to bound memory: a recording
# may have millions.
_AT_ONCE: Final = 1 << 18


@dataclass(frozen=True, slots=True)
class Launched:
    """Kernels launched in ranges, in recorded order."""

    place: NDArray[np.int32]  # (kernels,): index of the range that launched each kernel
    # start, end: in ns, shape (kernels,)
    start: NDArray[np.int64]
    end: NDArray[np.int64]
    work: NDArray[np.int64]  # index into `Scan.works` of a kernel of a process group, else -1


def launched_kernels(
    scan: Scan, ranges: Sequence[Span], halves: Sequence[Half | None] = ()
) -> Iterator[Launched]:
    """Yield the kernels launched in ranges, some thousands at a time, without memory copies.

    Parameters
    ----------
    ranges : sequence of Span
        Ranges sorted by start; a launch inside two ranges belongs to the range that starts later.
    halves : sequence of Half or None
        For each range, the half (forward or backward) whose launches count; None to count all
        launches. A range inside such a range keeps its own launches.
    """
    places = np.full(len(scan.kernels), _NOWHERE, np.int32)
    for of_kind in _by_kind(ranges, halves):
        _look_up(scan.launches, Kernels.CORRELATION, scan.kernels, of_kind, places)
        _look_up(scan.operators, Kernels.EXTERNAL, scan.kernels, of_kind, places)
    columns = (Kernels.START, Kernels.DURATION, Kernels.WORK, Kernels.ACTIVITY)
    at = 0
    for start, duration, work, activity in scan.kernels.table.read(*columns):
        place = places[at : at + len(start)]
        at += len(start)
        inside = (place != _NOWHERE) & (activity == Activity.KERNEL)
        yield Launched(place[inside], start[inside], (start + duration)[inside], work[inside])


class _RangesOfKind(NamedTuple):
    """Ranges that own all launches inside them, or only those on or off the range's thread."""

    place: NDArray[np.int32]  # (ranges,): index of each range among all ranges
    # start, end: in ns, shape (ranges,)
    start: NDArray[np.int64]
    end: NDArray[np.int64]
    thread: NDArray[np.int64]
    kind: bool | None  # `Half.backward`

    def at(self, time: NDArray[np.int64], thread: NDArray[np.int64]) -> NDArray[np.int32]:
        """Return the index of the range that contains each launch; `_NOWHERE` if none does."""
        if not len(self.place):
            return np.full(len(time), _NOWHERE, np.int32)
        latest = np.searchsorted(self.start, time, side="right") - 1
        inside = (latest >= 0) & (time <= self.end[latest])
        if self.kind is not None:
            inside &= (thread == self.thread[latest]) != self.kind
        return np.where(inside, self.place[latest], _NOWHERE).astype(np.int32)


def _by_kind(ranges: Sequence[Span], halves: Sequence[Half | None]) -> Iterator[_RangesOfKind]:
    kinds = [half and half.backward for half in halves] or [None] * len(ranges)
    for kind in (None, False, True):
        mine = [place for place, kind_of_range in enumerate(kinds) if kind_of_range is kind]
        threads = [half.thread for half in halves if half is not None and half.backward is kind]
        yield _RangesOfKind(
            np.array(mine, np.int32),
            np.array([ranges[place].start for place in mine], np.int64),
            np.array([ranges[place].end for place in mine], np.int64),
            np.array(threads, np.int64),
            kind,
        )


def rows_of(links: Links, wanted: NDArray[np.int64]) -> NDArray[np.intp]:
    """Return the row of the launch or operator with each id; -1 for unknown ids."""
    number = np.concatenate([part for (part,) in links.table.read(Links.NUMBER)])
    order = np.argsort(number, kind="stable")
    number = number[order]
    place = np.minimum(np.searchsorted(number, wanted), len(number) - 1)
    return np.where(number[place] == wanted, order[place], -1)


def launch_times(scan: Scan, works: Iterable[Work]) -> dict[int, int]:
    """Return the launch times of the works' kernels by correlation id, ns."""
    numbers = np.array(sorted({work.correlation for work in works if work.on_device}), np.int64)
    times: dict[int, int] = {}
    for start, number in scan.launches.table.read(Links.START, Links.NUMBER):
        mine = np.isin(number, numbers)
        times.update(zip(number[mine].tolist(), start[mine].tolist(), strict=True))
    return times


def _look_up(
    links: Links,
    named_by: int,
    kernels: Kernels,
    ranges: _RangesOfKind,
    places: NDArray[np.int32],
) -> None:
    """Set the range of each kernel without a range, from the start of its launch or operator."""
    shares = -(-len(links) // _AT_ONCE) if len(ranges.place) else 0
    for share in range(shares):
        # A launch or operator belongs to the range in which it starts.
        numbers, ranges_of = [], []
        for start, number, thread in links.table.read(Links.START, Links.NUMBER, Links.THREAD):
            mine = number % shares == share
            numbers.append(number[mine])
            ranges_of.append(ranges.at(start[mine], thread[mine]))
        number = np.concatenate(numbers)
        order = np.argsort(number, kind="stable")
        number, inside = number[order], np.concatenate(ranges_of)[order]
        if not len(number):
            continue
        at = 0
        for (wanted,) in kernels.table.read(named_by):
            place = places[at : at + len(wanted)]
            at += len(wanted)
            link = np.minimum(np.searchsorted(number, wanted), len(number) - 1)
            matched = (number[link] == wanted) & (wanted >= 0) & (place == _NOWHERE)
            place[matched] = inside[link[matched]]
