"""What a decoder of a foreign recording returns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

from app.analysis.trace.joint_metadata import join_metadata
from app.analysis.trace.merge import TraceChunk, merge
from app.analysis.trace.model import Trace
from app.analysis.trace.unmapped import Unmapped, total
from app.errors import InvalidTraceError, UnanalyzableError


@dataclass(frozen=True, slots=True)
class Recording:
    """A trace, and what of the recording is not in it."""

    trace: Trace
    unmapped: tuple[Unmapped, ...]


def joined_recordings(found: Sequence[Recording]) -> Recording:
    """Return the recordings of several ranks, each read as a part, as one.

    Raises
    ------
    InvalidTraceError, InvalidMetadataError
        They contradict each other.
    """
    meta = reduce(join_metadata, (one.trace.meta for one in found))
    chunks = [TraceChunk(f"part {at}", 0, one.trace) for at, one in enumerate(found)]
    try:
        trace = merge(chunks, meta).trace
    except UnanalyzableError as error:
        raise InvalidTraceError(
            error.message, code=error.stable_code, faults=error.faults
        ) from error
    return Recording(trace, total(left for one in found for left in one.unmapped))
