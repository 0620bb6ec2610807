"""`paceline convert`: read the recordings of all ranks together and write them as one trace."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import yaml

from app.analysis.trace.formats.kind import Writer
from app.analysis.trace.formats.registry import FORMATS
from app.analysis.trace.limits import MIB, Limits
from app.analysis.trace.metadata import load_metadata, metadata_document
from app.cli.files import read_metadata, reading, writing
from app.sessions.recordings.choose import (
    META_NAME,
    NamedFile,
    NotRead,
    archive_at,
    choose,
    inspect_files,
    metadata_among,
    other_archive,
)
from app.sessions.recordings.read import Reading, Recorded, files_of, read_files, with_not_read

if TYPE_CHECKING:
    from app.analysis.trace.formats.kind import TraceFormat
    from app.analysis.trace.metadata import Unmapped


# A local archive may be as large as the disk permits, unlike an archive that a server receives.
ARCHIVE_LIMITS: Final = Limits(max_decompressed_bytes=256 * 1024 * MIB)
# Number of unread files that are named individually.
NAMED_NOT_READ: Final = 40


@dataclass(frozen=True, slots=True)
class FoundFiles:
    """The recordings at the given paths."""

    files: tuple[NamedFile, ...]
    meta: Path | None  # metadata next to them
    # Names of files that are not read, each with its folder or archive.
    not_read: tuple[tuple[Path, NotRead], ...]


def convert(  # noqa: PLR0913 - what the command is told
    kind: str,
    paths: Sequence[Path],
    out_dir: Path,
    meta_path: Path | None,
    writer: Writer,
    *,
    labels: Path | None = None,
) -> None:
    """Write recordings of one format as a trace and its metadata; print the paths of both."""
    recorded = read_recordings(paths, meta_path, kind, labels=labels)
    say_unmapped(recorded.unmapped)
    meta = yaml.safe_dump(metadata_document(recorded.trace.meta), sort_keys=False)
    trace_path, meta_out = out_dir / writer.file_name, out_dir / META_NAME
    with writing(out_dir):
        out_dir.mkdir(parents=True, exist_ok=True)
        trace_path.write_bytes(writer.encode(recorded.trace))
        meta_out.write_text(meta, encoding="utf-8")
    sys.stdout.write(f"{trace_path}\n{meta_out}\n")


def read_recordings(
    paths: Sequence[Path],
    meta_path: Path | None,
    kind: str | None,
    *,
    labels: Path | None = None,
) -> Recorded:
    """Read the files of one session, and print which files of folders and archives are not read.

    Parameters
    ----------
    paths : sequence of Path
        Files, folders with their subfolders, or archives with one session.
    kind : str or None
        Name of the files' format; None: the only format among the files.
    labels : Path or None
        File that maps the job's own range names to operations.

    Raises
    ------
    FileError, PacelineError
        A file cannot be read, or has invalid content.
    """
    with ExitStack() as stack:
        recordings = find(paths, None if kind is None else FORMATS[kind], stack)
        meta_file = meta_path or recordings.meta
        meta = None if meta_file is None else load_metadata(read_metadata(meta_file))
        say_not_read(recordings.not_read)
        own = None
        if labels is not None:
            # Imported here, because only commands with labels need the library of patterns.
            from app.sessions.recordings.labels import labels_at  # noqa: PLC0415

            with reading(labels):
                own = labels_at(labels)
        how = Reading(Limits(), format_name=kind, local=True, own=own)
        with reading(paths[0]):
            recorded = read_files(recordings.files, meta, how, shown=_shown)
    return with_not_read(recorded, [file for _, file in recordings.not_read])


def find(paths: Sequence[Path], wanted: TraceFormat | None, stack: ExitStack) -> FoundFiles:
    """Return the given files, and the recordings within folders and archives.

    Parameters
    ----------
    stack : ExitStack
        Owns the unpacked archives, which are deleted when it is closed.
    """
    files: list[NamedFile] = []
    not_read: list[tuple[Path, NotRead]] = []
    meta: Path | None = None
    for path in paths:
        inside, more = _inside(path, stack)
        not_read += [(path, file) for file in more]
        if inside is None:
            files.append(NamedFile(path.as_posix(), path))
            adjacent = path.parent / META_NAME
            meta = meta or (adjacent if adjacent.is_file() else None)
            continue
        with reading(path):
            looked = inspect_files(inside)
        chosen = choose(looked, str(path), wanted)
        names = set(chosen.names)
        files += [entry for entry in inside if entry.name in names]
        not_read += [(path, skipped) for skipped in chosen.not_read]
        said = metadata_among(inside)
        meta = meta or (said.path if said is not None else None)
    return FoundFiles(tuple(files), meta, tuple(not_read))


def _inside(path: Path, stack: ExitStack) -> tuple[list[NamedFile] | None, list[NotRead]]:
    """Return the files of a folder or an archive, and its links, which are not followed."""
    with reading(path):
        if path.is_dir():
            return files_of(path)
        if archive_at(path) is None and other_archive(path) is None:
            return None, []
        from app.sessions.recordings.archive import unpacked  # noqa: PLC0415 - most paths are none

        return stack.enter_context(
            unpacked(path, ARCHIVE_LIMITS, directory=None, nameless=False)
        ), []


def _shown(files: Sequence[NamedFile]) -> Iterable[NamedFile]:
    """Yield files, with a progress bar on a terminal."""
    if len(files) == 1:
        return files
    from app.cli.progress import shown  # noqa: PLC0415 - what draws it is slow to load

    return shown(files)


def say_not_read(not_read: Sequence[tuple[Path, NotRead]]) -> None:
    """Print to standard error which files are not read, and why."""
    for path, file in not_read[:NAMED_NOT_READ]:
        sys.stderr.write(f"Not read: {path}/{file.name}: {file.why}\n")
    if len(not_read) > NAMED_NOT_READ:
        sys.stderr.write(f"Not read: {len(not_read) - NAMED_NOT_READ:,} more files\n")


def say_unmapped(unmapped: Sequence[Unmapped]) -> None:
    """Print to standard error the skipped events, and the settings that would record them."""
    for event in unmapped:
        remedy = f": {event.remedy}" if event.remedy else ""
        sys.stderr.write(f"Left out: {event.count:,} {event.what}{remedy}\n")
