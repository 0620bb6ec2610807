"""Spool request bodies to disk within a byte budget; parse multipart bodies while they arrive."""

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
from python_multipart import MultipartParser
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import parse_options_header

from app.errors import BusyError, Fault, InsufficientStorageError, PacelineError
from app.platform.resources import Sum
from app.platform.settings import MIB

if TYPE_CHECKING:
    from python_multipart.multipart import MultipartCallbacks


# Bytes that a thread writes and hashes at once: with smaller pieces, thread switches dominate the
# time.
FLUSH_BYTES: Final = MIB
# A body up to this size stays in memory until it is complete, as long as all bodies in memory have
# at most `HELD_TOGETHER_BYTES`: writing a body to disk and reading it again takes as long as
# hashing it.
HELD_BYTES: Final = 8 * MIB
HELD_TOGETHER_BYTES: Final = 64 * MIB


class ByteBudget:
    """The limit of bytes spooled at a time; used on the event loop only.

    Parameters
    ----------
    total : int
        Limit of all processes of the server together.
    shared : Sum, optional
        Bytes that the other processes have reserved; by default there are no other processes.
    """

    def __init__(self, total: int, shared: Sum | None = None) -> None:
        self.total = total
        self.used = 0
        self._held = 0
        self._shared = shared

    def reserve(self, count: int) -> None:
        """Reserve `count` bytes of the budget.

        Raises
        ------
        BusyError
            The budget has fewer bytes left.
        """
        others = 0 if self._shared is None else self._shared.of_others()
        if self.used + others + count > self.total:
            raise BusyError("The server holds as many bodies as it may; send this one later.")
        self._use(count)

    def release(self, count: int) -> None:
        """Return `count` reserved bytes to the budget."""
        self._use(-count)

    def hold(self, count: int) -> bool:
        """Reserve `count` bytes of this process's memory limit; return False if fewer are left."""
        if self._held + count > HELD_TOGETHER_BYTES:
            return False
        self._held += count
        return True

    def let_go(self, count: int) -> None:
        """Return `count` reserved bytes to the memory limit."""
        self._held -= count

    def _use(self, count: int) -> None:
        self.used += count
        if self._shared is not None:
            self._shared.set(self.used)


@dataclass(frozen=True, slots=True)
class SpooledBody:
    """A complete body on disk; `path` can be read while its `Spool` is open."""

    path: Path
    size: int
    sha256: bytes
    head: bytes


class Spool:
    """The temporary file of one body; without a name, so that a killed process leaves no file.

    Parameters
    ----------
    directory : Path
    budget : ByteBudget
        Charged with the body's bytes until the spool is closed.
    limiter : CapacityLimiter
        Limits the threads that write and hash.
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
        """Append data to the body.

        Raises
        ------
        BusyError, InsufficientStorageError
        """
        # Reserve what was received, not the Content-Length, which a client can set to any value.
        self._budget.reserve(len(data))
        self.size += len(data)
        self._pending.write(data)
        if self._file is None and self.size <= HELD_BYTES and self._budget.hold(len(data)):
            self._held += len(data)
        elif self._pending.tell() >= FLUSH_BYTES:
            await self._flush()

    def held(self, most: int) -> bytes | None:
        """Return the complete body if it is in memory and has at most `most` bytes."""
        return None if self._file is not None or self.size > most else self._pending.getvalue()

    async def finish(self) -> SpooledBody:
        """Write the unwritten bytes of the body and return the body as a file.

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


META_PART: Final = "meta"
LABELS_PART: Final = "labels"
TRACE_PART: Final = "trace"
# Limit of a part's headers: many times the usual Content-Disposition and Content-Type.
MAX_PART_HEADER_BYTES: Final = 4096


class MalformedMultipartError(PacelineError):
    """A multipart body is malformed, or has unexpected parts."""

    code = "multipart.invalid"


@dataclass(frozen=True, slots=True)
class MultipartParts:
    """The text parts of a multipart body, and the content type of the part `trace`."""

    meta: str | None
    labels: str | None
    trace_content_type: str | None


class MultipartReader:
    """Parser of one multipart body; text parts stay in memory, the part `trace` goes to a spool.

    Parameters
    ----------
    content_type : str
        Content type of the request, with the boundary.
    spool : Spool
        Receives the bytes of the part `trace`.
    max_meta_bytes : int
        Limit of each of the parts `meta` and `labels`.

    Raises
    ------
    MalformedMultipartError
        The content type has no boundary.
    """

    def __init__(self, content_type: str, spool: Spool, *, max_meta_bytes: int) -> None:
        boundary = parse_options_header(content_type)[1].get(b"boundary")
        if not boundary:
            raise MalformedMultipartError("The content type names no boundary.")
        callbacks: MultipartCallbacks = {
            "on_part_begin": self._part_begin,
            "on_header_field": self._header_field,
            "on_header_value": self._header_value,
            "on_header_end": self._header_end,
            "on_headers_finished": self._headers_finished,
            "on_part_data": self._part_data,
            "on_end": self._end,
        }
        self._parser = MultipartParser(boundary, callbacks)
        self._spool = spool
        self._max_meta_bytes = max_meta_bytes
        self._header_bytes = 0
        self._name = bytearray()
        self._value = bytearray()
        self._headers: dict[bytes, bytes] = {}
        self._part = ""
        self._seen: set[str] = set()
        self._texts = {META_PART: bytearray(), LABELS_PART: bytearray()}
        self._trace_content_type: str | None = None
        self._trace_data: list[bytes] = []
        self._complete = False

    async def feed(self, chunk: bytes) -> None:
        """Parse the next bytes of the body.

        Raises
        ------
        MalformedMultipartError, BodyTooLargeError, BusyError
        """
        try:
            self._parser.write(chunk)
        except FormParserError as error:
            raise MalformedMultipartError(f"The multipart body is malformed: {error}.") from error
        for data in self._trace_data:
            await self._spool.write(data)
        self._trace_data.clear()

    def finish(self) -> MultipartParts:
        """Return the parts once the body has ended.

        Raises
        ------
        MalformedMultipartError
            The body ended before its last boundary, or has no part `trace`.
        """
        if not self._complete:
            raise MalformedMultipartError("The multipart body ends before its last boundary.")
        if TRACE_PART not in self._seen:
            raise MalformedMultipartError(f"There is no part named {TRACE_PART}.")
        return MultipartParts(
            self._text(META_PART), self._text(LABELS_PART), self._trace_content_type
        )

    def _text(self, part: str) -> str | None:
        try:
            return self._texts[part].decode() if part in self._seen else None
        except UnicodeDecodeError as error:
            raise MalformedMultipartError(f"The part {part} is not UTF-8.") from error

    def _part_begin(self) -> None:
        self._headers = {}
        self._header_bytes = 0

    def _header_field(self, data: bytes, start: int, end: int) -> None:
        self._count_header(end - start)
        self._name += data[start:end]

    def _header_value(self, data: bytes, start: int, end: int) -> None:
        self._count_header(end - start)
        self._value += data[start:end]

    def _header_end(self) -> None:
        self._headers[bytes(self._name).lower()] = bytes(self._value)
        self._name.clear()
        self._value.clear()

    def _headers_finished(self) -> None:
        options = parse_options_header(self._headers.get(b"content-disposition"))[1]
        part = options.get(b"name", b"").decode("utf-8", "replace")
        if part not in (*self._texts, TRACE_PART):
            raise MalformedMultipartError(
                f"The only parts are {META_PART}, {LABELS_PART} and {TRACE_PART}.",
                faults=(Fault("unknown_part", "This part is not known.", column=part),),
            )
        if part in self._seen:
            raise MalformedMultipartError(f"The part {part} comes twice.")
        self._seen.add(part)
        self._part = part
        if part == TRACE_PART:
            content_type = self._headers.get(b"content-type")
            self._trace_content_type = content_type.decode("latin-1") if content_type else None

    def _part_data(self, data: bytes, start: int, end: int) -> None:
        if self._part == TRACE_PART:
            self._trace_data.append(data[start:end])
            return
        text = self._texts[self._part]
        text += data[start:end]
        if len(text) > self._max_meta_bytes:
            raise MalformedMultipartError(
                f"The part {self._part} is over its limit of {self._max_meta_bytes} bytes.",
                code="body.too_large",
            )

    def _end(self) -> None:
        self._complete = True

    def _count_header(self, count: int) -> None:
        self._header_bytes += count
        if self._header_bytes > MAX_PART_HEADER_BYTES:
            raise MalformedMultipartError("The headers of a part are too long.")
