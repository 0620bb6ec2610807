"""Result of decoding a foreign recording, and the builder of its trace from operations."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Final

import numpy as np

from app.analysis.trace.assemble import Assembler
from app.analysis.trace.columns import NATIVE
from app.analysis.trace.limits import MAX_DICTIONARY, Limits, Places, refuse_body
from app.analysis.trace.merge import TraceChunk, merge
from app.analysis.trace.metadata import Unmapped, join_metadata, total
from app.analysis.trace.model import ABSENT, KNOWN_OP_TYPES, SessionMeta, Trace
from app.analysis.trace.operation_names import BAD_NAME, is_op_name
from app.errors import BodyTooLargeError, InvalidTraceError, UnanalyzableError


@dataclass(frozen=True, slots=True)
class Recording:
    """Trace of a recording, and the items that could not be mapped to operations."""

    trace: Trace
    unmapped: tuple[Unmapped, ...]


def joined_recordings(parts: Sequence[Recording]) -> Recording:
    """Return the union of recordings of several ranks, each of which was decoded as a part.

    Raises
    ------
    InvalidTraceError, InvalidMetadataError
        The recordings contradict each other.
    """
    meta = reduce(join_metadata, (part.trace.meta for part in parts))
    chunks = [TraceChunk(f"part {at}", 0, part.trace) for at, part in enumerate(parts)]
    try:
        trace = merge(chunks, meta).trace
    except UnanalyzableError as error:
        raise InvalidTraceError(
            error.message, code=error.stable_code, faults=error.faults
        ) from error
    return Recording(trace, total(item for part in parts for item in part.unmapped))


_COLUMNS: Final = ("rank", "dp", "pp", "step", "op", "mb", "mc", "start", "duration", "source")


class Rows:
    """Builder of a trace from the operations of one body, in any order.

    Parameters
    ----------
    limits : Limits
        Limit on the number of operations.
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
        mb: int | None = None,
        mc: int | None = None,
    ) -> None:
        """Add an operation; `event` is the 0-based index of its event in the body.

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
        mb = ABSENT if mb is None else mb
        mc = ABSENT if mc is None else mc
        values = (rank, dp, pp, step, self._code(op), mb, mc, start_ns, duration_ns, event)
        for column, value in zip(self._columns.values(), values, strict=True):
            column.append(value)

    def trace(self, meta: SessionMeta, *, part: bool) -> Trace:
        """Check the operations against `meta` and return their trace.

        Raises
        ------
        InvalidTraceError
            See `decode`; positions are those of events.
        """
        if not len(self):
            refuse_body("no_rows", "there is no operation in the body")
        columns = {name: np.frombuffer(values, np.int64) for name, values in self._columns.items()}
        # Sorted by rank, step, type and start, because the checks are fastest in this order.
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
        if not is_op_name(name):
            refuse_body("bad_op_name", BAD_NAME)
        if len(self._names) >= MAX_DICTIONARY:
            refuse_body("too_many_op_names", f"over {MAX_DICTIONARY} names of operations")
        self._codes[name] = len(self._names)
        self._names.append(name)
        return self._codes[name]
