"""Decode received bodies in a thread while a transaction stores them; read the states of sessions.

A body in a storable format is stored as it was sent, while it is decoded; any other is stored in
the format of `app.analysis.trace.storage` once it is decoded.
"""

from __future__ import annotations

import contextlib
import hashlib
import uuid
from collections.abc import Collection, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache, cached_property
from pathlib import Path
from typing import Final

from sqlalchemy import Select, func, or_, select

from app.analysis.trace.compression import GZIP_MAGIC, ZSTD_MAGIC, open_body
from app.analysis.trace.decode import decode, recognize
from app.analysis.trace.formats.kind import Decoded, TraceFormat
from app.analysis.trace.formats.registry import format_named
from app.analysis.trace.limits import Limits
from app.analysis.trace.model import SessionMeta
from app.analysis.trace.recordings.files import FileNames
from app.analysis.trace.recordings.labels import OwnRanges
from app.analysis.trace.storage import is_stored_as_received, pack
from app.platform.blobs import PART_BYTES
from app.platform.database.states import SessionState
from app.platform.database.unit_of_work import Reads
from app.platform.resources import spool_directory
from app.platform.settings import MIB, Settings
from app.sessions.models.tables import Session
from app.sessions.recordings.archive import unpacked
from app.sessions.recordings.choose import (
    NotRead,
    archive_at,
    choose,
    inspect_files,
    metadata_among,
    metadata_of,
    other_archive,
)
from app.sessions.recordings.read import Reading, read_files, with_not_read

# Limit of a trace's header line, which lists host and GPU of each rank: about 1 MiB for 16,384
# ranks.
MAX_HEADER_BYTES: Final = 8 * MIB

# Bodies of at least this size, about 20,000 operations as gzip, are parsed by compiled code.
COMPILED_FROM_BYTES: Final = 256 * 1024

# A larger body is decoded before the database writes any of it: a rollback costs the database as
# much as a commit, and the transaction would be idle for seconds.
KEPT_BYTES: Final = 64 * MIB


def trace_limits(settings: Settings) -> Limits:
    """Return the size limits for decoding one body."""
    return Limits(
        max_decompressed_bytes=settings.max_decompressed_bytes,
        max_rows=settings.max_rows,
        max_header_bytes=MAX_HEADER_BYTES,
    )


@dataclass(frozen=True, slots=True)
class Read:
    """A decoded body, with the files of an archive that were not read."""

    decoded: Decoded
    not_read: tuple[NotRead, ...] = ()


class Decoding:
    """The decoding of a body in another thread, which `begin` starts."""

    def __init__(self, settings: Settings, body: Body) -> None:
        self._settings = settings
        self._body = body
        self._reading: Future[Read] | None = None

    @cached_property
    def kept(self) -> TraceFormat | None:
        """Return the format of a body that is stored as sent; None if the body is converted.

        Raises
        ------
        InvalidTraceError, UnsupportedFormatError
            The body is in no known format.
        """
        body = self._body
        if body.size > KEPT_BYTES or body.own is not None or _is_archive(body):
            return None
        recognized = recognize(
            body.source,
            limits=trace_limits(self._settings),
            content_type=body.content_type,
            format_name=body.format_name,
        )
        magic = body.begin(len(ZSTD_MAGIC))
        return recognized if is_stored_as_received(recognized, magic) else None

    def begin(self) -> Future[Read]:
        """Start decoding unless it has started; raises what `kept` raises."""
        if self._reading is None:
            threads = _decoders(self._settings.ingest_concurrency)
            self._reading = threads.submit(_read, self._settings, self._body, self.kept)
        return self._reading

    def result(self) -> Read:
        """Wait for the decoded body; raises the errors of `decode` and `read_files`."""
        return self.begin().result()

    def as_it_came(self) -> Iterator[bytes]:
        """Yield the body as it was sent, in parts."""
        if isinstance(self._body.source, bytes):
            yield self._body.source
            return
        with open_body(self._body.source) as file:
            while piece := file.read(PART_BYTES):
                yield piece

    def packed(self) -> Iterator[bytes]:
        """Yield the decoded operations, packed for storage, in parts; raises as `result` does."""
        yield from pack(self.result().decoded.trace)

    def end(self) -> None:
        """Wait until the thread no longer reads the body, whose file may then be closed."""
        if self._reading is not None and not self._reading.cancel():
            wait([self._reading])


@contextlib.contextmanager
def decoding(settings: Settings, body: Body) -> Iterator[Decoding]:
    """Provide the decoding of a body; it starts on demand and ends with the context."""
    decoded = Decoding(settings, body)
    try:
        yield decoded
    finally:
        decoded.end()


@cache
def _decoders(threads: int) -> ThreadPoolExecutor:
    """Return the pool of decoding threads: one thread per body that is stored at a time.

    Threads are reused: the first use of a new thread's memory takes a fifth of the time of decoding
    a body of a megabyte.
    """
    return ThreadPoolExecutor(threads, "decode")


def _is_archive(body: Body) -> bool:
    return archive_at(body.source) is not None or other_archive(body.source) is not None


def _read(settings: Settings, body: Body, kept: TraceFormat | None) -> Read:
    limits = trace_limits(settings)
    magic = body.begin(len(ZSTD_MAGIC))
    if body.size >= COMPILED_FROM_BYTES and magic.startswith((GZIP_MAGIC, ZSTD_MAGIC, b"{")):
        # Imported with the first large body, since the import loads the compiler, which other
        # processes do not need.
        from app.analysis.trace.readers import ndjson_compiled as plain  # noqa: PLC0415 - see above

        plain.warm_up()
    if kept is not None:
        return Read(kept.decode(body.source, body.meta, limits, part=False))
    if not _is_archive(body):
        return Read(
            decode(
                body.source,
                body.meta,
                limits=limits,
                content_type=body.content_type,
                format_name=body.format_name,
                own=body.own,
            )
        )
    wanted = None if body.format_name is None else format_named(body.format_name)
    directory = spool_directory(settings)
    with unpacked(body.source, limits, directory=directory, nameless=True) as files:
        chosen = choose(inspect_files(files), "the archive", wanted)
        metadata_file = metadata_among(files)
        meta = body.meta
        if meta is None and metadata_file is not None:
            meta = metadata_of(metadata_file)
        names = set(chosen.names)
        recorded = read_files(
            [file for file in files if file.name in names],
            meta,
            Reading(limits, together=True, format_name=chosen.trace_format.name, own=body.own),
        )
    trace = with_not_read(recorded, chosen.not_read).trace
    return Read(Decoded(trace, recorded.trace_format, recorded.unmapped), chosen.not_read)


# Limit of the states sent at the start of an event stream.
MAX_STATES: Final = 1000


@dataclass(frozen=True, slots=True)
class StateChange:
    """A session's state and the time of its change: µs since 1970 by the database's clock."""

    project_id: int
    session: uuid.UUID
    state: SessionState
    changed_us: int


def session_states(tx: Reads, ids: Collection[uuid.UUID]) -> list[StateChange]:
    """Return the states of sessions, sorted by the time of change."""
    return _states(tx, _state_rows().where(Session.id.in_(ids)))


def recent_states(tx: Reads, since_s: float, after_us: int | None = None) -> list[StateChange]:
    """Return the states of pending and recently changed sessions, sorted by the time of change.

    Parameters
    ----------
    since_s : float
        Age of the oldest change, in seconds of the database's clock.
    after_us : int, optional
        A `StateChange.changed_us`; if it is earlier than `since_s` ago, changes from it on are
        returned too.
    """
    begin = func.now() - timedelta(seconds=since_s)
    if after_us is not None:
        begin = func.least(begin, func.to_timestamp(after_us / 1e6))
    query = _state_rows().where(
        or_(Session.state.in_(SessionState.UNDERWAY), Session.state_changed_at >= begin)
    )
    return _states(tx, query)


def _state_rows() -> Select[int, uuid.UUID, SessionState, datetime]:
    # Newest first, so that the limit drops the oldest changes; `_states` reverses the order.
    return (
        select(Session.project_id, Session.id, Session.state, Session.state_changed_at)
        .order_by(Session.state_changed_at.desc())
        .limit(MAX_STATES)
    )


def _states(tx: Reads, query: Select[int, uuid.UUID, SessionState, datetime]) -> list[StateChange]:
    rows = tx.session.execute(query).all()
    return [
        # Integer arithmetic: a float of µs would lose digits, and with them the order of quick
        # changes.
        StateChange(project, session, state, int(at.timestamp()) * 1_000_000 + at.microsecond)
        for project, session, state, at in reversed(rows)
    ]


@dataclass(frozen=True)
class Body:
    """A request body that was received completely."""

    source: Path | bytes
    """The path of a file with the body's bytes, or the bytes themselves."""
    size: int
    """Size in bytes."""
    digest: bytes | None
    """SHA-256 of the bytes; None if it was not computed while the bytes arrived."""
    content_type: str | None
    """Media type; None if the decoder detects the format."""
    meta: SessionMeta | None
    """Metadata of the session; None if the body itself contains the metadata."""
    format_name: str | None = None
    """Name of the body's format; None if the decoder detects the format."""
    own: OwnRanges | None = None
    """The job's labels of profiler ranges."""
    names: FileNames | None = None
    """Rank and number of ranks, from the names of the files of a folder."""

    @cached_property
    def sha256(self) -> bytes:
        """Return the SHA-256 digest of the body's bytes."""
        return hashlib.sha256(self.content()).digest() if self.digest is None else self.digest

    @property
    def in_memory(self) -> bool:
        """Return whether the body is in memory instead of a file; only small bodies are."""
        return isinstance(self.source, bytes)

    @property
    def path(self) -> Path:
        """Return the path of the file with the body's bytes.

        Raises
        ------
        TypeError
            The body is in memory.
        """
        if isinstance(self.source, bytes):
            raise TypeError("the body is in memory")
        return self.source

    def begin(self, size: int) -> bytes:
        """Return the body's first `size` bytes."""
        with open_body(self.source) as file:
            return file.read(size)

    def content(self) -> bytes:
        """Return the body's bytes."""
        return self.source if isinstance(self.source, bytes) else self.source.read_bytes()
