"""Operations that the recorder's thread has not formatted yet, in memory or in the spool."""

from __future__ import annotations

import logging
from collections import deque
from typing import IO, TYPE_CHECKING

from paceline_client.operations import OPERATION_BYTES

if TYPE_CHECKING:
    from paceline_client.operations import OperationBuffer
    from paceline_client.spool import Spool

_log = logging.getLogger("paceline_client")


class Backlog:
    """Chunks that the thread has not formatted yet; beyond `in_memory` operations in the spool."""

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
        """Return the next chunk; to be released with `done` once it is formatted."""
        if not self._chunks:
            return None
        chunk = self._chunks.popleft()
        if isinstance(chunk, bytearray):
            return chunk
        start, size = chunk
        assert self._file is not None  # noqa: S101 - a spilled chunk was written to it
        self._file.seek(start)
        read = bytearray(self._file.read(size))
        # It is in memory again until `done`.
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
