"""Files of one session: which of them are recordings, and why the others are not read."""

from __future__ import annotations

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

# ---- Which kind of archive a file is, by its first bytes ---------------------------------------


# What senders call them; the bytes say what they are.
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
# An archive with entries, and one without any.
_ZIP: Final = (b"PK\x03\x04", b"PK\x05\x06")
_OTHERS: Final = {
    b"BZh": "compressed with bzip2",
    b"\xfd7zXZ\x00": "compressed with xz",
    b"7z\xbc\xaf\x27\x1c": "7z",
    b"Rar!\x1a\x07": "RAR",
}
_MOST_MAGIC: Final = 8
# Where a tar header has its own check sum, which counts as blanks in itself.
_CHECKSUM: Final = slice(148, 156)


class ArchiveKind(StrEnum):
    """An archive that is read."""

    TAR = "tar"  # plain, or compressed with gzip or zstd
    ZIP = "zip"


def archive_of(head: Head) -> ArchiveKind | None:
    """Return the kind of archive that begins so; None for other files."""
    if head.start.startswith(_ZIP):
        return ArchiveKind.ZIP
    return ArchiveKind.TAR if is_tar_header(head.text[:TAR_BLOCK]) else None


def archive_at(body: Path | bytes) -> ArchiveKind | None:
    """Return the kind of archive that a file, or what was in one, is; None for others.

    Raises
    ------
    OSError
        The file cannot be read.
    """
    with open_body(body) as file:
        start = file.read(_MOST_MAGIC)
    if start.startswith(_ZIP):
        return ArchiveKind.ZIP
    return ArchiveKind.TAR if is_tar_header(_first_block(body)) else None


def other_archive(body: Path | bytes) -> str | None:
    """Return what an archive is that is not read, in words; None where it is none.

    Raises
    ------
    OSError
        The file cannot be read.
    """
    with open_body(body) as file:
        start = file.read(_MOST_MAGIC)
    return next((words for magic, words in _OTHERS.items() if start.startswith(magic)), None)


def is_tar_header(block: bytes) -> bool:
    """Return whether a block of 512 bytes begins an entry of a tar: it has the sum of its bytes."""
    if len(block) < TAR_BLOCK or block[0] == 0:
        return False
    try:
        said = int(block[_CHECKSUM].strip(b" \0") or b"x", 8)
    except ValueError:
        return False
    return said == sum(block) - sum(block[_CHECKSUM]) + len(block[_CHECKSUM]) * ord(" ")


def _first_block(body: Path | bytes) -> bytes:
    block = b""
    try:
        for piece in read_text(body, Limits()):
            block += piece[:TAR_BLOCK]
            if len(block) >= TAR_BLOCK:
                break
    except (InvalidTraceError, BodyTooLargeError):
        # Damaged: whoever reads it says so.
        return block[:TAR_BLOCK]
    return block[:TAR_BLOCK]


META_NAME: Final = "meta.yaml"
# Of these a folder of `paceline synth` has one next to its trace, and a folder of a job may.
NO_TRACES: Final = frozenset({META_NAME, "meta.yml", "meta.json", "truth.json", "fleet.json"})
# What a Mac puts into an archive next to each file.
_RESOURCE_FORKS: Final = "__MACOSX"

# What lies next to recordings and is never mistaken for one: not mentioned, unless nothing is read.
_NEXT_TO_THEM: Final = frozenset(
    {
        *(".md", ".rst", ".txt", ".pdf", ".html", ".ipynb", ".py", ".sh"),
        *(".png", ".jpg", ".jpeg", ".svg", ".gif"),
    }
)

SHOWN_NAME_CHARS: Final = 120


@dataclass(frozen=True, slots=True)
class NamedFile:
    """A file and what the folder or archive that it is in calls it."""

    name: str  # from that folder on, with slashes
    path: Path  # where its bytes can be read


@dataclass(frozen=True, slots=True)
class NotRead:
    """A file that is left out."""

    name: str
    """From the folder or the archive on, with slashes."""
    why: str
    """The reason, as the end of a sentence about the file."""


@dataclass(frozen=True, slots=True)
class Looked:
    """What a file's beginning says."""

    name: str
    known: TraceFormat | None  # None where it is no recording
    why: str  # it is none; empty for a recording


@dataclass(frozen=True, slots=True)
class Chosen:
    """The recordings of a folder, all of one format."""

    known: TraceFormat
    names: tuple[str, ...]
    not_read: tuple[NotRead, ...]


def may_be_trace(name: str) -> bool:
    """Return whether a file is looked at: not the metadata, and nothing that is hidden."""
    parts = PurePosixPath(name).parts
    hidden = any(part.startswith(".") or part == _RESOURCE_FORKS for part in parts)
    return not hidden and bool(parts) and parts[-1] not in NO_TRACES


def look(name: str, head: Head) -> Looked:
    """Return what a file is by its beginning, and by its name where that alone is not enough."""
    if archive_of(head) is not None:
        return Looked(name, None, "it is an archive, which is read by itself: unpack it")
    known = format_of(head)
    if known is None:
        return Looked(name, None, f"it is {why_unread(head)}")
    # Other programs write JSON with the fields that NDJSON's header has.
    named = any(suffix in name for suffix in known.suffixes)
    if not known.recorder and not named:
        return Looked(name, None, f"it is no {known.title} by its name")
    return Looked(name, known, "")


def look_at(files: Iterable[NamedFile]) -> tuple[Looked, ...]:
    """Return what files are, of which only the beginnings are read.

    Raises
    ------
    OSError
        One cannot be read.
    """
    return tuple(_look_at(one) for one in files if may_be_trace(one.name))


def _look_at(file: NamedFile) -> Looked:
    try:
        return look(file.name, head_of(file.path))
    except InvalidTraceError as error:
        return Looked(file.name, None, error.message)


def choose(looked: Sequence[Looked], where: str, wanted: TraceFormat | None = None) -> Chosen:
    """Return the recordings among the files of a folder.

    Parameters
    ----------
    where : str
        What the folder or archive is called, for the refusal.
    wanted : TraceFormat or None
        Of which format they are; None takes what is there, which must be one.

    Raises
    ------
    InvalidFolderError
        ``file.no_trace``; ``file.mixed_formats``: there are several formats.
    """
    examples: dict[str, Looked] = {}
    for one in looked:
        if one.known is not None:
            examples.setdefault(one.known.name, one)
    if wanted is None and len(examples) > 1:
        found = " and ".join(
            f"{one.known.title} ({_shown(one.name)})"
            for one in examples.values()
            if one.known is not None
        )
        message = f"{where} holds files of {found}: move one kind to a folder of its own"
        faults = tuple(
            Fault("mixed_formats", f"It is {one.known.title}.", file=_shown(one.name))
            for one in examples.values()
            if one.known is not None
        )
        raise InvalidFolderError(message, code="file.mixed_formats", faults=faults)
    known = wanted or next((one.known for one in examples.values()), None)
    alike = [one.name for one in looked if one.known is not None and one.known is known]
    copies = _copies(alike, known)
    taken = tuple(name for name in alike if name not in copies)
    not_read = tuple(
        NotRead(one.name, one.why or f"it is {one.known.title}" if one.known else one.why)
        for one in looked
        if one.known is None or one.known is not known
    ) + tuple(NotRead(name, f"it is a shortened copy of {of}") for name, of in copies.items())
    if known is None or not taken:
        raise _no_trace(where, wanted, not_read)
    none = {one.name for one in looked if one.known is None}
    mentioned = (one for one in not_read if one.name not in none or not _lies_next(one.name))
    return Chosen(known, taken, tuple(mentioned))


def _lies_next(name: str) -> bool:
    """Return whether a file is documentation, a picture or a program by its name."""
    return PurePosixPath(name).suffix.lower() in _NEXT_TO_THEM


def _copies(names: Sequence[str], known: TraceFormat | None) -> dict[str, str]:
    """Return which files say no more than another one that is there."""
    if known is None or known.copy_of is None:
        return {}
    there = set(names)
    found = ((name, known.copy_of(name)) for name in names)
    return {name: of for name, of in found if of is not None and of in there}


def metadata_among(files: Sequence[NamedFile]) -> NamedFile | None:
    """Return the file of metadata, of several the one that is closest to the top."""
    found = [one for one in files if PurePosixPath(one.name).name == META_NAME]
    return min(found, key=lambda one: (one.name.count("/"), one.name), default=None)


def metadata_of(file: NamedFile) -> SessionMeta:
    """Return what a file of metadata says.

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
        Fault("not_read", f"Not read: {one.why}.", file=_shown(one.name)) for one in not_read[:10]
    )
    return InvalidFolderError(
        f"there is no {title} in {where}", code="file.no_trace", faults=faults
    )


def _shown(name: str) -> str:
    return clipped(name, SHOWN_NAME_CHARS)
