"""A session as gzip-compressed NDJSON: a header line, then a line for each operation.

Each step is a separate gzip member and the header is written last: steps can be left out and
metadata completed until the session ends. Complete steps can be taken before, as bodies of their
own.
"""

from __future__ import annotations

import json
import zlib
from typing import TYPE_CHECKING, Any, Final

from paceline_client.operations import unpacked

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_SCHEMA: Final = "paceline.trace/1"
_GZIP_WINDOW: Final = 31  # selects a gzip header, without a time
_LEVEL: Final = 6
# Steps that are still open, each with a compressor of 256 KiB.
_OPEN_STEPS: Final = 3


class _Member:
    """The compressed lines of one step."""

    def __init__(self, step: int) -> None:
        self.step = step
        self.operations = 0
        self.first = ""  # line
        self.pieces: list[bytes] = []
        self._compressor = zlib.compressobj(_LEVEL, zlib.DEFLATED, _GZIP_WINDOW)

    def add(self, lines: Sequence[str]) -> int:
        """Append lines and return the number of new compressed bytes."""
        self.first = self.first or lines[0]
        self.operations += len(lines)
        return self._keep(self._compressor.compress("".join(lines).encode()))

    def close(self) -> int:
        return self._keep(self._compressor.flush())

    def size(self) -> int:
        """Return how many compressed bytes are held."""
        return sum(map(len, self.pieces))

    def _keep(self, piece: bytes) -> int:
        if piece:
            self.pieces.append(piece)
        return len(piece)


class SessionBody:
    """Compresses operations as they arrive and holds the compressed bytes only.

    Beyond `max_bytes` compressed bytes, the operations of later steps are left out.
    """

    def __init__(self, max_bytes: int) -> None:
        self.left_out: set[int] = set()  # steps without operations in the body
        self.bytes_held = 0
        self._max_bytes = max_bytes
        self._open: dict[int, _Member] = {}
        self._closed: list[_Member] = []
        self._taken = ""  # a line that was taken

    def add(self, chunk: bytes | bytearray, names: Sequence[str]) -> int:
        """Append packed operations; return how many were left out because of the limit."""
        by_step: dict[int, list[str]] = {}
        line = _Lines(names)
        for operation in unpacked(chunk):
            by_step.setdefault(operation.step, []).append(line.of(operation))
        left_out = 0
        for step, lines in by_step.items():
            member = self._member(step)
            if member is None:
                left_out += len(lines)
            else:
                self.bytes_held += member.add(lines)
        return left_out

    def operations_of(self, steps: Iterable[int]) -> int:
        """Return how many operations of these steps are held."""
        chosen = set(steps)
        members = [*self._open.values(), *self._closed]
        return sum(member.operations for member in members if member.step in chosen)

    def _member(self, step: int) -> _Member | None:
        if step in self.left_out:
            return None
        member = self._open.get(step)
        if member is None:
            if self.bytes_held >= self._max_bytes:
                self.left_out.add(step)
                return None
            if len(self._open) >= _OPEN_STEPS:
                self._end(min(self._open))
            member = self._open[step] = _Member(step)
        return member

    def _end(self, step: int) -> None:
        member = self._open.pop(step)
        self.bytes_held += member.close()
        self._closed.append(member)

    def take(self, meta: Mapping[str, Any], without: Iterable[int] = ()) -> tuple[bytes, int]:
        """Return the steps before the newest one as a body, and the number of its operations.

        They are held no longer. Operations of these steps that come later are in a later body.
        `without` are steps that stay. The body is empty if there is nothing to take.
        """
        newest = max(self._open, default=0)
        for step in sorted(self._open):
            if step < newest:
                self._end(step)
        stay = self.left_out.union(without)
        taken = [member for member in self._closed if member.step not in stay]
        if not taken:
            return b"", 0
        self._closed = [member for member in self._closed if member.step in stay]
        self.bytes_held -= sum(member.size() for member in taken)
        self._taken = taken[-1].first
        return _body(meta, taken)

    def close(self, meta: Mapping[str, Any], without: Iterable[int] = ()) -> tuple[bytes, int]:
        """Return what was not taken as a body, and the number of its operations.

        `without` are further steps to leave out. `meta` goes into the header line; raises
        `TypeError` or `ValueError` if it is not valid JSON.
        """
        for step in sorted(self._open):
            self._end(step)
        self.left_out.update(without)
        kept = [member for member in self._closed if member.step not in self.left_out]
        if kept or not self._taken:
            return _body(meta, kept)
        # The server takes no body without operations, and keeps one that it is sent twice once.
        again = _Member(0)
        again.add([self._taken])
        again.close()
        return _body(meta, [again])[0], 0


def _body(meta: Mapping[str, Any], members: Sequence[_Member]) -> tuple[bytes, int]:
    pieces = [header(meta)]
    for member in members:
        pieces += member.pieces
    return b"".join(pieces), sum(member.operations for member in members)


def header(meta: Mapping[str, Any]) -> bytes:
    """Return the header line as a gzip member."""
    document = {"schema": _SCHEMA, "meta": dict(meta)}
    line = json.dumps(document, separators=(",", ":"), allow_nan=False) + "\n"
    compressor = zlib.compressobj(_LEVEL, zlib.DEFLATED, _GZIP_WINDOW)
    return compressor.compress(line.encode()) + compressor.flush()


class _Lines:
    """Writes operations as JSON, in a third of the time of `json.dumps`."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = [json.dumps(name) for name in names]

    def of(self, operation: Any) -> str:  # noqa: ANN401 - a tuple: reading fields by name is slower
        op, rank, dp, pp, tp, step, start_ns, duration_ns, mb, mc = operation
        line = (
            f'{{"rank":{rank},"dp":{dp},"pp":{pp},"step":{step},"op":{self._names[op]}'
            f',"start_ns":{start_ns},"dur_ns":{duration_ns}'
        )
        if mb is not None:
            line += f',"mb":{mb}'
        if mc is not None:
            line += f',"mc":{mc}'
        if tp is not None:
            line += f',"tp":{tp}'
        return line + "}\n"
