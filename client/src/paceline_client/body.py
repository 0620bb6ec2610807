"""One session as gzip-compressed NDJSON: a header line, then a line for each operation."""

from __future__ import annotations

import json
import operator
import zlib
from typing import TYPE_CHECKING, Any, NamedTuple, SupportsIndex

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_SCHEMA = "paceline.trace/1"
_GZIP_WINDOW = 31  # zlib's way of asking for a gzip header; it writes no time into it
_LEVEL = 6


class Operation(NamedTuple):
    """One operation as it was recorded; integers may still be those of another library."""

    rank: SupportsIndex
    dp: SupportsIndex
    pp: SupportsIndex
    step: SupportsIndex
    op: str
    start_ns: SupportsIndex
    duration_ns: SupportsIndex
    mb: SupportsIndex | None
    mc: SupportsIndex | None


class SessionBody:
    """Compresses operations as they come and holds only the compressed bytes.

    Equal calls give equal bytes, so that a body can be sent twice and be received once.

    Parameters
    ----------
    meta : mapping
        For the header line: sizes and whatever else describes the session.
    max_bytes : int
        Compressed bytes to hold at most.

    Raises
    ------
    TypeError, ValueError
        If `meta` cannot be written as JSON.
    """

    def __init__(self, meta: Mapping[str, Any], max_bytes: int) -> None:
        document = {"schema": _SCHEMA, "meta": dict(meta)}
        header = json.dumps(document, separators=(",", ":"), allow_nan=False)
        self._compressor = zlib.compressobj(_LEVEL, zlib.DEFLATED, _GZIP_WINDOW)
        self._pieces: list[bytes] = []
        self._names: dict[str, str] = {}
        self._max_bytes = max_bytes
        self.bytes_held = 0
        self._keep(self._compressor.compress(header.encode() + b"\n"))

    def add(self, operations: Iterable[Operation]) -> int:
        """Append operations.

        Returns
        -------
        int
            How many were left out: malformed, or over the limit of bytes.
        """
        if self.bytes_held >= self._max_bytes:
            return sum(1 for _ in operations)
        lines = []
        left_out = 0
        for operation in operations:
            try:
                lines.append(self._line(operation))
            except (TypeError, ValueError):  # noqa: PERF203 - each stands or falls alone
                left_out += 1
        if lines:
            self._keep(self._compressor.compress("".join(lines).encode()))
        return left_out

    def close(self) -> bytes:
        """End the body and return it whole."""
        self._keep(self._compressor.flush())
        return b"".join(self._pieces)

    def _line(self, operation: Operation) -> str:
        # Written by hand: three times as fast as json.dumps, and other threads wait for less long.
        name = self._names.get(operation.op)
        if name is None:
            name = self._names[operation.op] = json.dumps(_text(operation.op))
        index = operator.index
        line = (
            f'{{"rank":{index(operation.rank)},"dp":{index(operation.dp)}'
            f',"pp":{index(operation.pp)},"step":{index(operation.step)},"op":{name}'
            f',"start_ns":{index(operation.start_ns)}'
            f',"dur_ns":{index(operation.duration_ns)}'
        )
        if operation.mb is not None:
            line += f',"mb":{index(operation.mb)}'
        if operation.mc is not None:
            line += f',"mc":{index(operation.mc)}'
        return line + "}\n"

    def _keep(self, piece: bytes) -> None:
        if piece:
            self._pieces.append(piece)
            self.bytes_held += len(piece)


def _text(name: object) -> str:
    if not isinstance(name, str):
        message = f"an operation's type is text, not {type(name).__name__}"
        raise TypeError(message)
    return name
