"""Read the files of one session, usually one per rank, as one trace."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import Final

from app.analysis.trace.compression import read_text
from app.analysis.trace.decode import decode
from app.analysis.trace.formats.kind import Decoded, head_of
from app.analysis.trace.formats.registry import FORMATS
from app.analysis.trace.limits import Limits
from app.analysis.trace.merge import Merged, TraceChunk, merge
from app.analysis.trace.metadata import Unmapped, join_metadata, note_unmapped, total, unmapped_of
from app.analysis.trace.model import SessionMeta, Trace
from app.analysis.trace.recordings.files import (
    FileNames,
    check_cells,
    check_one_recording,
    check_ranks,
    in_order,
    names_of,
    number_ranks,
)
from app.analysis.trace.recordings.labels import OwnRanges
from app.analysis.wording import NBSP
from app.errors import (
    BodyTooLargeError,
    InvalidFolderError,
    InvalidMetadataError,
    InvalidTraceError,
    PacelineError,
    UnanalyzableError,
)
from app.sessions.recordings.choose import NamedFile, NotRead

# Error codes of files without which the session is analyzed: a file without operations or without a
# whole step, for example of a profiler that was stopped at the start of a cycle, and damaged files.
_LEFT_OUT: Final = frozenset(
    f"trace.{code}"
    for code in (
        *("no_rows", "no_backward"),
        *("truncated", "corrupt", "bad_json", "item_too_long"),
    )
)
# Limit of the listed files that were not read.
NAMED: Final = 8
_NAME_CHARS: Final = 160


@dataclass(frozen=True, slots=True)
class Recorded:
    """A trace, with the contents of its recordings that map to no operation."""

    trace: Trace
    trace_format: str
    unmapped: tuple[Unmapped, ...]


@dataclass(frozen=True, slots=True)
class Reading:
    """Options for reading the files of a session."""

    limits: Limits
    together: bool = False  # whether the limits are for all files together or for each
    format_name: str | None = None  # None if the decoder detects it
    local: bool = False  # whether they are files of this machine
    own: OwnRanges | None = None  # the job's labels of profiler ranges


def read_files(
    files: Sequence[NamedFile],
    meta: SessionMeta | None,
    reading: Reading,
    *,
    shown: Callable[[Sequence[NamedFile]], Iterable[NamedFile]] = iter,
) -> Recorded:
    """Read the files of one session as one trace.

    Files without whole steps and damaged files are left out and listed, unless all are.

    Parameters
    ----------
    meta : SessionMeta or None
        The session's metadata, if the files have none.
    shown : callable
        Iterates over the files and shows the progress.

    Raises
    ------
    InvalidTraceError, InvalidMetadataError, UnsupportedFormatError, BodyTooLargeError
        As for a body, with the name of the file; ``metadata.conflict`` names both files.
    UnanalyzableError
        The files contradict each other: see `merge`, `in_order`, `check_one_recording`,
        `check_cells` and `check_ranks`.
    OSError
        A file cannot be read.
    """
    alone = len(files) == 1
    left = _Left(reading)
    names = [file.name for file in files]
    read, empty = _read_all(shown(files), meta, left, names)
    files, parts = [file for file, _ in read], [part for _, part in read]
    names = [file.name for file in files]
    unmapped = total((*(file for part in parts for file in part.unmapped), *left_out(empty)))
    if alone:
        return Recorded(parts[0].trace, parts[0].trace_format, unmapped)
    if all(FORMATS[part.trace_format].numbers_ranks for part in parts):
        numbered = number_ranks(names, [part.trace for part in parts], meta)
        parts = [replace(part, trace=file) for part, file in zip(parts, numbered, strict=True)]
    joint = _joint(files, parts)
    chunks = [
        TraceChunk(file.name, number, part.trace)
        for number, (file, part) in enumerate(zip(files, parts, strict=True))
    ]
    merged = join_files(chunks, joint, parts[0].trace_format)
    copies = merged.trace.copies + sum(file.operations for file in merged.dropped)
    return Recorded(replace(merged.trace, copies=copies), parts[0].trace_format, unmapped)


def join_files(chunks: Sequence[TraceChunk], meta: SessionMeta, trace_format: str) -> Merged:
    """Join the decoded files of one session; each file is a chunk.

    Raises
    ------
    UnanalyzableError
        The files contradict each other: see `merge`, `in_order`, `check_one_recording`,
        `check_cells` and `check_ranks`.
    """
    ordered = list(chunks)
    if FORMATS[trace_format].whole_steps:
        ordered = in_order(ordered, of_files=True)
    check_one_recording(ordered)
    check_cells(ordered, meta.sizes)
    try:
        return merge(ordered, meta)
    except UnanalyzableError as error:
        if error.stable_code == "trace.duplicate_operation":
            check_ranks(ordered)
        raise


def with_not_read(recorded: Recorded, not_read: Sequence[NotRead]) -> Recorded:
    """Return the recording with the files that were not read added to its metadata."""
    if not not_read:
        return recorded
    before = recorded.trace.meta
    meta = note_unmapped(before, (*unmapped_of(before.extra), *left_out(not_read)))
    return replace(recorded, trace=replace(recorded.trace, meta=meta))


def left_out(not_read: Sequence[NotRead]) -> Iterable[Unmapped]:
    """Yield the files that were not read, in the form of entries of metadata and reports."""
    for skipped in not_read[:NAMED]:
        text = f"file that is not read, {skipped.name[-_NAME_CHARS:]}: {skipped.why}"
        shown = (char if char.isprintable() or char == NBSP else "?" for char in text)
        yield Unmapped("".join(shown), 1)
    if len(not_read) > NAMED:
        yield Unmapped("more files that are not read", len(not_read) - NAMED)


class _Left:
    """The limits that remain for the next files."""

    def __init__(self, reading: Reading) -> None:
        self.reading = reading
        self.limits = reading.limits

    def check(self, file: NamedFile) -> None:
        """Subtract a file's decompressed bytes from the limits, if the files share them."""
        if not self.reading.together:
            return
        left = self.limits.max_decompressed_bytes - file.path.stat().st_size
        if head_of(file.path).compressed:
            left = self.limits.max_decompressed_bytes
            with closing(read_text(file.path, self.reading.limits)) as text:
                for piece in text:
                    left -= len(piece)
                    if left < 0:
                        break
        if left < 0:
            most = self.reading.limits.max_decompressed_bytes
            raise BodyTooLargeError(f"the files decompress to over {most} bytes together")
        self.limits = replace(self.limits, max_decompressed_bytes=left)

    def count(self, rows: int) -> None:
        """Subtract a file's operations from the limits, if the files share them."""
        if not self.reading.together:
            return
        left = self.limits.max_rows - rows
        if left < 0:
            message = f"the files have over {self.reading.limits.max_rows} operations together"
            raise BodyTooLargeError(message, code="body.too_many_rows")
        self.limits = replace(self.limits, max_rows=left)


def _read_all(
    files: Iterable[NamedFile], meta: SessionMeta | None, left: _Left, names: Sequence[str]
) -> tuple[list[tuple[NamedFile, Decoded]], list[NotRead]]:
    """Return the decoded files, and the files that are left out."""
    read: list[tuple[NamedFile, Decoded]] = []
    empty: list[NotRead] = []
    refusal: InvalidTraceError | None = None
    names_of_files = names_of(names)
    for file in files:
        try:
            part = _read(file, meta, left, names_of_files[file.name], part=len(names) > 1)
        except InvalidTraceError as error:
            if error.stable_code not in _LEFT_OUT:
                raise
            refusal = refusal or error
            empty.append(NotRead(file.name, error.message.removeprefix(f"{file.name}: ")))
        else:
            read.append((file, part))
    counted = any(FORMATS[part.trace_format].numbers_ranks for _, part in read)
    # Without a file of a format whose ranks are counted over all files, the others would be counted
    # wrong.
    if refusal is not None and (counted or not read):
        raise refusal
    return read, empty


def _read(
    file: NamedFile, meta: SessionMeta | None, left: _Left, names: FileNames, *, part: bool
) -> Decoded:
    reading = left.reading
    try:
        left.check(file)
        decoded = decode(
            file.path,
            meta,
            limits=reading.limits,
            format_name=reading.format_name,
            local=reading.local,
            part=part,
            names=names,
            own=reading.own,
        )
        left.count(len(decoded.trace))
    except PacelineError as error:
        message = f"{file.name}: {error.message}"
        raise type(error)(message, code=error.stable_code, faults=error.faults) from error
    return decoded


def _joint(files: Sequence[NamedFile], parts: Sequence[Decoded]) -> SessionMeta:
    """Return the joint metadata of all files; raise an error that names two contradicting files."""
    metas = [part.trace.meta for part in parts]
    try:
        return reduce(join_metadata, metas)
    except InvalidMetadataError as error:
        for number, meta in enumerate(metas):
            for earlier in range(number):
                _name_both(files[earlier], files[number], metas[earlier], meta)
        raise error from None


def _name_both(
    first: NamedFile, second: NamedFile, first_meta: SessionMeta, second_meta: SessionMeta
) -> None:
    try:
        join_metadata(first_meta, second_meta)
    except InvalidMetadataError as error:
        what = next((fault.column for fault in error.faults if fault.column), "their metadata")
        message = (
            f"{first.name} and {second.name} are not of one job: "
            f"they contradict each other in {what}"
        )
        raise InvalidMetadataError(message, code=error.stable_code, faults=error.faults) from error


# Limit of a folder's files: a larger folder was probably chosen by mistake, such as that of all
# runs.
MAX_FILES: Final = 20_000


def files_of(folder: Path) -> tuple[list[NamedFile], list[NotRead]]:
    """Return the files of a folder and its subfolders, sorted by name, and the ignored links.

    Raises
    ------
    InvalidFolderError
        ``folder.too_many_files``.
    OSError
        The folder cannot be read.
    """
    files: list[NamedFile] = []
    links: list[NotRead] = []
    for at, folders, names in os.walk(folder, onerror=_raise):
        parent = Path(at)
        folders[:] = [name for name in folders if not name.startswith(".")]
        links += [
            NotRead(_name(parent / name, folder), "it is a link to a folder")
            for name in folders
            if (parent / name).is_symlink()
        ]
        for name in names:
            path = parent / name
            if path.is_file():
                files.append(NamedFile(_name(path, folder), path))
        if len(files) > MAX_FILES:
            message = f"{folder} has over {MAX_FILES} files: name the folder of one recording"
            raise InvalidFolderError(message, code="folder.too_many_files")
    return sorted(files, key=lambda file: file.name), links


def _name(path: Path, folder: Path) -> str:
    return path.relative_to(folder).as_posix()


def _raise(error: OSError) -> None:
    raise error
