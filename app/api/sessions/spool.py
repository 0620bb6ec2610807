"""Bodies on their way to disk: counted, hashed, bounded, and gone when they are done with."""

from __future__ import annotations

import errno
import hashlib
import io
import tempfile
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Final, Self

import anyio
from anyio import CapacityLimiter

from app.errors import BusyError, InsufficientStorageError
from app.settings import MIB

if TYPE_CHECKING:
    from app.system.shared import Sum

# Written and hashed at once, in a thread: smaller pieces spend their time on changing threads.
FLUSH_BYTES: Final = MIB
# A body up to this size stays in memory until it is whole, unless all bodies have more than
# `HELD_TOGETHER_BYTES` there: to write one and read it again takes as long as to hash it.
HELD_BYTES: Final = 8 * MIB
HELD_TOGETHER_BYTES: Final = 64 * MIB


class ByteBudget:
    """How many bytes may be spooled at once; used on the event loop only.

    Parameters
    ----------
    total : int
        Bytes of all processes of the server together.
    shared : Sum, optional
        What the other processes use; without it there are none.
    """

    def __init__(self, total: int, shared: Sum | None = None) -> None:
        self.total = total
        self.used = 0
        self._held = 0
        self._shared = shared

    def reserve(self, count: int) -> None:
        """Take `count` bytes.

        Raises
        ------
        BusyError
            If that many are not left.
        """
        others = 0 if self._shared is None else self._shared.of_others()
        if self.used + others + count > self.total:
            raise BusyError("The server holds as many bodies as it may; send this one later.")
        self._use(count)

    def release(self, count: int) -> None:
        """Give `count` bytes back."""
        self._use(-count)

    def hold(self, count: int) -> bool:
        """Take `count` bytes of the memory of this process, and return whether they were left."""
        if self._held + count > HELD_TOGETHER_BYTES:
            return False
        self._held += count
        return True

    def let_go(self, count: int) -> None:
        """Give `count` bytes of memory back."""
        self._held -= count

    def _use(self, count: int) -> None:
        self.used += count
        if self._shared is not None:
            self._shared.set(self.used)


@dataclass(frozen=True, slots=True)
class SpooledBody:
    """A body that has arrived whole.

    `path` can be opened for reading as long as its `Spool` is open.
    """

    path: Path
    size: int
    sha256: bytes
    head: bytes


class Spool:
    """One body's file, without a name: a killed process leaves nothing behind either.

    Parameters
    ----------
    directory : Path
        Where the file lives.
    budget : ByteBudget
        Holds the body's bytes until this is closed.
    limiter : CapacityLimiter
        Of the threads that write and hash.
    """

    def __init__(self, directory: Path, budget: ByteBudget, limiter: CapacityLimiter) -> None:
        self._directory = directory
        self._budget = budget
        self._limiter = limiter
        self._pending = io.BytesIO()
        self._file: IO[bytes] | None = None
        self._sha256 = hashlib.sha256()
        self._head = b""
        self._held = 0
        self.size = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._budget.release(self.size)
        self._let_go()
        if self._file is not None:
            self._file.close()

    async def write(self, data: bytes) -> None:
        """Append to the body.

        Raises
        ------
        BusyError, InsufficientStorageError
        """
        # What came, not what was announced: an announcement costs its sender nothing.
        self._budget.reserve(len(data))
        self.size += len(data)
        self._pending.write(data)
        if self._file is None and self.size <= HELD_BYTES and self._budget.hold(len(data)):
            self._held += len(data)
        elif self._pending.tell() >= FLUSH_BYTES:
            await self._flush()

    def held(self, most: int) -> bytes | None:
        """Return the body, if it came whole and is at most `most` bytes, all in memory."""
        return None if self._file is not None or self.size > most else self._pending.getvalue()

    async def finish(self) -> SpooledBody:
        """Return the whole body, of which nothing is in memory any more.

        Raises
        ------
        InsufficientStorageError
        """
        file = await self._flush()
        path = Path(f"/dev/fd/{file.fileno()}")
        return SpooledBody(path, self.size, self._sha256.digest(), self._head)

    async def _flush(self) -> IO[bytes]:
        pending, self._pending = self._pending.getvalue(), io.BytesIO()
        self._let_go()
        return await anyio.to_thread.run_sync(self._write, pending, limiter=self._limiter)

    def _let_go(self) -> None:
        self._budget.let_go(self._held)
        self._held = 0

    def _write(self, data: bytes) -> IO[bytes]:
        try:
            if self._file is None:
                self._head = data[:16]
                self._file = tempfile.TemporaryFile(  # noqa: SIM115 - closed by __aexit__
                    dir=self._directory, buffering=0
                )
            remaining = memoryview(data)
            while remaining:
                remaining = remaining[self._file.write(remaining) :]
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise InsufficientStorageError("There is no room on the disk.") from error
            raise
        self._sha256.update(data)
        return self._file
