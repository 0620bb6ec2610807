"""Decode a body that has arrived, while the same bytes are stored where they stay as they came."""

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Final

from app.analysis.trace.decode import decode, recognize
from app.analysis.trace.formats.kind import Decoded
from app.analysis.trace.formats.registry import format_named
from app.analysis.trace.limits import Limits
from app.analysis.trace.ndjson.streams import GZIP_MAGIC, ZSTD_MAGIC
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
    from collections.abc import Callable, Iterator
    from pathlib import Path

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


@dataclass(frozen=True, slots=True)
class Decoding:
    """A body that is being decoded, or will be when it is asked for."""

    result: Callable[[], Read]
    """Waits until the body is decoded and checked, and raises what `decode` and `read_files` do."""
    _kept: Path | None  # the body, where it is stored as it came

    def stored(self) -> Iterator[bytes]:
        """Yield what is stored of the body, in parts.

        Of a body that is not stored as it came, it raises what `result` does.
        """
        if self._kept is None:
            yield from pack(self.result().decoded.trace)
            return
        with self._kept.open("rb") as file:
            while piece := file.read(PART_BYTES):
                yield piece


@contextlib.contextmanager
def decoding(settings: Settings, body: Body, *, stays: bool) -> Iterator[Decoding]:
    """Decode a body: on a second core while it is stored, where it is stored as it came.

    Parameters
    ----------
    stays : bool
        What `stays_as_it_came` says of it.
    """
    if not stays:
        yield Decoding(cache(partial(_read, settings, body)), None)
        return
    with ThreadPoolExecutor(1, "decode") as pool:
        yield Decoding(pool.submit(_read, settings, body).result, body.path)


def stays_as_it_came(settings: Settings, body: Body) -> bool:
    """Return whether a body is stored as it came.

    Raises
    ------
    InvalidTraceError, UnsupportedFormatError
        It is in no known format.
    """
    if body.size > KEPT_BYTES or body.own is not None or _is_archive(body.path):
        return False
    known = recognize(
        body.path,
        limits=trace_limits(settings),
        content_type=body.content_type,
        format_name=body.format_name,
    )
    with body.path.open("rb") as file:
        return is_kept(known, file.read(len(ZSTD_MAGIC)))


def _is_archive(path: Path) -> bool:
    return archive_at(path) is not None or other_archive(path) is not None


def _read(settings: Settings, body: Body) -> Read:
    limits = trace_limits(settings)
    if body.size >= COMPILED_FROM_BYTES and _may_be_lines(body.path):
        # With the first one: a process that receives none this large needs no compiler.
        from app.analysis.trace.ndjson import plain  # noqa: PLC0415 - see above

        plain.warm_up()
    if not _is_archive(body.path):
        return Read(
            decode(
                body.path,
                body.meta,
                limits=limits,
                content_type=body.content_type,
                format_name=body.format_name,
                own=body.own,
            )
        )
    wanted = None if body.format_name is None else format_named(body.format_name)
    directory = spool_directory(settings)
    with unpacked(body.path, limits, directory=directory, nameless=True) as files:
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


def _may_be_lines(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(ZSTD_MAGIC)).startswith((GZIP_MAGIC, ZSTD_MAGIC, b"{"))
