"""Decode a body that has arrived, while the same bytes are stored where they stay as they came."""

from __future__ import annotations

import contextlib
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import cache, cached_property
from typing import TYPE_CHECKING, Final

from app.analysis.trace.decode import decode, recognize
from app.analysis.trace.formats.kind import Decoded
from app.analysis.trace.formats.registry import format_named
from app.analysis.trace.limits import Limits
from app.analysis.trace.ndjson.streams import GZIP_MAGIC, ZSTD_MAGIC, opened
from app.analysis.trace.storage.packed import pack
from app.analysis.trace.storage.stored import is_kept
from app.db.blobs import PART_BYTES
from app.inputs.recordings.archive import unpacked
from app.inputs.recordings.archive_kinds import archive_at, other_archive
from app.inputs.recordings.choose import choose, look_at, metadata_among, metadata_of
from app.inputs.recordings.read import Reading, read_files, with_not_read
from app.services.ingest.place import spool_directory
from app.settings import MIB

if TYPE_CHECKING:
    from collections.abc import Iterator

    from app.analysis.trace.formats.kind import TraceFormat
    from app.inputs.recordings.choose import NotRead
    from app.services.sessions.body import Body
    from app.settings import Settings

# A header line holds sizes, hosts and GPUs of every rank: 16,384 ranks need about 1 MiB.
MAX_HEADER_BYTES: Final = 8 * MIB

# Bytes of a body from which on lines are read by compiled code: 20,000 operations as gzip.
COMPILED_FROM_BYTES: Final = 256 * 1024

# Of a larger body nothing is written before it is known to be good: what is rolled back has cost
# the database as much as what stays, and its transaction would be idle for seconds.
KEPT_BYTES: Final = 64 * MIB


def trace_limits(settings: Settings) -> Limits:
    """Return what a decoder may read of one body."""
    return Limits(
        max_decompressed_bytes=settings.max_decompressed_bytes,
        max_rows=settings.max_rows,
        max_header_bytes=MAX_HEADER_BYTES,
    )


@dataclass(frozen=True, slots=True)
class Read:
    """What a body holds, and of an archive the files that are not read."""

    decoded: Decoded
    not_read: tuple[NotRead, ...] = ()


class Decoding:
    """A body that is decoded on a second core, from `begin` on.

    Parameters
    ----------
    settings : Settings
    body : Body
    """

    def __init__(self, settings: Settings, body: Body) -> None:
        self._settings = settings
        self._body = body
        self._reading: Future[Read] | None = None

    @cached_property
    def kept(self) -> TraceFormat | None:
        """Return the format of a body that is stored as it came; None of any other.

        Raises
        ------
        InvalidTraceError, UnsupportedFormatError
            It is in no known format.
        """
        body = self._body
        if body.size > KEPT_BYTES or body.own is not None or _is_archive(body):
            return None
        known = recognize(
            body.source,
            limits=trace_limits(self._settings),
            content_type=body.content_type,
            format_name=body.format_name,
        )
        return known if is_kept(known, body.begin(len(ZSTD_MAGIC))) else None

    def begin(self) -> Future[Read]:
        """Begin, where it has not begun; raises what `kept` does."""
        if self._reading is None:
            threads = _decoders(self._settings.ingest_concurrency)
            self._reading = threads.submit(_read, self._settings, self._body, self.kept)
        return self._reading

    def result(self) -> Read:
        """Wait until the body is decoded; raises what `decode` and `read_files` do."""
        return self.begin().result()

    def as_it_came(self) -> Iterator[bytes]:
        """Yield the body, in parts."""
        if isinstance(self._body.source, bytes):
            yield self._body.source
            return
        with opened(self._body.source) as file:
            while piece := file.read(PART_BYTES):
                yield piece

    def packed(self) -> Iterator[bytes]:
        """Yield what was decoded, in parts; raises what `result` does."""
        yield from pack(self.result().decoded.trace)

    def end(self) -> None:
        """Wait until the body is not read any more: its file may be closed then."""
        if self._reading is not None and not self._reading.cancel():
            wait([self._reading])


@contextlib.contextmanager
def decoding(settings: Settings, body: Body) -> Iterator[Decoding]:
    """Decode a body, unless it turns out to be there already, or to have no room."""
    decoded = Decoding(settings, body)
    try:
        yield decoded
    finally:
        decoded.end()


@cache
def _decoders(threads: int) -> ThreadPoolExecutor:
    """Return threads that decode, one for each body that is stored.

    They stay: of a new one the memory is new as well, and touching it takes a fifth as long as
    decoding a body of a megabyte.
    """
    return ThreadPoolExecutor(threads, "decode")


def _is_archive(body: Body) -> bool:
    return archive_at(body.source) is not None or other_archive(body.source) is not None


def _read(settings: Settings, body: Body, kept: TraceFormat | None) -> Read:
    limits = trace_limits(settings)
    if body.size >= COMPILED_FROM_BYTES and _may_be_lines(body):
        # With the first one: a process that receives none this large needs no compiler.
        from app.analysis.trace.ndjson import plain  # noqa: PLC0415 - see above

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
        chosen = choose(look_at(files), "the archive", wanted)
        said = metadata_among(files)
        meta = body.meta
        if meta is None and said is not None:
            meta = metadata_of(said)
        names = set(chosen.names)
        recorded = read_files(
            [one for one in files if one.name in names],
            meta,
            Reading(limits, together=True, format_name=chosen.known.name, own=body.own),
        )
    trace = with_not_read(recorded, chosen.not_read).trace
    return Read(Decoded(trace, recorded.trace_format, recorded.unmapped), chosen.not_read)


def _may_be_lines(body: Body) -> bool:
    return body.begin(len(ZSTD_MAGIC)).startswith((GZIP_MAGIC, ZSTD_MAGIC, b"{"))
