"""Device time of the kernels that a host range launched.

A kernel names its launch by the correlation id of the runtime call and by the external id of the
framework operator. A call or operator belongs to the range in which it starts, also on another
thread: a backward launches from autograd's.
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
# Launches and operators that are looked up at once; a recording may have many millions.
_AT_ONCE: Final = 1 << 18


@dataclass(frozen=True, slots=True)
class Launched:
    """Some kernels that ranges launched, in the order of the recording."""

    place: NDArray[np.int32]  # of the range that launched each
    # start, end: in ns
    start: NDArray[np.int64]
    end: NDArray[np.int64]
    work: NDArray[np.int64]  # index into `Scan.works` of a kernel of a process group, else -1


def launched_kernels(
    scan: Scan, ranges: Sequence[Span], halves: Sequence[Half | None] = ()
) -> Iterator[Launched]:
    """Yield the kernels that a range launched, some thousands at a time; copies are none.

    Parameters
    ----------
    ranges : sequence of Span
        By start; of two that overlap the later one is meant.
    halves : sequence of Half or None
        For each range, which launches inside are meant, where not all are. Such ranges may hold
        others, whose launches are theirs.
    """
    places = np.full(len(scan.kernels), _NOWHERE, np.int32)
    for some in _groups(ranges, halves):
        _look_up(scan.launches, Kernels.CORRELATION, scan.kernels, some, places)
        _look_up(scan.operators, Kernels.EXTERNAL, scan.kernels, some, places)
    columns = (Kernels.START, Kernels.DURATION, Kernels.WORK, Kernels.ACTIVITY)
    at = 0
    for start, duration, work, activity in scan.kernels.table.read(*columns):
        place = places[at : at + len(start)]
        at += len(start)
        inside = (place != _NOWHERE) & (activity == Activity.KERNEL)
        yield Launched(place[inside], start[inside], (start + duration)[inside], work[inside])


class _Some(NamedTuple):
    """Ranges of one kind: all launches inside, those of the range's own thread, or all others."""

    place: NDArray[np.int32]  # among all ranges
    # start, end: in ns
    start: NDArray[np.int64]
    end: NDArray[np.int64]
    thread: NDArray[np.int64]
    kind: bool | None  # `Half.backward`

    def at(self, time: NDArray[np.int64], thread: NDArray[np.int64]) -> NDArray[np.int32]:
        """Return the place of the range that a launch is of."""
        if not len(self.place):
            return np.full(len(time), _NOWHERE, np.int32)
        found = np.searchsorted(self.start, time, side="right") - 1
        inside = (found >= 0) & (time <= self.end[found])
        if self.kind is not None:
            inside &= (thread == self.thread[found]) != self.kind
        return np.where(inside, self.place[found], _NOWHERE).astype(np.int32)


def _groups(ranges: Sequence[Span], halves: Sequence[Half | None]) -> Iterator[_Some]:
    kinds = [half and half.backward for half in halves] or [None] * len(ranges)
    for kind in (None, False, True):
        mine = [place for place, one in enumerate(kinds) if one is kind]
        threads = [half.thread for half in halves if half is not None and half.backward is kind]
        yield _Some(
            np.array(mine, np.int32),
            np.array([ranges[place].start for place in mine], np.int64),
            np.array([ranges[place].end for place in mine], np.int64),
            np.array(threads, np.int64),
            kind,
        )


def launch_times(scan: Scan, works: Iterable[Work]) -> dict[int, int]:
    """Return when the host launched kernels of works, by their correlation ids."""
    numbers = np.array(sorted({work.correlation for work in works if work.on_device}), np.int64)
    found: dict[int, int] = {}
    for start, number in scan.launches.table.read(Links.START, Links.NUMBER):
        mine = np.isin(number, numbers)
        found.update(zip(number[mine].tolist(), start[mine].tolist(), strict=True))
    return found


def _look_up(
    links: Links,
    named_by: int,
    kernels: Kernels,
    ranges: _Some,
    places: NDArray[np.int32],
) -> None:
    """Note the range in which the link of each kernel started, where none is known yet."""
    shares = -(-len(links) // _AT_ONCE) if len(ranges.place) else 0
    for share in range(shares):
        number, inside = _links(links, share, shares, ranges)
        if not len(number):
            continue
        at = 0
        for (wanted,) in kernels.table.read(named_by):
            place = places[at : at + len(wanted)]
            at += len(wanted)
            found = np.minimum(np.searchsorted(number, wanted), len(number) - 1)
            known = (number[found] == wanted) & (wanted >= 0) & (place == _NOWHERE)
            place[known] = inside[found[known]]


def _links(
    links: Links, share: int, shares: int, ranges: _Some
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Return the numbers of one share of the links, rising, and the range that each started in."""
    numbers, places = [], []
    for start, number, thread in links.table.read(Links.START, Links.NUMBER, Links.THREAD):
        mine = number % shares == share
        numbers.append(number[mine])
        places.append(ranges.at(start[mine], thread[mine]))
    number = np.concatenate(numbers)
    order = np.argsort(number, kind="stable")
    return number[order], np.concatenate(places)[order]
