"""From the chunks of a session to its trace.

Chunks are parts as `decode` leaves them: each checked for itself, with names and order as they were
recorded. Which chunk an operation came in must not matter, so they are put together in an order of
their own and pass once more every check that a body in one piece does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from app.analysis.trace import operation_order as groups
from app.analysis.trace.assemble import Collected, build_trace
from app.analysis.trace.limits import Places
from app.analysis.trace.model import ABSENT, KNOWN_OP_TYPES, SessionMeta, Trace
from app.errors import Fault, InvalidTraceError, UnanalyzableError

# Our names of columns → attributes of a trace.
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
    """A part of a session: the `number`-th of its producer, from 0."""

    producer: str
    number: int
    trace: Trace


@dataclass(frozen=True, slots=True)
class Dropped:
    """Operations of a chunk that stood in an earlier one already."""

    producer: str
    number: int
    operations: int


@dataclass(frozen=True, slots=True)
class Merged:
    """A trace, and what was left out of it."""

    trace: Trace
    dropped: tuple[Dropped, ...]


def merge(chunks: Sequence[TraceChunk], meta: SessionMeta) -> Merged:
    """Put the chunks of a session together.

    Operations that are the same in everything are kept once.

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
    names = _names(ordered)
    columns = _joined(ordered, names)
    again = groups.copies(columns)
    rows = _in_order(columns, np.flatnonzero(~again))
    try:
        trace = _checked(meta, columns, rows, names, seconds=ordered[0].trace.step_relative)
    except InvalidTraceError as error:
        raise _placed(error, ordered) from error
    return Merged(trace, _dropped(ordered, again))


def _names(chunks: Sequence[TraceChunk]) -> tuple[str, ...]:
    unknown = {name for chunk in chunks for name in chunk.trace.op_names} - set(KNOWN_OP_TYPES)
    return (*KNOWN_OP_TYPES, *sorted(unknown))


def _joined(chunks: Sequence[TraceChunk], names: Sequence[str]) -> dict[str, NDArray[Any]]:
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
    # Only where every chunk has the recorded order does it say more than the starts do.
    if columns["order"].min() == ABSENT:
        del columns["order"]
    return columns


def _in_order(columns: Columns, rows: NDArray[np.intp]) -> NDArray[np.intp]:
    """Return `rows` rank by rank, in each step type by type, by recorded order or start."""
    keys = ("order" if "order" in columns else "start", "op", "step", "rank")
    return rows[np.lexsort([columns[name][rows] for name in keys])]


def _checked(
    meta: SessionMeta,
    columns: Columns,
    rows: NDArray[np.intp],
    names: Sequence[str],
    *,
    seconds: bool,
) -> Trace:
    merged = {name: values[rows] for name, values in columns.items()}
    places = Places({name: name for name in columns})
    # Row by row: a rank may have moved from one chunk to another within a step.
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


def _placed(error: InvalidTraceError, chunks: Sequence[TraceChunk]) -> UnanalyzableError:
    """Return the refusal with rows of chunks in place of rows of all of them together."""
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


def _dropped(chunks: Sequence[TraceChunk], again: NDArray[np.bool_]) -> tuple[Dropped, ...]:
    counts = np.add.reduceat(again, _first_rows(chunks)[:-1], dtype=np.int64).tolist()
    return tuple(
        Dropped(chunk.producer, chunk.number, count)
        for chunk, count in zip(chunks, counts, strict=True)
        if count
    )
