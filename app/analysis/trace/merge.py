"""Merging of a session's chunks into one trace.

Chunks are parts as returned by `decode`: each chunk has passed its own checks, and has the recorded
names and order. The result must not depend on the distribution of operations over chunks, so all
operations are sorted and checked again as one body.

Ranks may number the same steps differently, such as a rank that starts its profiler a step later.
The ends of a collective are one moment on all of its ranks, so the times between the ends of steps
show which steps are the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from app.analysis.quantities import FloatArray
from app.analysis.trace import operation_order as groups
from app.analysis.trace.assemble import Collected, build_trace
from app.analysis.trace.limits import Places
from app.analysis.trace.metadata import Unmapped, note_unmapped, unmapped_of
from app.analysis.trace.model import (
    ABSENT,
    GRADS_REDUCE_SCATTER,
    KNOWN_OP_TYPES,
    SessionMeta,
    Trace,
)
from app.errors import Fault, InvalidTraceError, UnanalyzableError

# Our column names → attributes of a `Trace`.
_COLUMNS: Final[Mapping[str, str]] = {
    "rank": "rank",
    "dp": "dp",
    "pp": "pp",
    "step": "step",
    "op": "op",
    "mb": "mb",
    "mc": "mc",
    "order": "order",
    "start": "start_ns",
    "duration": "duration_ns",
}

Columns = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class TraceChunk:
    """Part of a session: the chunk `number` (from 0) of its producer."""

    producer: str
    number: int
    trace: Trace


@dataclass(frozen=True, slots=True)
class Dropped:
    """Number of operations of a chunk that were left out because an earlier chunk has them too."""

    producer: str
    number: int
    operations: int


@dataclass(frozen=True, slots=True)
class Merged:
    """Trace of a session, and the repeated operations that the merge left out."""

    trace: Trace
    dropped: tuple[Dropped, ...]


def merge(chunks: Sequence[TraceChunk], meta: SessionMeta) -> Merged:
    """Return the trace of a session's chunks; operations equal in every column are kept once.

    Parameters
    ----------
    chunks : sequence of TraceChunk
        In any order; at least one.
    meta : SessionMeta
        Of the session.

    Raises
    ------
    UnanalyzableError
        With the code of a body's refusal (``trace.duplicate_operation``, ``trace.rank_moved``…) and
        the chunk and row of each fault, where chunks contradict each other.
    """
    ordered = sorted(chunks, key=lambda chunk: (chunk.producer, chunk.number))
    unknown = {name for chunk in ordered for name in chunk.trace.op_names} - set(KNOWN_OP_TYPES)
    names = (*KNOWN_OP_TYPES, *sorted(unknown))
    columns = _concatenate(ordered, names)
    if meta.sizes.pp == 1 and not ordered[0].trace.step_relative:
        later = _later_numbers(columns, names)
        for rank, by in later.items():
            columns["step"][columns["rank"] == rank] -= by
        renumbered = [
            Unmapped(f"step numbers of rank {rank} that are {by:+d} from those of its peers", 1)
            for rank, by in later.items()
        ]
        if renumbered:
            meta = note_unmapped(meta, (*unmapped_of(meta.extra), *renumbered))
    repeated = groups.copies(columns)
    rows = np.flatnonzero(~repeated)
    # Sort by rank, then step, then type, then recorded order (or start if no order is recorded).
    keys = ("order" if "order" in columns else "start", "op", "step", "rank")
    rows = rows[np.lexsort([columns[name][rows] for name in keys])]
    try:
        trace = _build(meta, columns, rows, names, seconds=ordered[0].trace.step_relative)
    except InvalidTraceError as error:
        raise _with_chunk_rows(error, ordered) from error
    counts = np.add.reduceat(repeated, _first_rows(ordered)[:-1], dtype=np.int64).tolist()
    dropped = tuple(
        Dropped(chunk.producer, chunk.number, count)
        for chunk, count in zip(ordered, counts, strict=True)
        if count
    )
    return Merged(trace, dropped)


def _concatenate(chunks: Sequence[TraceChunk], names: Sequence[str]) -> dict[str, NDArray[Any]]:
    columns = {
        name: np.concatenate([getattr(chunk.trace, attribute) for chunk in chunks])
        for name, attribute in _COLUMNS.items()
        if name != "op"
    }
    code_of = {name: code for code, name in enumerate(names)}
    columns["op"] = np.concatenate(
        [
            np.array([code_of[name] for name in chunk.trace.op_names], np.int16)[chunk.trace.op]
            for chunk in chunks
        ]
    )
    # Recorded order is comparable across chunks only if every chunk has it.
    if columns["order"].min() == ABSENT:
        del columns["order"]
    return columns


# Largest difference between two ranks' numbers of the same step, and fewest common steps.
_MOST_LATER: Final = 2
_FEWEST_STEPS: Final = 4
# Steps are numbered differently if the ends of their collectives are this many times nearer to one
# moment with other numbers…
_NEARER: Final = 10.0
# …and if with the recorded numbers they are apart by at least this share of a step.
_APART: Final = 0.02
_MOST_STEPS: Final = 1 << 14  # bounds the size of a table of ranks by steps


def _later_numbers(columns: Columns, names: Sequence[str]) -> dict[int, int]:
    """Return by rank how much higher its numbers of the same steps are than usual, without zeros.

    Columns are those of a job without a pipeline, in which all ranks reduce gradients together.
    """
    rows = np.flatnonzero(columns["op"] == names.index(GRADS_REDUCE_SCATTER))
    ranks, of_rank = np.unique(columns["rank"][rows], return_inverse=True)
    step = columns["step"][rows]
    if len(ranks) < 2 or int(np.ptp(step)) > _MOST_STEPS:  # noqa: PLR2004 - nothing to compare
        return {}
    at = step - step.min()
    ends_ns = np.full((len(ranks), int(at.max()) + 1), -np.inf)
    np.maximum.at(ends_ns, (of_rank, at), columns["start"][rows] + columns["duration"][rows])
    ends_ns -= ends_ns.max()
    later = np.array([_later(of_rank_ns, ends_ns[0]) for of_rank_ns in ends_ns])
    values, counts = np.unique(later, return_counts=True)
    later -= values[counts.argmax()]
    return {int(ranks[place]): int(later[place]) for place in np.flatnonzero(later)}


def _later(ends_ns: FloatArray, others_ns: FloatArray) -> int:
    """Return how much higher a rank's numbers of the same steps are than another's; 0 if in doubt.

    Parameters
    ----------
    ends_ns, others_ns : float64 arrays, shape (steps,)
        End of each step's gradient reduction by the clocks of the two ranks; -inf if not recorded.
    """
    apart_ns = {
        by: _apart_ns(ends_ns, others_ns, by) for by in range(-_MOST_LATER, _MOST_LATER + 1)
    }
    best = min(apart_ns, key=lambda by: (apart_ns[by], abs(by)))
    recorded = others_ns[np.isfinite(others_ns)]
    period_ns = float(np.median(np.diff(recorded))) if len(recorded) > 1 else 0.0
    nearer = apart_ns[best] * _NEARER <= apart_ns[0]
    return best if nearer and _APART * period_ns < apart_ns[0] < np.inf else 0


def _apart_ns(ends_ns: FloatArray, others_ns: FloatArray, by: int) -> float:
    """Return how far ends of steps lie from clocks with a constant offset and rate, ns.

    The result is the root mean square; infinite for too few common steps.
    """
    count = len(ends_ns) - abs(by)
    mine = ends_ns[max(by, 0) :][:count]
    others = others_ns[max(-by, 0) :][:count]
    both = np.isfinite(mine) & np.isfinite(others)
    if both.sum() < _FEWEST_STEPS:
        return np.inf
    mine, others = mine[both], others[both]
    ahead, time = mine - others - (mine - others).mean(), others - others.mean()
    rate = float(time @ ahead) / max(float(time @ time), 1.0)
    return float(np.sqrt(np.mean((ahead - rate * time) ** 2)))


def _build(
    meta: SessionMeta,
    columns: Columns,
    rows: NDArray[np.intp],
    names: Sequence[str],
    *,
    seconds: bool,
) -> Trace:
    merged = {name: values[rows] for name, values in columns.items()}
    places = Places({name: name for name in columns})
    # Check every row, since the DP rank or stage of a rank may differ between two chunks of a step.
    groups.check_cells(columns, np.arange(len(columns["rank"])), meta.sizes, places)
    heads = groups.find_heads(merged)
    return build_trace(
        Collected(
            meta=meta,
            columns=merged,
            heads=heads,
            stretches=groups.find_stretches(merged, heads),
            names=names,
            seconds=seconds,
            in_order=False,
            microbatches_rise=False,
        ),
        replace(places, source=rows),
        part=True,
    )


def _first_rows(chunks: Sequence[TraceChunk]) -> NDArray[np.intp]:
    lengths = [len(chunk.trace) for chunk in chunks]
    return np.concatenate([np.zeros(1, np.intp), np.cumsum(lengths)])


def _with_chunk_rows(error: InvalidTraceError, chunks: Sequence[TraceChunk]) -> UnanalyzableError:
    """Return the refusal with row numbers of the chunks instead of numbers of the joined rows."""
    first = _first_rows(chunks)
    faults = []
    for fault in error.faults:
        if fault.row is None:
            faults.append(fault)
            continue
        at = int(np.searchsorted(first, fault.row, side="right")) - 1
        chunk = chunks[at]
        row = fault.row - int(first[at])
        message = f"{fault.message} (chunk {chunk.producer}/{chunk.number}, operation {row})"
        faults.append(Fault(fault.code, message, row=row, column=fault.column))
    return UnanalyzableError(faults[0].message, code=error.stable_code, faults=tuple(faults))
