"""Operations between the training's threads and the sender's thread, 80 bytes each.

Packed operations are no objects for Python's garbage collector, have integer values only, and can
be written to a file as they are.
"""

from __future__ import annotations

import struct
import threading
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple, SupportsIndex

if TYPE_CHECKING:
    from collections.abc import Iterator

_PACKED: Final = struct.Struct("=10q")
# The value of an absent coordinate.
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
    """Holds operations of all threads until the sender's thread takes them.

    `capacity` limits the operations that are held here or taken and not yet released.
    """

    def __init__(self, capacity: int) -> None:
        self.names: list[str] = []  # operation types, in the order of their first operation
        # Operations that were not taken: values that are no integers, no room, or after the end.
        self.dropped = 0
        self.dropped_steps: set[int] = set()  # steps with an operation that had no room
        self._capacity = capacity
        self._codes: dict[str, int] = {}
        # The garbage collector may run while it is held, and its callback records an operation.
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
        """Return the new operations; they count as held until they are released."""
        with self._lock:
            full, self._full = self._full, deque()
            tail, self._tail = self._tail, bytearray()
        return [*full, tail] if tail else list(full)

    def release(self, operations: int) -> None:
        """Free the room of operations that were taken."""
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
    """Unpack operations."""
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
