"""Unpack archives of a folder: tar (plain or compressed with gzip or zstd) and zip.

An archive may be malicious. Its entries are written to files with generated names, counted on the
way; a name that leads out of the folder and an entry that is no file are refused. Only one piece of
an entry and the list of names are in memory.

Codes of `InvalidArchiveError`, each with the entry's 0-based position and its name:

===========================  ======================================================================
``archive.truncated``        the archive ends too early
``archive.corrupt``          its bytes contradict its format, or a check sum
``archive.bomb``             it unpacks to over 250 times its size, or an entry's header is too long
``archive.too_many_entries`` it has over 10,000 entries
``archive.unsafe_name``      a name is absolute, or has ``..`` in it
``archive.duplicate_name``   a name comes twice
``archive.link``             an entry is a link
``archive.device``           an entry is a device or a pipe
``archive.encrypted``        an entry of a zip is encrypted
``archive.unsupported``      another kind of archive, compression or entry
===========================  ======================================================================

`BodyTooLargeError`, `body.too_large`: it unpacks to more than the limit.
"""

from __future__ import annotations

import errno
import io
import stat
import struct
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Generator, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final, NoReturn, Protocol, cast

from app.analysis.trace.compression import open_body, read_text
from app.analysis.trace.limits import MAX_RATIO, MIB, UNJUDGED_BYTES, Limits
from app.errors import (
    BodyTooLargeError,
    Fault,
    InsufficientStorageError,
    InvalidArchiveError,
    InvalidTraceError,
)
from app.platform.identity import clipped
from app.sessions.recordings.choose import (
    META_NAME,
    TAR_BLOCK,
    ArchiveKind,
    NamedFile,
    archive_at,
    may_be_trace,
    other_archive,
)

# Limit of a zip's central directory, which is read into memory: an entry takes 46 bytes, its name,
# and at most some dozens of bytes more.
MAX_DIRECTORY_BYTES: Final = 4 * MIB
# End-of-central-directory record (APPNOTE.TXT 6.3.10, section 4.3.16); a comment of at most 64 KiB
# follows it.
_END: Final = struct.Struct("<4s4H2LH")
_END_MAGIC: Final = b"PK\x05\x06"
_MAX_COMMENT: Final = (1 << 16) - 1
# Zip64 records (sections 4.3.14 and 4.3.15), which precede it in a zip of over 4 GiB or 65,535
# entries.
_LOCATOR: Final = struct.Struct("<4sLQL")
_LOCATOR_MAGIC: Final = b"PK\x06\x07"
_END_64: Final = struct.Struct("<4sQ2H2L4Q")
_END_64_MAGIC: Final = b"PK\x06\x06"
_ELSEWHERE_16: Final = 0xFFFF
_ELSEWHERE_32: Final = 0xFFFFFFFF


def check_directory(file: io.BufferedIOBase, max_entries: int) -> None:
    """Refuse a zip whose central directory is missing or too long.

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
        # A field with its largest possible value refers to the zip64 record, which is checked as
        # well.
        known_count = count if count != _ELSEWHERE_16 else 0
        known_bytes = directory_bytes if directory_bytes != _ELSEWHERE_32 else 0
        if known_count > max_entries or known_bytes > MAX_DIRECTORY_BYTES:
            message = f"the archive has over {max_entries} entries, or too long names"
            raise InvalidArchiveError(message, code="archive.too_many_entries")


def _of_zip64(file: io.BufferedIOBase, end: int) -> tuple[int, int] | None:
    """Return a zip64 directory's number of entries and bytes; None for a plain zip."""
    if end < _LOCATOR.size:
        return None
    file.seek(end - _LOCATOR.size)
    magic, _, _, _ = _LOCATOR.unpack(file.read(_LOCATOR.size))
    if magic != _LOCATOR_MAGIC or end < _LOCATOR.size + _END_64.size:
        return None
    # Zip readers expect the record directly before its locator and ignore the offset in the
    # locator.
    file.seek(end - _LOCATOR.size - _END_64.size)
    fields = _END_64.unpack(file.read(_END_64.size))
    if fields[0] != _END_64_MAGIC:
        return None
    return fields[7], fields[8]


MAX_ENTRIES: Final = 10_000
# Limit of an extended tar header (names and comments), which is read into memory.
MAX_HEADER_BYTES: Final = MIB
MAX_NAME_CHARS: Final = 4096
SHOWN_NAME_CHARS: Final = 120
_PIECE_BYTES: Final = 64 * 1024
_ENCRYPTED: Final = 0x1
_STORED_OR_DEFLATED: Final = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
# Error codes of archives, by the code that the decompressor of texts raises.
_CODES: Final = {
    "trace.truncated": "archive.truncated",
    "trace.corrupt": "archive.corrupt",
    "trace.decompression_bomb": "archive.bomb",
}


class Files(Protocol):
    """Storage for the unpacked entries of an archive."""

    def new(self, number: int) -> AbstractContextManager[tuple[IO[bytes], Path]]:
        """Return an empty file to write, and a path under which it can be opened again."""


@contextmanager
def unpacked(
    body: Path | bytes, limits: Limits, *, directory: Path | None, nameless: bool
) -> Iterator[list[NamedFile]]:
    """Unpack an archive for the duration of the context.

    Parameters
    ----------
    body : Path or bytes
        An archive, recognized by `archive_at`.
    limits : Limits
        Limits of the unpacked bytes.
    directory : Path or None
        Parent of the files; None is the temporary directory.
    nameless : bool
        Whether the files have no names: a killed process leaves nothing behind, but each occupies a
        file descriptor. Otherwise they are in a temporary directory.

    Yields
    ------
    list of NamedFile
        The files that may be recordings or their metadata, in the archive's order.

    Raises
    ------
    InvalidArchiveError, BodyTooLargeError, InsufficientStorageError
        See the table in this module. All files are deleted.
    OSError
        The archive cannot be read.
    """
    with ExitStack() as stack:
        store: Files
        if nameless:
            store = _Nameless(stack, directory)
        else:
            made = stack.enter_context(tempfile.TemporaryDirectory(dir=directory))
            store = _Named(Path(made))
        yield _entries(body, limits, store)


def _entries(body: Path | bytes, limits: Limits, store: Files) -> list[NamedFile]:
    kind = archive_at(body)
    size = len(body) if isinstance(body, bytes) else body.stat().st_size
    unpacking = _Unpacking(store, limits, size)
    if kind is ArchiveKind.ZIP:
        with open_body(body) as file:
            return _of_zip(file, unpacking)
    if kind is ArchiveKind.TAR:
        return _of_tar(body, limits, unpacking)
    words = other_archive(body) or "of no kind that is known"
    message = f"the archive is {words}: .tar, .tar.gz, .tar.zst and .zip are read"
    raise InvalidArchiveError(message, code="archive.unsupported")


class _Nameless:
    def __init__(self, stack: ExitStack, directory: Path | None) -> None:
        self._stack, self._directory = stack, directory

    @contextmanager
    def new(self, number: int) -> Iterator[tuple[IO[bytes], Path]]:  # noqa: ARG002 - they have no names
        made = tempfile.TemporaryFile(dir=self._directory, buffering=0)  # noqa: SIM115 - see below
        # The exit stack closes the file together with the other files of the archive.
        file = self._stack.enter_context(made)
        yield file, Path(f"/dev/fd/{file.fileno()}")


class _Named:
    def __init__(self, directory: Path) -> None:
        self._directory = directory

    @contextmanager
    def new(self, number: int) -> Iterator[tuple[IO[bytes], Path]]:
        path = self._directory / str(number)
        with path.open("wb", buffering=0) as file:
            yield file, path


class _Unpacking:
    """The entries of an archive that were unpacked so far, checked against the limits."""

    def __init__(self, store: Files, limits: Limits, size: int) -> None:
        self._store, self._limits = store, limits
        self._most = max(UNJUDGED_BYTES, MAX_RATIO * size)
        self._total = 0
        self._names: set[str] = set()
        self._entries = 0
        self.files: list[NamedFile] = []

    def entry(self, raw_name: str) -> _Entry:
        """Check the name of the next entry and return it as an `_Entry`."""
        entry = _Entry(self._entries, raw_name)
        self._entries += 1
        if self._entries > MAX_ENTRIES:
            entry.refuse("too_many_entries", f"the archive has over {MAX_ENTRIES} entries")
        parts = [part for part in raw_name.split("/") if part not in ("", ".")]
        drive = parts[0][1:2] == ":" if parts else False
        if raw_name.startswith("/") or drive:
            entry.refuse("unsafe_name", "the name is absolute: pack the folder by a relative name")
        if ".." in parts:
            entry.refuse("unsafe_name", "the name leads out of the archive's folder")
        if len(raw_name) > MAX_NAME_CHARS:
            entry.refuse("unsafe_name", f"the name has over {MAX_NAME_CHARS} characters")
        entry.name = "/".join(parts)
        return entry

    def keep(self, entry: _Entry, pieces: Iterator[bytes]) -> None:
        """Write an entry to a file if it may be a recording or metadata; count it in any case."""
        if not entry.name:
            entry.refuse("corrupt", "an entry has no name")
        if entry.name in self._names:
            entry.refuse("duplicate_name", "the name is there twice")
        self._names.add(entry.name)
        wanted = may_be_trace(entry.name) or entry.name.rpartition("/")[2] == META_NAME
        if not wanted:
            for piece in pieces:
                self._count(entry, piece)
            return
        try:
            with self._store.new(entry.number) as (file, path):
                for piece in pieces:
                    self._count(entry, piece)
                    rest = memoryview(piece)
                    while rest:
                        rest = rest[file.write(rest) :]
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                message = "There is no room on the disk to unpack the archive."
                raise InsufficientStorageError(message) from error
            raise
        self.files.append(NamedFile(entry.name, path))

    def _count(self, entry: _Entry, piece: bytes) -> None:
        self._total += len(piece)
        if self._total > self._limits.max_decompressed_bytes:
            most = self._limits.max_decompressed_bytes
            raise BodyTooLargeError(f"the archive unpacks to over {most} bytes")
        if self._total > self._most:
            entry.refuse("bomb", f"the archive unpacks to over {MAX_RATIO} times its size")


@dataclass(slots=True)
class _Entry:
    """An entry of an archive, with its number and its raw name for refusals."""

    number: int
    raw_name: str
    name: str = ""

    def refuse(self, code: str, message: str, cause: Exception | None = None) -> NoReturn:
        """Raise the error that refuses the archive because of this entry."""
        shown = clipped(self.raw_name, SHOWN_NAME_CHARS)
        raise InvalidArchiveError(
            f"{shown}: {message} (entry {self.number})",
            code=f"archive.{code}",
            faults=(Fault(code, message, row=self.number, file=shown),),
        ) from cause


def _of_zip(file: io.BufferedIOBase, unpacking: _Unpacking) -> list[NamedFile]:
    check_directory(file, MAX_ENTRIES)
    try:
        archive = zipfile.ZipFile(cast("IO[bytes]", file))
    except (zipfile.BadZipFile, NotImplementedError, UnicodeDecodeError, ValueError) as error:
        raise InvalidArchiveError(f"the zip is damaged: {error}", code="archive.corrupt") from error
    with archive:
        for info in archive.infolist():
            # Some Windows programs write backslashes in names.
            entry = unpacking.entry(info.filename.replace("\\", "/"))
            mode = info.external_attr >> 16
            if info.flag_bits & _ENCRYPTED:
                entry.refuse("encrypted", "it is encrypted: pack it without a password")
            if stat.S_ISLNK(mode):
                _refuse_link(entry)
            if stat.S_IFMT(mode) and not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
                _refuse_device(entry)
            if info.is_dir():
                continue
            if info.compress_type not in _STORED_OR_DEFLATED:
                entry.refuse("unsupported", "its compression is not deflate")
            with closing(_pieces_of_zip(archive, info, entry)) as pieces:
                unpacking.keep(entry, pieces)
    return unpacking.files


def _pieces_of_zip(
    archive: zipfile.ZipFile, info: zipfile.ZipInfo, entry: _Entry
) -> Generator[bytes]:
    try:
        with archive.open(info) as file:
            while piece := file.read(_PIECE_BYTES):
                yield piece
    except EOFError as error:
        entry.refuse("truncated", "the archive ends within it", error)
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, ValueError) as error:
        entry.refuse("corrupt", f"it is damaged: {error}", error)


def _of_tar(body: Path | bytes, limits: Limits, unpacking: _Unpacking) -> list[NamedFile]:
    entry = _Entry(0, "" if isinstance(body, bytes) else body.name)
    try:
        with closing(read_text(body, limits)) as text:
            stream = _Forward(text)
            with tarfile.TarFile(fileobj=stream, mode="r") as archive:
                while (member := archive.next()) is not None:
                    entry = unpacking.entry(member.name)
                    if _is_file(member, entry):
                        unpacking.keep(entry, _pieces_of_tar(stream, member.size, entry))
            _check_end(stream, entry)
    except tarfile.TarError as error:
        entry.refuse("corrupt", f"the tar is damaged after it: {error}", error)
    except InvalidTraceError as error:
        code = _CODES.get(error.stable_code, "archive.corrupt")
        message = error.message.replace("the body", "the archive")
        raise InvalidArchiveError(message, code=code) from error
    return unpacking.files


def _is_file(member: tarfile.TarInfo, entry: _Entry) -> bool:
    """Return True for a file and False for a folder in a tar; refuse other kinds of entries."""
    if member.issym() or member.islnk():
        _refuse_link(entry)
    if member.ischr() or member.isblk() or member.isfifo():
        _refuse_device(entry)
    if member.isdir():
        return False
    if not member.isreg() or member.issparse() or member.size < 0:
        entry.refuse("unsupported", "it is no plain file")
    return True


def _check_end(stream: _Forward, entry: _Entry) -> None:
    """Refuse a tar without a final block of zeros, which `tarfile` would accept."""
    if len(stream.last) < TAR_BLOCK:
        entry.refuse("truncated", "the archive ends after it, without an end mark")
    if stream.last.strip(b"\0"):
        entry.refuse("corrupt", "what follows it is no entry")
    # Read the rest of the stream, since the decompressor verifies its checksum at the end.
    while stream.read(_PIECE_BYTES):
        pass


def _pieces_of_tar(stream: _Forward, size: int, entry: _Entry) -> Iterator[bytes]:
    left = size
    while left:
        piece = stream.read(min(left, _PIECE_BYTES))
        if not piece:
            entry.refuse("truncated", "the archive ends within it")
        left -= len(piece)
        yield piece


class _Forward(io.RawIOBase):
    """A file over decompressed pieces that can only be read forward."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        super().__init__()
        self._pieces = pieces
        self._held = b""
        self._at = 0  # within the held piece
        self._position = 0
        self.last = b""  # the latest read

    def read(self, size: int = -1) -> bytes:
        """Return the next `size` bytes; fewer only at the end."""
        if not 0 <= size <= MAX_HEADER_BYTES:
            message = f"the header of an entry is over {MAX_HEADER_BYTES} bytes"
            raise InvalidArchiveError(message, code="archive.bomb")
        parts, left = [], size
        while left:
            part = self._held[self._at : self._at + left]
            if not part:
                more = next(self._pieces, None)
                if more is None:
                    break
                self._held, self._at = more, 0
                continue
            self._at += len(part)
            left -= len(part)
            parts.append(part)
        self.last = b"".join(parts)
        self._position += len(self.last)
        return self.last

    def tell(self) -> int:
        """Return the number of bytes read so far."""
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Skip forward to the byte `offset`."""
        if whence != io.SEEK_SET or offset < self._position:
            raise InvalidArchiveError("the tar leads back", code="archive.corrupt")
        while self._position < offset:
            if not self.read(min(offset - self._position, _PIECE_BYTES)):
                break
        return self._position


def _refuse_link(entry: _Entry) -> NoReturn:
    entry.refuse("link", "it is a link: pack the files themselves (tar --dereference, zip)")


def _refuse_device(entry: _Entry) -> NoReturn:
    entry.refuse("device", "it is a device or a pipe")
