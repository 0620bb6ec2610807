"""Operations of a session: packed in memory, spilled to a file, formatted as compressed NDJSON.

Packed operations are no objects for Python's garbage collector, have integer values only, and can
be written to a file as they are.
"""

from __future__ import annotations

import json
import logging
import struct
import threading
import zlib
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import IO, Any, Final, NamedTuple, SupportsIndex

from paceline_client.spool import Spool

_log = logging.getLogger("paceline_client")

_PACKED: Final = struct.Struct("=10q")
# The value that represents an absent coordinate in packed operations.
_ABSENT: Final = -(1 << 63)
_CHUNK_OPERATIONS: Final = 4096
_CHUNK_BYTES: Final = _CHUNK_OPERATIONS * _PACKED.size

OPERATION_BYTES: Final = _PACKED.size


class Operation(NamedTuple):
    """One operation; ``op`` is an index into the buffer's `names`."""

    op: int
    rank: int
    dp: int
    pp: int
    tp: int | None
    step: int
    start_ns: int
    duration_ns: int
    mb: int | None
    mc: int | None


class OperationBuffer:
    """A buffer into which all threads record operations, until the sender's thread takes them.

    `capacity` limits the operations in the buffer, including those that are taken and not released.
    """

    def __init__(self, capacity: int) -> None:
        self.names: list[str] = []  # operation types, in the order of their first operation
        # Number of operations dropped because a value was no integer, the buffer was full, or the
        # session had ended.
        self.dropped = 0
        self.dropped_steps: set[int] = set()  # steps that lost an operation for lack of memory
        self._capacity = capacity
        self._codes: dict[str, int] = {}
        # Reentrant, because the garbage collector may run while a thread holds the lock, and its
        # callback records an operation.
        self._lock = threading.RLock()
        self._open = True
        self._held = 0
        self._tail = bytearray()
        self._full: deque[bytearray] = deque()

    def add(  # noqa: PLR0913, PLR0917 - the coordinates of an operation
        self,
        op: str,
        rank: SupportsIndex,
        dp: SupportsIndex,
        pp: SupportsIndex,
        tp: SupportsIndex | None,
        step: SupportsIndex,
        start_ns: SupportsIndex,
        duration_ns: SupportsIndex,
        mb: SupportsIndex | None,
        mc: SupportsIndex | None,
    ) -> None:
        """Append one operation, or count it as dropped."""
        try:
            code = self._codes[op]
        except (KeyError, TypeError):
            code = self._new_code(op)
        try:
            record = _PACKED.pack(
                code,
                rank,
                dp,
                pp,
                _ABSENT if tp is None else tp,
                step,
                start_ns,
                duration_ns,
                _ABSENT if mb is None else mb,
                _ABSENT if mc is None else mc,
            )
        except struct.error:
            self.drop(1)
            return
        with self._lock:
            if self._held >= self._capacity or not self._open or code < 0:
                self.dropped += 1
                if self._open and code >= 0:
                    self.dropped_steps.add(int(step))
                return
            self._held += 1
            tail = self._tail
            tail += record
            if len(tail) >= _CHUNK_BYTES and tail is self._tail:
                self._full.append(tail)
                self._tail = bytearray()

    def take(self) -> list[bytearray]:
        """Return the new packed operations; they count as held until `release`."""
        with self._lock:
            full, self._full = self._full, deque()
            tail, self._tail = self._tail, bytearray()
        return [*full, tail] if tail else list(full)

    def release(self, operations: int) -> None:
        """Free the memory of operations that were taken, for new operations."""
        with self._lock:
            self._held -= operations

    def drop(self, operations: int) -> None:
        """Count operations as dropped."""
        with self._lock:
            self.dropped += operations

    def close(self) -> None:
        """Drop all further operations."""
        with self._lock:
            self._open = False

    def _new_code(self, op: object) -> int:
        if not isinstance(op, str):
            return -1
        with self._lock:
            code = self._codes.get(op)
            if code is None:
                code = len(self.names)
                self.names.append(op)
                self._codes[op] = code
        return code


def unpacked(chunk: bytes | bytearray) -> Iterator[Operation]:
    """Return the operations in packed data."""
    for op, rank, dp, pp, tp, step, start, duration, mb, mc in _PACKED.iter_unpack(chunk):
        yield Operation(
            op,
            rank,
            dp,
            pp,
            None if tp == _ABSENT else tp,
            step,
            start,
            duration,
            None if mb == _ABSENT else mb,
            None if mc == _ABSENT else mc,
        )


class Backlog:
    """Chunks that are not formatted yet; chunks beyond `in_memory` operations are in the spool."""

    def __init__(self, buffer: OperationBuffer, spool: Spool | None, in_memory: int) -> None:
        self._buffer = buffer
        self._spool = spool
        self._in_memory = in_memory
        self._chunks: deque[bytearray | tuple[int, int]] = deque()
        self._held = 0
        self._file: IO[bytes] | None = None
        self._end = 0

    def refill(self) -> None:
        """Take new operations from the buffer, and write the surplus to the spool."""
        for chunk in self._buffer.take():
            operations = len(chunk) // OPERATION_BYTES
            if self._held + operations > self._in_memory and self._spill(chunk):
                self._buffer.release(operations)
            else:
                self._held += operations
                self._chunks.append(chunk)

    def next(self) -> bytearray | None:
        """Return the next chunk; call `done` once it is formatted."""
        if not self._chunks:
            return None
        chunk = self._chunks.popleft()
        if isinstance(chunk, bytearray):
            return chunk
        start, size = chunk
        assert self._file is not None  # noqa: S101 - a spilled chunk was written to it
        self._file.seek(start)
        read = bytearray(self._file.read(size))
        # The chunk is in memory again until `done`.
        self._held += size // OPERATION_BYTES
        self._buffer.release(-(size // OPERATION_BYTES))
        if not any(isinstance(other, tuple) for other in self._chunks):
            self._end = 0
        return read

    def done(self, chunk: bytearray) -> None:
        """Release the memory of a chunk."""
        operations = len(chunk) // OPERATION_BYTES
        self._held -= operations
        self._buffer.release(operations)

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()

    def _spill(self, chunk: bytearray) -> bool:
        if self._spool is None:
            return False
        try:
            if self._file is None:
                self._file = self._spool.overflow()
            self._file.seek(self._end)
            self._file.write(chunk)
            self._file.flush()
        except OSError as error:
            _log.warning("cannot write to the spool: %s", error)
            self._spool = None
            return False
        self._chunks.append((self._end, len(chunk)))
        self._end += len(chunk)
        return True


_SCHEMA: Final = "paceline.trace/1"
_GZIP_WINDOW: Final = 31  # selects a gzip header, without a time
_LEVEL: Final = 6
# Maximum number of steps that are compressed at the same time, each with a compressor of 256 KiB.
_OPEN_STEPS: Final = 3


class _Member:
    """The compressed lines of one step, as a gzip member."""

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
        """Return the number of compressed bytes."""
        return sum(map(len, self.pieces))

    def _keep(self, piece: bytes) -> int:
        if piece:
            self.pieces.append(piece)
        return len(piece)


class SessionBody:
    """A session as gzip-compressed NDJSON: a header line, then a line for each operation.

    Operations are compressed as they arrive. Each step is a separate gzip member and the header is
    written last: steps can be left out and metadata completed until the session ends, and complete
    steps can be taken earlier, as separate bodies.

    Beyond `max_bytes` compressed bytes, the operations of later steps are left out.
    """

    def __init__(self, max_bytes: int) -> None:
        self.left_out: set[int] = set()  # steps without operations in the body
        self.bytes_held = 0
        self._max_bytes = max_bytes
        self._open: dict[int, _Member] = {}
        self._closed: list[_Member] = []
        self._taken = ""  # the first line of a member that was taken

    def add(self, chunk: bytes | bytearray, names: Sequence[str]) -> int:
        """Add packed operations; return the number that was left out because of the size limit."""
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

    @property
    def steps(self) -> set[int]:
        """The steps with operations in the body."""
        return {member.step for member in (*self._open.values(), *self._closed)}

    def operations_of(self, steps: Iterable[int]) -> int:
        """Return the number of operations in these steps."""
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
        """Return the steps before the newest step as a body, and the number of its operations.

        The memory of these steps is freed. Operations of these steps that arrive later are in a
        later body. Steps in `without` are not taken. The body is empty if no step can be taken.
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
        """Return the remaining steps as a body, and the number of its operations.

        `without` are further steps to leave out. `meta` goes into the header line; raises
        `TypeError` or `ValueError` if it is not valid JSON.
        """
        for step in sorted(self._open):
            self._end(step)
        self.left_out.update(without)
        kept = [member for member in self._closed if member.step not in self.left_out]
        if kept or not self._taken:
            return _body(meta, kept)
        # The server refuses a body without operations, but stores a repeated operation only once:
        # repeat an operation.
        repeated = _Member(0)
        repeated.add([self._taken])
        repeated.close()
        return _body(meta, [repeated])[0], 0


def _body(meta: Mapping[str, Any], members: Sequence[_Member]) -> tuple[bytes, int]:
    document = {"schema": _SCHEMA, "meta": dict(meta)}
    line = json.dumps(document, separators=(",", ":"), allow_nan=False) + "\n"
    compressor = zlib.compressobj(_LEVEL, zlib.DEFLATED, _GZIP_WINDOW)
    pieces = [compressor.compress(line.encode()), compressor.flush()]
    for member in members:
        pieces += member.pieces
    return b"".join(pieces), sum(member.operations for member in members)


class _Lines:
    """Formats operations as JSON, in a third of the time of `json.dumps`."""

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
