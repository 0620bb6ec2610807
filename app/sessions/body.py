"""A received body, and how it is read: by a process of its own, which the kernel kills at a limit.

A reading process loads this module: it imports no database.
"""

from __future__ import annotations

import hashlib
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from app.analysis.trace.compression import GZIP_MAGIC, ZSTD_MAGIC, open_body
from app.analysis.trace.decode import decode
from app.analysis.trace.formats.kind import Decoded
from app.analysis.trace.formats.registry import FORMATS, format_named
from app.analysis.trace.limits import Limits
from app.analysis.trace.metadata import parse_metadata
from app.analysis.trace.model import SessionMeta
from app.analysis.trace.recordings.files import FileNames
from app.analysis.trace.recordings.labels import OwnRanges
from app.errors import PacelineError
from app.platform.killable import Call, allowance
from app.platform.resources import spool_directory
from app.platform.settings import MIB, Settings
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

# Bodies of at least this size, about 20,000 operations as gzip, are parsed by compiled code, which
# is loaded with the first of them: that takes a second and loads the compiler.
COMPILED_FROM_BYTES: Final = 256 * 1024
_COMPILED: Final = "app.analysis.trace.readers.ndjson_compiled:warm_up"
# What a template process does before it forks processes that read traces.
PREPARATION: Final = "app.sessions.body:reserve_memory"


def trace_limits(settings: Settings) -> Limits:
    """Return the size limits for decoding one body."""
    return Limits(
        max_decompressed_bytes=settings.max_decompressed_bytes,
        max_rows=settings.max_rows,
        max_header_bytes=MAX_HEADER_BYTES,
    )


@dataclass(frozen=True)
class Body:
    """A request body that was received completely."""

    source: Path | bytes
    """A file with its bytes, or the bytes themselves."""
    size: int
    """Bytes."""
    digest: bytes | None
    """SHA-256 of the bytes; None where it was not computed while they came."""
    content_type: str | None
    """Media type; None if the decoder detects the format."""
    meta: SessionMeta | None
    """None where the body itself contains the metadata."""
    format_name: str | None = None
    """Name of its format; None if the decoder detects it."""
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
            It is in memory.
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

    @property
    def is_archive(self) -> bool:
        """Return whether the body is an archive, of a kind that is read or of another."""
        return archive_at(self.source) is not None or other_archive(self.source) is not None


@dataclass(frozen=True, slots=True)
class Read:
    """A decoded body, with the files of an archive that were not read."""

    decoded: Decoded
    not_read: tuple[NotRead, ...] = ()


def reading_of(settings: Settings, body: Body, kept: str | None) -> Call[Read]:
    """Start to read a whole session in a process of its own; parameters as of `read_body`."""
    magic = body.begin(len(ZSTD_MAGIC))
    is_large_text = body.size >= COMPILED_FROM_BYTES and magic.startswith(
        (GZIP_MAGIC, ZSTD_MAGIC, b"{")
    )
    return Call(
        read_body,
        *(body, kept, trace_limits(settings), spool_directory(settings)),
        limits=allowance(body.size, settings.analysis_memory_limit_kib),
        prepare=f"{PREPARATION},{_COMPILED}" if is_large_text else PREPARATION,
    )


def chunk_of(settings: Settings, body: Body) -> Call[Decoded]:
    """Start to decode a chunk in a process of its own."""
    return Call(
        decode_chunk,
        *(body, trace_limits(settings)),
        limits=allowance(body.size, settings.analysis_memory_limit_kib),
        prepare=PREPARATION,
    )


def reserve_memory() -> None:
    """Have Arrow reserve its first gigabyte of addresses, which would count as memory of a call."""
    pa.allocate_buffer(MIB)


def decode_chunk(body: Body, limits: Limits) -> Decoded:
    """Return the decoded chunk of a session; errors are those of `decode`."""
    return decode(
        body.source,
        body.meta,
        limits=limits,
        content_type=body.content_type,
        format_name=body.format_name,
        part=True,
        own=body.own,
        names=body.names,
    )


def decode_chunks(
    chunks: Sequence[tuple[Body, Mapping[str, Any] | None]], limits: Limits
) -> list[Decoded | PacelineError | str | None]:
    """Return the outcomes of decoding chunks, each given with the document of its metadata.

    An outcome is the decoded chunk, the error that refuses it, the traceback of an unexpected
    error, or None for a chunk that alone does not fit into memory. If chunks do not fit together,
    the list ends with the last one that did.
    """
    outcomes: list[Decoded | PacelineError | str | None] = []
    for body, document in chunks:
        try:
            meta = None if document is None else parse_metadata(document)
            outcomes.append(decode_chunk(replace(body, meta=meta), limits))
        except MemoryError:
            if any(isinstance(outcome, Decoded) for outcome in outcomes):
                break
            outcomes.append(None)
        except PacelineError as error:
            outcomes.append(error)
        except Exception:  # noqa: BLE001 - the worker logs it
            outcomes.append(traceback.format_exc())
    return outcomes


def read_body(body: Body, kept: str | None, limits: Limits, directory: Path) -> Read:
    """Return the decoded body of a whole session.

    Parameters
    ----------
    kept : str or None
        Name of the format of a body that is stored as sent; None if the body is converted.
    directory : Path
        Where an archive is unpacked.

    Raises
    ------
    InvalidTraceError, InvalidMetadataError, UnsupportedFormatError, InvalidArchiveError,
    InvalidFolderError, UnanalyzableError, BodyTooLargeError
    """
    if kept is not None:
        return Read(FORMATS[kept].decode(body.source, body.meta, limits, part=False))
    if not body.is_archive:
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
