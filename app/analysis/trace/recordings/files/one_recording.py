"""Whether files are of one recording: all ranks take a step at the same time.

Files lie in one folder because they were written there, by one start of a job or by several. Ranks
of one start take a step together, as far apart as their clocks are; those of another start take the
step of the same number minutes or days apart. Mixed, they would give a verdict about no job at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final, NoReturn

import numpy as np
from numpy.typing import NDArray

from app.analysis.trace.merge import TraceChunk
from app.errors import UnanalyzableError

# Clocks of hosts that train together are seconds apart at most: NTP, certificates and Kerberos do
# not work else. Ranks of one stage each are busy at other times of a long step.
APART_NS: Final = 60 * 1_000_000_000
APART_STEPS: Final = 3.0
_NS_PER_S: Final = 1_000_000_000
# Files of each recording that a refusal names.
_NAMED: Final = 3


def check_one_recording(chunks: Sequence[TraceChunk]) -> None:
    """Refuse files of which some take the same step at another time than the others.

    Parameters
    ----------
    chunks : sequence of TraceChunk
        Those of times that count from the start of their step are not judged.

    Raises
    ------
    UnanalyzableError
        ``trace.two_recordings``, with files of each.
    """
    if any(chunk.trace.step_relative for chunk in chunks):
        return
    at: dict[int, list[tuple[int, int]]] = {}
    extents: list[NDArray[np.int64]] = []
    for number, chunk in enumerate(chunks):
        steps, begins, ends = _extents(chunk)
        extents.append(ends - begins)
        for step, begin in zip(steps.tolist(), begins.tolist(), strict=True):
            at.setdefault(step, []).append((begin, number))
    typical_ns = float(np.median(np.concatenate(extents))) if extents else 0.0
    most_ns = max(APART_NS, APART_STEPS * typical_ns)
    for step in sorted(at):
        begun = sorted(at[step])
        for place in range(1, len(begun)):
            apart_ns = begun[place][0] - begun[place - 1][0]
            if apart_ns > most_ns:
                first, second = (
                    _named([chunks[number].producer for _, number in some])
                    for some in (begun[:place], begun[place:])
                )
                moment = datetime.fromtimestamp(begun[0][0] // _NS_PER_S, UTC)
                _refuse(first, second, step, moment, apart_ns)


def _extents(
    chunk: TraceChunk,
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return the steps of a chunk, and when each begins and ends, nanoseconds."""
    trace = chunk.trace
    steps, place = np.unique(trace.step, return_inverse=True)
    begins = np.full(len(steps), np.iinfo(np.int64).max)
    ends = np.full(len(steps), np.iinfo(np.int64).min)
    np.minimum.at(begins, place, trace.start_ns)
    # An impossible duration says nothing about when the step ended.
    np.maximum.at(ends, place, trace.start_ns)
    return steps.astype(np.int64), begins, ends


def _named(files: Sequence[str]) -> str:
    """Return the names of files, of many the first ones and how many more there are."""
    names = sorted(set(files))
    more = [f"{len(names) - _NAMED} more"] if len(names) > _NAMED else []
    return ", ".join([*names[:_NAMED], *more])


def _refuse(first: str, second: str, step: int, moment: datetime, apart_ns: int) -> NoReturn:
    message = (
        f"two recordings: step {step} of {first} begins at {moment:%Y-%m-%d %H:%M:%S} UTC, of "
        f"{second} {apart_ns / _NS_PER_S:,.0f} s later. Put the files of each start of the job "
        "into a folder of its own"
    )
    raise UnanalyzableError(message, code="trace.two_recordings")
