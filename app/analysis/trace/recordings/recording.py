"""Result of a decoder of a foreign recording, built operation by operation."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Final

import numpy as np

from app.analysis.trace.assemble import Assembler
from app.analysis.trace.columns import NATIVE
from app.analysis.trace.limits import MAX_DICTIONARY, MAX_OP_NAME_CHARS, Limits, Places, refuse_body
from app.analysis.trace.merge import TraceChunk, merge
from app.analysis.trace.metadata import Unmapped, join_metadata, total
from app.analysis.trace.model import ABSENT, KNOWN_OP_TYPES, SessionMeta, Trace
from app.errors import BodyTooLargeError, InvalidTraceError, UnanalyzableError

# ---- What a decoder of a foreign recording returns ---------------------------------------------


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


# ---- Operations as a decoder finds them, one by one, and the trace that they are together ------


_COLUMNS: Final = ("rank", "dp", "pp", "step", "op", "mb", "mc", "start", "duration", "source")


class Rows:
    """Operations of one body.

    Parameters
    ----------
    limits : Limits
        How many there may be.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._names = list(KNOWN_OP_TYPES)
        self._codes = {name: code for code, name in enumerate(self._names)}
        self._columns = {name: array("q") for name in _COLUMNS}

    def __len__(self) -> int:
        return len(self._columns["op"])

    def add(  # noqa: PLR0913 - the columns of an operation
        self,
        op: str,
        start_ns: int,
        duration_ns: int,
        *,
        event: int,
        rank: int,
        dp: int,
        pp: int,
        step: int,
        mb: int = ABSENT,
        mc: int = ABSENT,
    ) -> None:
        """Take an operation; `event` is its 0-based place in the body.

        Raises
        ------
        InvalidTraceError
            `trace.bad_op_name`, `trace.too_many_op_names`.
        BodyTooLargeError
            `body.too_many_rows`.
        """
        if len(self) >= self._limits.max_rows:
            message = f"the body has over {self._limits.max_rows} operations"
            raise BodyTooLargeError(message, code="body.too_many_rows")
        values = (rank, dp, pp, step, self._code(op), mb, mc, start_ns, duration_ns, event)
        for column, value in zip(self._columns.values(), values, strict=True):
            column.append(value)

    def trace(self, meta: SessionMeta, *, part: bool) -> Trace:
        """Check everything against `meta` and return the trace.

        Raises
        ------
        InvalidTraceError
            See `decode`; positions are those of events.
        """
        if not len(self):
            refuse_body("no_rows", "there is no operation in the body")
        columns = {name: np.frombuffer(values, np.int64) for name, values in self._columns.items()}
        # What is checked fastest: rank by rank, in each step type by type, by start.
        keys = ("start", "op", "step", "rank")
        order = np.lexsort([columns[name] for name in keys])
        columns = {name: values[order] for name, values in columns.items()}
        places = Places(NATIVE.columns, source=columns.pop("source").astype(np.intp))
        op = columns.pop("op").astype(np.int16)
        assembler = Assembler(meta, NATIVE, places, self._limits, len(self), part=part)
        assembler.add(columns, op)
        return assembler.finish(self._names)

    def _code(self, name: str) -> int:
        code = self._codes.get(name)
        if code is not None:
            return code
        if not 0 < len(name) <= MAX_OP_NAME_CHARS or not name.isprintable() or name != name.strip():
            message = f"an operation's name must be 1 to {MAX_OP_NAME_CHARS} printable characters"
            refuse_body("bad_op_name", message)
        if len(self._names) >= MAX_DICTIONARY:
            refuse_body("too_many_op_names", f"over {MAX_DICTIONARY} names of operations")
        self._codes[name] = len(self._names)
        self._names.append(name)
        return self._codes[name]
