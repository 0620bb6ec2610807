"""Which kind of archive a file is, by its first bytes."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Final

from app.analysis.trace.formats.head import Head
from app.analysis.trace.limits import Limits
from app.analysis.trace.ndjson.streams import opened, read_text
from app.errors import BodyTooLargeError, InvalidTraceError

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
    with opened(body) as file:
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
    with opened(body) as file:
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
