"""Choose the recordings among a folder's or archive's files; give the reason for other files."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path, PurePosixPath
from typing import Final

from app.analysis.documents import UnreadableDocumentError, document_text
from app.analysis.trace.compression import open_body, read_text
from app.analysis.trace.formats.kind import Head, TraceFormat, head_of
from app.analysis.trace.formats.registry import format_of, why_unread
from app.analysis.trace.limits import Limits
from app.analysis.trace.metadata import load_metadata, unreadable_metadata
from app.analysis.trace.model import SessionMeta
from app.errors import (
    BodyTooLargeError,
    Fault,
    InvalidFolderError,
    InvalidMetadataError,
    InvalidTraceError,
)
from app.platform.identity import clipped

# Media types of archives; the kind of archive is detected from the bytes.
MEDIA_TYPES: Final = frozenset(
    {
        "application/x-tar",
        "application/x-gtar",
        "application/tar",
        "application/x-compressed-tar",
        "application/zip",
        "application/x-zip-compressed",
    }
)
TAR_BLOCK: Final = 512
# Magic bytes of a zip with entries, and of an empty zip.
_ZIP: Final = (b"PK\x03\x04", b"PK\x05\x06")
_OTHERS: Final = {
    b"BZh": "compressed with bzip2",
    b"\xfd7zXZ\x00": "compressed with xz",
    b"7z\xbc\xaf\x27\x1c": "7z",
    b"Rar!\x1a\x07": "RAR",
}
_MOST_MAGIC: Final = 8
# Position of the checksum in a tar header; for its computation these bytes count as blanks.
_CHECKSUM: Final = slice(148, 156)


class ArchiveKind(StrEnum):
    """A supported kind of archive."""

    TAR = "tar"  # plain, or compressed with gzip or zstd
    ZIP = "zip"


def archive_of(head: Head) -> ArchiveKind | None:
    """Return the kind of archive that starts with these bytes; None for other files."""
    if head.start.startswith(_ZIP):
        return ArchiveKind.ZIP
    return ArchiveKind.TAR if is_tar_header(head.text[:TAR_BLOCK]) else None


def archive_at(body: Path | bytes) -> ArchiveKind | None:
    """Return the kind of archive of a file or of bytes; None for other contents.

    Raises
    ------
    OSError
        The file cannot be read.
    """
    with open_body(body) as file:
        start = file.read(_MOST_MAGIC)
    if start.startswith(_ZIP):
        return ArchiveKind.ZIP
    block = b""
    # Errors of damaged bodies are suppressed here: the format's reader refuses them later.
    with contextlib.suppress(InvalidTraceError, BodyTooLargeError):
        for piece in read_text(body, Limits()):
            block += piece[:TAR_BLOCK]
            if len(block) >= TAR_BLOCK:
                break
    return ArchiveKind.TAR if is_tar_header(block[:TAR_BLOCK]) else None


def other_archive(body: Path | bytes) -> str | None:
    """Return the name of an unsupported kind of archive; None for other files.

    Raises
    ------
    OSError
        The file cannot be read.
    """
    with open_body(body) as file:
        start = file.read(_MOST_MAGIC)
    return next((words for magic, words in _OTHERS.items() if start.startswith(magic)), None)


def is_tar_header(block: bytes) -> bool:
    """Return whether a block of 512 bytes is a tar header, judged by its checksum."""
    if len(block) < TAR_BLOCK or block[0] == 0:
        return False
    try:
        checksum = int(block[_CHECKSUM].strip(b" \0") or b"x", 8)
    except ValueError:
        return False
    return checksum == sum(block) - sum(block[_CHECKSUM]) + len(block[_CHECKSUM]) * ord(" ")


META_NAME: Final = "meta.yaml"
# Names of files next to traces that are no traces; `paceline synth` writes some of them.
NO_TRACES: Final = frozenset({META_NAME, "meta.yml", "meta.json", "truth.json", "fleet.json"})
# Folder that macOS adds to archives, with metadata of the files.
_RESOURCE_FORKS: Final = "__MACOSX"

# Suffixes of documents, pictures and programs, which are no recordings. The result does not mention
# such files unless there are no recordings.
_NEXT_TO_THEM: Final = frozenset(
    {
        *(".md", ".rst", ".txt", ".pdf", ".html", ".ipynb", ".py", ".sh"),
        *(".png", ".jpg", ".jpeg", ".svg", ".gif"),
    }
)

SHOWN_NAME_CHARS: Final = 120


@dataclass(frozen=True, slots=True)
class NamedFile:
    """A file with its name relative to its folder or archive."""

    name: str  # relative to the folder, with slashes
    path: Path


@dataclass(frozen=True, slots=True)
class NotRead:
    """A file that was not read, with the reason."""

    name: str
    """From the folder or the archive on, with slashes."""
    why: str
    """The reason, as the end of a sentence about the file."""


@dataclass(frozen=True, slots=True)
class InspectedFile:
    """A file with its format, detected from the file's beginning."""

    name: str
    trace_format: TraceFormat | None  # None if the file is no recording
    why: str  # why the file is no recording; empty for a recording


@dataclass(frozen=True, slots=True)
class Chosen:
    """The recordings of a folder, all of one format."""

    trace_format: TraceFormat
    names: tuple[str, ...]
    not_read: tuple[NotRead, ...]


def may_be_trace(name: str) -> bool:
    """Return whether a file may be a recording by its name: neither hidden nor metadata."""
    parts = PurePosixPath(name).parts
    hidden = any(part.startswith(".") or part == _RESOURCE_FORKS for part in parts)
    return not hidden and bool(parts) and parts[-1] not in NO_TRACES


def inspect(name: str, head: Head) -> InspectedFile:
    """Return a file's format by its beginning, or by its name if that is ambiguous."""
    if archive_of(head) is not None:
        return InspectedFile(name, None, "it is an archive, which is read by itself: unpack it")
    recognized = format_of(head)
    if recognized is None:
        return InspectedFile(name, None, f"it is {why_unread(head)}")
    # Other programs write JSON with the fields of an NDJSON trace's header, so the suffix decides.
    has_suffix = any(suffix in name for suffix in recognized.suffixes)
    if not recognized.recorder and not has_suffix:
        return InspectedFile(name, None, f"it is no {recognized.title} by its name")
    return InspectedFile(name, recognized, "")


def inspect_files(files: Iterable[NamedFile]) -> tuple[InspectedFile, ...]:
    """Return the formats of files, of which only the beginnings are read.

    Raises
    ------
    OSError
        A file cannot be read.
    """
    return tuple(
        inspect(file.name, head_of(file.path)) for file in files if may_be_trace(file.name)
    )


def choose(
    inspected: Sequence[InspectedFile], where: str, wanted: TraceFormat | None = None
) -> Chosen:
    """Return the recordings among the files of a folder.

    Parameters
    ----------
    where : str
        Name of the folder or archive in the refusal's message.
    wanted : TraceFormat or None
        Format of the recordings; None if all recordings have the same format.

    Raises
    ------
    InvalidFolderError
        ``file.no_trace``: there is no recording; ``file.mixed_formats``: they have several formats.
    """
    examples: dict[str, InspectedFile] = {}
    for file in inspected:
        if file.trace_format is not None:
            examples.setdefault(file.trace_format.title, file)
    if wanted is None and len(examples) > 1:
        kinds = " and ".join(f"{title} ({_shown(file.name)})" for title, file in examples.items())
        message = f"{where} holds files of {kinds}: move one kind to a folder of its own"
        faults = tuple(
            Fault("mixed_formats", f"It is {title}.", file=_shown(file.name))
            for title, file in examples.items()
        )
        raise InvalidFolderError(message, code="file.mixed_formats", faults=faults)
    trace_format = wanted or next((file.trace_format for file in examples.values()), None)
    alike = [
        file.name
        for file in inspected
        if file.trace_format is not None and file.trace_format is trace_format
    ]
    copies: dict[str, str] = {}  # names of the originals by those of their shortened copies
    if trace_format is not None and trace_format.copy_of is not None:
        originals = ((name, trace_format.copy_of(name)) for name in alike)
        copies = {name: of for name, of in originals if of is not None and of in set(alike)}
    recordings = tuple(name for name in alike if name not in copies)
    not_read = tuple(
        NotRead(
            file.name,
            file.why or f"it is {file.trace_format.title}" if file.trace_format else file.why,
        )
        for file in inspected
        if file.trace_format is None or file.trace_format is not trace_format
    ) + tuple(NotRead(name, f"it is a shortened copy of {of}") for name, of in copies.items())
    if trace_format is None or not recordings:
        raise _no_trace(where, wanted, not_read)
    no_recordings = {file.name for file in inspected if file.trace_format is None}
    mentioned = (
        skipped
        for skipped in not_read
        if skipped.name not in no_recordings
        or PurePosixPath(skipped.name).suffix.lower() not in _NEXT_TO_THEM
    )
    return Chosen(trace_format, recordings, tuple(mentioned))


def metadata_among(files: Sequence[NamedFile]) -> NamedFile | None:
    """Return the metadata file closest to the top of the folder; None if there is none."""
    metadata_files = [file for file in files if PurePosixPath(file.name).name == META_NAME]
    return min(metadata_files, key=lambda file: (file.name.count("/"), file.name), default=None)


def metadata_of(file: NamedFile) -> SessionMeta:
    """Return the session metadata that a file contains.

    Raises
    ------
    InvalidMetadataError
    OSError
        The file cannot be read.
    """
    try:
        text = document_text(file.path)
    except UnreadableDocumentError as error:
        raise unreadable_metadata(error, file.name) from error
    try:
        return load_metadata(text)
    except InvalidMetadataError as error:
        message = f"{file.name}: {error.message}"
        raise InvalidMetadataError(message, code=error.stable_code, faults=error.faults) from error


def _no_trace(
    where: str, wanted: TraceFormat | None, not_read: Sequence[NotRead]
) -> InvalidFolderError:
    title = "trace" if wanted is None else f"{wanted.title} file"
    faults = tuple(
        Fault("not_read", f"Not read: {skipped.why}.", file=_shown(skipped.name))
        for skipped in not_read[:10]
    )
    return InvalidFolderError(
        f"there is no {title} in {where}", code="file.no_trace", faults=faults
    )


def _shown(name: str) -> str:
    return clipped(name, SHOWN_NAME_CHARS)
