"""Contents of a recording without training steps, in words, for the refusal of such a recording.

A scan keeps the times of kernels and operators, but not their names. The reader of the recording
therefore reads it again for the names (`FindNames`), only if the recording is refused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NoReturn

import numpy as np
from numpy.typing import NDArray

from app.analysis.quantities import NS_A_SECOND, IntArray
from app.analysis.trace.limits import MAX_TIME_NS, refuse_body
from app.analysis.trace.recordings.profiler.labelled_pipeline import Advice
from app.analysis.trace.recordings.profiler.pipeline_work import columns_of
from app.analysis.trace.recordings.profiler.scan import (
    PIPELINE_MARKS,
    TRAINING_MARKS,
    Activity,
    Kernels,
    Scan,
)
from app.analysis.wording import percent

# _NAMED: maximum number of kernels and of gaps that a refusal names; _NAME_CHARS: of each name
_NAMED: Final = 3
_NAME_CHARS: Final = 60
# Least share of a gap that a call of the host explains by its duration.
_EXPLAINS: Final = 0.5
# Largest number of distinct names that are counted.
_MOST_NAMES: Final = 100_000
_TRAIN: Final = (
    "Paceline compares the ranks of a training job: record whole steps (forward, backward, "
    "optimizer) of each rank, to a file a rank"
)


@dataclass(frozen=True, slots=True)
class Gap:
    """A time in which a device computes nothing, from start to end, in ns."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Names:
    """Names of what takes longest in a recording."""

    # (name, calls, total duration in ns) of kernels, or of operators without a device
    longest: tuple[tuple[str, int, int], ...]
    # Call of the host in each gap; "" if none is recorded.
    in_gaps: tuple[str, ...]


# Reads a recording again for the names, given the gaps and whether the recording has kernels.
FindNames = Callable[[Sequence[Gap], bool], Names]


class NameCounter:
    """Counter of the names of kernels (or operators), and of the calls of the host in gaps."""

    def __init__(self, gaps: Sequence[Gap]) -> None:
        self._gaps = gaps
        self._calls: Counter[str] = Counter()
        self._durations: Counter[str] = Counter()
        # (explains the gap, is a call of the runtime, time) and name of the best call of each gap
        self._best: list[tuple[tuple[bool, bool, int], str]] = [
            ((False, False, 0), "") for _ in gaps
        ]

    def count(self, name: str, calls: int, total_ns: int) -> None:
        """Add kernels or operators of one name."""
        name = _shown(name)
        if name in self._calls or len(self._calls) < _MOST_NAMES:
            self._calls[name] += calls
            self._durations[name] += total_ns

    def call(self, name: str, start: int, end: int, *, runtime: bool) -> None:
        """Add a call of the host; `runtime` if it is a call of the device's runtime.

        The innermost call that takes most of a gap explains it.
        """
        for place, gap in enumerate(self._gaps):
            overlap = min(end, gap.end) - max(start, gap.start)
            if overlap <= 0:
                continue
            explains = overlap >= _EXPLAINS * (gap.end - gap.start)
            key = (explains, explains and runtime, start - end if explains else overlap)
            if not self._best[place][1] or key > self._best[place][0]:
                self._best[place] = key, _shown(name)

    def in_gaps(self, start: IntArray, end: IntArray) -> NDArray[np.intp]:
        """Return the indices of the ranges that overlap a gap."""
        inside = np.zeros(len(start), np.bool_)
        for gap in self._gaps:
            inside |= (start < gap.end) & (end > gap.start)
        return np.flatnonzero(inside)

    def names(self) -> Names:
        """Return the names of what takes longest."""
        longest = self._durations.most_common(_NAMED)
        return Names(
            tuple((name, self._calls[name], total) for name, total in longest),
            tuple(name for _, name in self._best),
        )


def refuse_without_steps(
    scan: Scan, advice: Advice, find: FindNames, *, transfers: int
) -> NoReturn:
    """Refuse a recording without labels in which no training step is seen.

    Parameters
    ----------
    transfers : int
        Number of sends and receives between the stages of a pipeline.

    Raises
    ------
    InvalidTraceError
        `trace.no_backward`, `trace.no_labels`.
    """
    holds = _in_words(scan, find)
    if len(scan.kernels) and not (len(scan.outer) or len(scan.operators) or scan.marks):
        refuse_body(
            "no_labels",
            "the recording has the events of a device and no operators of the host, which tell "
            f"forwards, backwards and optimizers apart. {holds}. {advice.host_events}",
        )
    marked = any(mark.name.startswith(PIPELINE_MARKS) for mark in scan.marks)
    if marked or (transfers and len(scan.gradients)):
        sent = f"its sends and receives ({transfers})" if transfers else "its ranges"
        refuse_body(
            "no_labels",
            f"{sent} are those of a stage of a pipeline, and no range says which microbatch is "
            f"computed. {holds}. {advice.no_labels}",
        )
    trains = [mark.name for mark in scan.marks if mark.name.startswith(TRAINING_MARKS)]
    if scan.optimizers or len(scan.gradients) or trains:
        seen = f" ({_shown(trains[0])})" if trains else ""
        refuse_body(
            "no_backward",
            f"the recording is of a training{seen}, and no whole step is in it: it has "
            f"{len(scan.optimizers)} optimizer steps, and no backward. {holds}. {_TRAIN}",
        )
    refuse_body(
        "no_backward",
        "nothing is trained here: the recording has forwards only, as of inference, without a "
        f"backward or an optimizer. {holds}. {_TRAIN}",
    )


def _in_words(scan: Scan, find: FindNames) -> str:
    """Return a sentence on how busy the recorded device (or host) is, and with what."""
    start, end, on_device = _computing(scan)
    if not len(start):
        return "It computes nothing"
    order = np.argsort(start, kind="stable")
    start, latest = start[order], np.maximum.accumulate(end[order])
    opens = np.concatenate([[True], start[1:] > latest[:-1]])
    begins, ends = start[opens], latest[np.append(np.flatnonzero(opens)[1:] - 1, len(start) - 1)]
    idle = begins[1:] - ends[:-1]
    whole_ns = max(int(latest[-1]) - int(start[0]), 1)
    idle_ns = sum(idle.tolist())
    widest = np.argsort(-idle, kind="stable")[:_NAMED].tolist()
    gaps = [Gap(int(ends[place]), int(begins[place + 1])) for place in widest]
    names = find(gaps, on_device)
    busy = 1 - idle_ns / whole_ns
    who = "the device" if on_device else "the host"
    text = (
        f"In {_duration(whole_ns)} {who} is busy {percent(busy, 0)} and idle {percent(1 - busy, 0)}"
    )
    if names.longest:
        what = "kernels" if on_device else "operators"
        listed = ", ".join(
            f"{name} ({calls} in {_duration(total)})" for name, calls, total in names.longest
        )
        text += f"; its longest {what} are {listed}"
    if gaps:
        listed = ", ".join(
            _duration(gap.end - gap.start) + (f" (the host is in {call})" if call else "")
            for gap, call in zip(gaps, names.in_gaps, strict=True)
        )
        text += f"; its longest gaps are {listed}"
    return text


def _computing(scan: Scan) -> tuple[IntArray, IntArray, bool]:
    """Return starts and ends of the kernels, or of the busiest thread's operators, in ns."""
    if len(scan.kernels):
        columns = columns_of(scan.kernels.table, Kernels.COLUMNS)
        start, duration = columns[Kernels.START], columns[Kernels.DURATION]
        mine = columns[Kernels.ACTIVITY] == Activity.KERNEL
    else:
        start, duration, thread = columns_of(scan.outer.table, 3)
        total = np.bincount(thread, np.maximum(duration, 0)) if len(thread) else np.zeros(1)
        mine = thread == int(total.argmax())
    # Durations are clipped so that no end is beyond the largest integer.
    end = start + np.clip(duration, 0, MAX_TIME_NS >> 1)
    return start[mine], end[mine], len(scan.kernels) > 0


def _duration(time_ns: int) -> str:
    for unit, size_ns in (("s", NS_A_SECOND), ("ms", 1_000_000), ("µs", 1000)):
        if time_ns >= size_ns:
            return f"{time_ns / size_ns:.3g} {unit}"
    return f"{time_ns} ns"


def _shown(name: str) -> str:
    """Return a name shortened to what identifies it, and printable.

    Of a C++ function the name without parameters is kept, of a Python function the end of its path.
    """
    if ".py(" in name:
        short = name[-_NAME_CHARS:]
    else:
        plain = name.removeprefix("void ").replace("(anonymous namespace)::", "")
        short = plain.split("<", 1)[0].split("(", 1)[0].strip()[:_NAME_CHARS]
    return "".join(char if char.isprintable() else "?" for char in short or name[:_NAME_CHARS])
