"""Pulse rows as arrays, and whole steps with the values of all ranks of a process group.

A pulse is the stream of small rows that each rank sends while it trains: one row per step, and
heartbeats.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Final

import numpy as np

from app.analysis.quantities import BoolArray, FloatArray, IntArray

# Columns that identify a row: its rank, step and time.
KEYS: Final = ("attempt", "step", "rank", "dp_rank", "pp_rank", "time_ns")
# Columns with the measured times and tokens of the step.
MEASURES: Final = (
    *("step_ns", "compute_ns", "wait_ns", "data_ns", "optimizer_ns", "gc_ns"),
    "tokens",
)
BEAT_COLUMNS: Final = ("phase", "since_ns")
# Value of `phase` in rows of ended steps, which are not beats.
NO_BEAT: Final = -1

# Codes under which unusable rows and columns are counted.
NULL: Final = "pulse.null"
NAN: Final = "pulse.nan"
UNKNOWN_COLUMN: Final = "pulse.unknown_column"

MOST_PHASES: Final = 1_000
LONGEST_PHASE: Final = 200

# Operations during which a job is not hung, however long no step ends.
CHECKPOINT: Final = "checkpoint"
EVALUATION: Final = "evaluation"
COMPILE: Final = "compile"
FINISHED: Final = "finished"
EXCUSED: Final = frozenset({CHECKPOINT, EVALUATION, COMPILE})


@dataclass(frozen=True, slots=True, eq=False)
class Pulses:
    """Rows of the ranks of one job in the order of their arrival; every array has a value per row.

    A row reports a step that a rank has ended or, if `phase` is not `NO_BEAT`, is a heartbeat: then
    its measures are 0, and `dp_rank` and `pp_rank` may be -1. Times are nanoseconds since the
    epoch, durations nanoseconds.

    Parameters
    ----------
    time_ns : int64[rows]
        End of the step, or time of the heartbeat.
    compute_ns : int64[rows]
        Computing time of the rank itself, without waiting for other ranks.
    data_ns : int64[rows]
        Data loading: the time from the end of the previous step to the first operation, less the
        time that is known to be something else.
    tokens : int64[rows]
        Number of tokens; 0 if unknown.
    phase : int64[rows]
        Index into `phases`, or `NO_BEAT`.
    since_ns : int64[rows]
        Start of a heartbeat's phase; 0 for steps.
    phases : tuple of str
        Names of operations, or ``checkpoint``, ``evaluation``, ``compile``, ``finished``.
    came_ns : int64[rows], optional
        Time at which the server received each row, if known: ranks send many steps at once.
    """

    attempt: IntArray
    step: IntArray
    rank: IntArray
    dp_rank: IntArray
    pp_rank: IntArray
    time_ns: IntArray
    step_ns: IntArray
    compute_ns: IntArray
    wait_ns: IntArray
    data_ns: IntArray
    optimizer_ns: IntArray
    gc_ns: IntArray
    tokens: IntArray
    phase: IntArray
    since_ns: IntArray
    phases: tuple[str, ...] = ()
    came_ns: IntArray | None = None

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.rank)

    def take(self, rows: slice | BoolArray | IntArray) -> Pulses:
        """Return the rows selected by index, mask or slice, in that order."""
        if isinstance(rows, np.ndarray) and rows.dtype == np.bool_ and rows.all():
            return self
        arrays = {name: getattr(self, name)[rows] for name in ARRAYS}
        came_ns = None if self.came_ns is None else self.came_ns[rows]
        return Pulses(**arrays, phases=self.phases, came_ns=came_ns)

    @property
    def known_ns(self) -> IntArray:
        """Return the time at which each row was received or, if unknown, written; int64[rows]."""
        return self.time_ns if self.came_ns is None else self.came_ns


ARRAYS: Final = tuple(
    field.name for field in fields(Pulses) if field.name not in {"phases", "came_ns"}
)


def joined(parts: list[Pulses]) -> Pulses:
    """Return the rows of several parts concatenated."""
    phases = tuple(dict.fromkeys(name for part in parts for name in part.phases))
    index = {name: number for number, name in enumerate(phases)}
    arrays = {name: np.concatenate([getattr(part, name) for part in parts]) for name in ARRAYS}
    arrays["phase"] = np.concatenate(
        [np.array([*(index[name] for name in part.phases), NO_BEAT])[part.phase] for part in parts]
    ).astype(np.int64)
    received = any(part.came_ns is not None for part in parts)
    came_ns = np.concatenate([part.known_ns for part in parts]) if received else None
    return Pulses(**arrays, phases=phases, came_ns=came_ns)


def usable(
    columns: Mapping[str, tuple[IntArray, BoolArray]],
    phase: IntArray,
    phases: tuple[str, ...],
    counts: Counter[str],
    damaged: BoolArray | None = None,
) -> Pulses:
    """Return the complete rows, and count the others by code.

    Parameters
    ----------
    columns : mapping of str to pair of int64[rows] and bool[rows]
        Values of every key and measure and of `since_ns`, and a mask of the values that are set.
    phase : int64[rows]
        Index into `phases`; a row with a phase and without measures is a beat.
    counts : Counter
        Receives the number of unusable rows by code.
    damaged : bool[rows], optional
        Rows with a value that is not a number.
    """
    present = {name: there for name, (_, there) in columns.items()}
    if damaged is None:
        damaged = np.zeros(len(phase), np.bool_)
    is_beat = (phase != NO_BEAT) & ~present["step_ns"] & ~present["compute_ns"]
    keyed = np.logical_and.reduce(
        [present[name] for name in ("attempt", "step", "rank", "time_ns")]
    )
    whole = np.logical_and.reduce([present[name] for name in (*KEYS, *MEASURES[:-1])])
    good = ~damaged & keyed & (is_beat | whole)
    for code, rows in ((NAN, damaged), (NULL, ~damaged & ~good)):
        number = int(np.count_nonzero(rows))
        if number:
            counts[code] += number
    values = {name: value for name, (value, _) in columns.items()}
    for name in ("dp_rank", "pp_rank"):
        values[name] = _or(values[name], present[name], -1)
    for name in MEASURES:
        values[name] = _or(values[name], present[name] & ~is_beat, 0)
    kept = Pulses(**values, phase=_or(phase, is_beat, NO_BEAT), phases=phases)
    return kept.take(good)


def _or(values: IntArray, there: BoolArray, other: int) -> IntArray:
    """Return values whose missing elements are replaced by those of `other`."""
    return values if there.all() else np.where(there, values, other)


# Time for which an incomplete step waits for the rows of missing ranks.
WAITS_NS: Final = 10_000_000_000
# Maximum number of ranks of one job, which bounds the memory; rows of further ranks are dropped.
MOST_RANKS: Final = 16_384


@dataclass(frozen=True, slots=True, eq=False)
class Steps:
    """Whole steps of one process group, in order.

    Parameters
    ----------
    group : int
        Number of the process group: a new group begins with an attempt, and when steps repeat or
        ranks change their parallel ranks.
    ranks, dp_ranks, pp_ranks : int64[ranks]
    steps, closed_ns : int64[steps]
        Step numbers, and the time at which each step was complete.
    ended_ns : int64[steps, ranks]
    measures : mapping of str to float64[steps, ranks]
        Measures by name; NaN for missing ranks.
    """

    group: int
    attempt: int
    ranks: IntArray
    dp_ranks: IntArray
    pp_ranks: IntArray
    steps: IntArray
    closed_ns: IntArray
    ended_ns: IntArray
    measures: dict[str, FloatArray]

    def some(self, rows: slice) -> Steps:
        """Return the steps in a slice."""
        return Steps(
            self.group,
            self.attempt,
            self.ranks,
            self.dp_ranks,
            self.pp_ranks,
            self.steps[rows],
            self.closed_ns[rows],
            self.ended_ns[rows],
            {name: values[rows] for name, values in self.measures.items()},
        )
