"""When the device did what a range on the host launched.

A kernel names what launched it twice: by the correlation id of the call of the runtime, and by the
external id of the framework's operator. A call or an operator belongs to the range in which it
started, also on another thread: a backward launches from autograd's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from app.analysis.trace.recordings.profiler.scan import Links, Scan, Span

NOWHERE: Final = -1


def ranges_of_kernels(scan: Scan, ranges: Sequence[Span]) -> NDArray[np.intp]:
    """Return the range that launched each kernel, `NOWHERE` where none did.

    Parameters
    ----------
    scan : Scan
    ranges : sequence of Span
        By start; of two that overlap the later one is meant.
    """
    kernels = scan.kernels
    found = _look_up(scan.launches, np.asarray(kernels.correlation, np.int64), ranges)
    by_operator = _look_up(scan.operators, np.asarray(kernels.external, np.int64), ranges)
    return np.where(found == NOWHERE, by_operator, found)


def _look_up(links: Links, wanted: NDArray[np.int64], ranges: Sequence[Span]) -> NDArray[np.intp]:
    """Return the range in which the link of each wanted number started."""
    result = np.full(len(wanted), NOWHERE, np.intp)
    if not len(links.number) or not ranges or not len(wanted):
        return result
    number, start = np.asarray(links.number, np.int64), np.asarray(links.start, np.int64)
    starts = np.array([span.start for span in ranges], np.int64)
    ends = np.array([span.end for span in ranges], np.int64)
    inside = np.searchsorted(starts, start, side="right") - 1
    inside[(inside >= 0) & (start > ends[inside])] = NOWHERE
    order = np.argsort(number, kind="stable")
    place = np.minimum(np.searchsorted(number[order], wanted), len(order) - 1)
    match = order[place]
    known = (number[match] == wanted) & (wanted >= 0)
    result[known] = inside[match[known]]
    return result
