"""How long the directory of a zip is, which a reader takes into memory whole."""

from __future__ import annotations

import io
import struct
from typing import Final

from app.analysis.trace.limits import MIB
from app.errors import InvalidArchiveError

# Its entries have 46 bytes, a name, and at most some dozens of bytes more.
MAX_DIRECTORY_BYTES: Final = 4 * MIB
# APPNOTE.TXT 6.3.10, 4.3.16: the end of the directory, before a comment of at most 64 KiB.
_END: Final = struct.Struct("<4s4H2LH")
_END_MAGIC: Final = b"PK\x05\x06"
_MAX_COMMENT: Final = (1 << 16) - 1
# 4.3.14 and 4.3.15: of a zip of over 4 GiB or 65,535 entries, before that.
_LOCATOR: Final = struct.Struct("<4sLQL")
_LOCATOR_MAGIC: Final = b"PK\x06\x07"
_END_64: Final = struct.Struct("<4sQ2H2L4Q")
_END_64_MAGIC: Final = b"PK\x06\x06"
_ELSEWHERE_16: Final = 0xFFFF
_ELSEWHERE_32: Final = 0xFFFFFFFF


def check_directory(file: io.BufferedIOBase, max_entries: int) -> None:
    """Refuse a zip whose directory is missing or too long.

    Raises
    ------
    InvalidArchiveError
        ``archive.truncated``, ``archive.corrupt``, ``archive.too_many_entries``.
    """
    size = file.seek(0, 2)
    length = min(size, _MAX_COMMENT + _END.size)
    file.seek(size - length)
    tail = file.read(length)
    at = tail.rfind(_END_MAGIC)
    if at < 0 or len(tail) - at < _END.size:
        message = "the zip ends before its directory, which is at its end"
        raise InvalidArchiveError(message, code="archive.truncated")
    _, _, _, _, entries, length_bytes, _, _ = _END.unpack_from(tail, at)
    sizes = [(entries, length_bytes)]
    large = _of_zip64(file, size - length + at)
    if large is not None:
        sizes.append(large)
    for count, directory_bytes in sizes:
        # These stand for what the other end of the directory says.
        told = count if count != _ELSEWHERE_16 else 0
        told_bytes = directory_bytes if directory_bytes != _ELSEWHERE_32 else 0
        if told > max_entries or told_bytes > MAX_DIRECTORY_BYTES:
            message = f"the archive has over {max_entries} entries, or too long names"
            raise InvalidArchiveError(message, code="archive.too_many_entries")


def _of_zip64(file: io.BufferedIOBase, end: int) -> tuple[int, int] | None:
    """Return number and bytes of the directory as a large zip says them; None of another one."""
    if end < _LOCATOR.size:
        return None
    file.seek(end - _LOCATOR.size)
    magic, _, _, _ = _LOCATOR.unpack(file.read(_LOCATOR.size))
    if magic != _LOCATOR_MAGIC or end < _LOCATOR.size + _END_64.size:
        return None
    # Readers look for it right here, whatever the locator says.
    file.seek(end - _LOCATOR.size - _END_64.size)
    found = _END_64.unpack(file.read(_END_64.size))
    if found[0] != _END_64_MAGIC:
        return None
    return found[7], found[8]
