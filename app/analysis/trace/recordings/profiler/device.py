"""When the device did what a range on the host launched.

A kernel names what launched it twice: by the correlation id of the call of the runtime, and by the
external id of the framework's operator. A call or an operator belongs to the range in which it
started, also on another thread: a backward launches from autograd's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from app.analysis.trace.recordings.profiler.scan import Kernels, Links, Scan, Span

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


def launched_kernels(scan: Scan, ranges: Sequence[Span]) -> Iterator[Launched]:
    """Yield the kernels that a range launched, some thousands at a time.

    Parameters
    ----------
    ranges : sequence of Span
        By start; of two that overlap the later one is meant.
    """
    places = np.full(len(scan.kernels), _NOWHERE, np.int32)
    bounds = (
        np.array([span.start for span in ranges], np.int64),
        np.array([span.end for span in ranges], np.int64),
    )
    _look_up(scan.launches, Kernels.CORRELATION, scan.kernels, bounds, places)
    _look_up(scan.operators, Kernels.EXTERNAL, scan.kernels, bounds, places)
    columns = (Kernels.START, Kernels.DURATION, Kernels.WORK)
    at = 0
    for start, duration, work in scan.kernels.table.read(*columns):
        place = places[at : at + len(start)]
        at += len(start)
        inside = place != _NOWHERE
        yield Launched(place[inside], start[inside], (start + duration)[inside], work[inside])


def _look_up(
    links: Links,
    named_by: int,
    kernels: Kernels,
    bounds: tuple[NDArray[np.int64], NDArray[np.int64]],
    places: NDArray[np.int32],
) -> None:
    """Note the range in which the link of each kernel started, where none is known yet."""
    shares = -(-len(links) // _AT_ONCE)
    for share in range(shares):
        number, inside = _links(links, share, shares, bounds)
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
    links: Links, share: int, shares: int, bounds: tuple[NDArray[np.int64], NDArray[np.int64]]
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Return the numbers of one share of the links, rising, and the range that each started in."""
    starts, ends = bounds
    numbers, places = [], []
    for start, number in links.table.read(Links.START, Links.NUMBER):
        mine = number % shares == share
        at = start[mine]
        place = np.searchsorted(starts, at, side="right") - 1
        place[(place >= 0) & (at > ends[place])] = _NOWHERE
        numbers.append(number[mine])
        places.append(place.astype(np.int32))
    number = np.concatenate(numbers)
    order = np.argsort(number, kind="stable")
    return number[order], np.concatenate(places)[order]
