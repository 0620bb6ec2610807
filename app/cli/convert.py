"""Recordings of other programs, a file a rank: read together, and written as one trace."""

from __future__ import annotations

import codecs
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import Final

import yaml

from app.analysis.trace.decode import decode
from app.analysis.trace.formats.head import head_of
from app.analysis.trace.formats.kind import Decoded, TraceFormat, Writer
from app.analysis.trace.formats.registry import FORMATS
from app.analysis.trace.joint_metadata import join_metadata
from app.analysis.trace.limits import Limits
from app.analysis.trace.merge import TraceChunk, merge
from app.analysis.trace.metadata import load_metadata, metadata_document
from app.analysis.trace.model import SessionMeta, Trace
from app.analysis.trace.unmapped import Unmapped, total
from app.cli.files import FileError, read_metadata, reading, writing
from app.errors import PacelineError

META_NAME: Final = "meta.yaml"
# Of these a folder of `paceline synth` has one next to its trace, and a folder of a job may.
NO_TRACES: Final = frozenset({META_NAME, "meta.yml", "meta.json", "truth.json", "fleet.json"})

BYTE_ORDER_MARKS: Final = (codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
# Of a file that is of no known format as much is shown.
SHOWN_BYTES: Final = 24


@dataclass(frozen=True, slots=True)
class Recorded:
    """A trace, and what of the recordings is not in it."""

    trace: Trace
    unmapped: tuple[Unmapped, ...]


def convert(
    kind: str, paths: Sequence[Path], out_dir: Path, meta_path: Path | None, writer: Writer
) -> None:
    """Write recordings of one kind as a trace and its metadata; print where they are."""
    recorded = read_recordings(files_in(paths, FORMATS[kind]), meta_path, kind)
    say_unmapped(recorded.unmapped)
    meta = yaml.safe_dump(metadata_document(recorded.trace.meta), sort_keys=False)
    trace_path, meta_out = out_dir / writer.file_name, out_dir / META_NAME
    with writing(out_dir):
        out_dir.mkdir(parents=True, exist_ok=True)
        trace_path.write_bytes(writer.encode(recorded.trace))
        meta_out.write_text(meta, encoding="utf-8")
    sys.stdout.write(f"{trace_path}\n{meta_out}\n")


def files_in(paths: Sequence[Path], known: TraceFormat | None = None) -> list[Path]:
    """Return the files that are meant: of a folder those of a known format, the others as named.

    Parameters
    ----------
    known : TraceFormat or None
        Of which format they are; None takes what is there, which must be one.

    Raises
    ------
    FileError
        There are none, or a folder holds several formats.
    """
    files: list[Path] = []
    for path in paths:
        if not path.is_dir():
            files.append(path)
            continue
        with reading(path):
            inside = sorted(file for file in path.iterdir() if file.is_file())
            found = {file: format_of(file) for file in inside if _may_be_trace(file)}
        formats = {one.name: one for one in found.values() if one is not None}
        if known is None and len(formats) > 1:
            titles = " and ".join(one.title for one in formats.values())
            message = f"{path} holds files of {titles}: move one kind to a folder of its own"
            raise FileError(message, code="file.mixed_formats")
        wanted = known or next(iter(formats.values()), None)
        taken = [file for file, one in found.items() if one is not None and one is wanted]
        for file in found if taken else ():
            if file not in taken and _looks_alike(file, taken):
                sys.stderr.write(f"Not read: {file}: {_why_not(file, found[file])}\n")
        files += taken
    if not files:
        title = "trace" if known is None else f"{known.title} file"
        raise FileError(f"there is no {title} in {paths[0]}", code="file.no_trace")
    return files


def _looks_alike(path: Path, read: Sequence[Path]) -> bool:
    """Return whether a file's name says that it is a recording like those that are read."""
    names = {_unnumbered(one.name) for one in read}
    return _unnumbered(path.name) in names or _ends_like(path.name)


def _unnumbered(name: str) -> str:
    """Return a name without its numbers and its suffixes: ``rank`` of ``rank3.json.gz``."""
    return re.sub(r"\d+", "", name.split(".", 1)[0])


def _ends_like(name: str) -> bool:
    suffixes = {suffix for known in FORMATS.values() for suffix in known.suffixes}
    return any(suffix in name for suffix in suffixes)


def _why_not(path: Path, known: TraceFormat | None) -> str:
    head = head_of(path)
    if not head.start:
        return "it is empty"
    if known is not None:
        return f"it is {known.title}"
    if not head.text:
        return "its compression is damaged"
    if head.text.startswith(BYTE_ORDER_MARKS):
        return "it begins with a byte order mark"
    begin = head.text[:SHOWN_BYTES].decode("utf-8", "replace")
    return f"it begins with {begin!r}, as no known format does"


def format_of(path: Path) -> TraceFormat | None:
    """Return the format of a file, None where its bytes are of none."""
    head = head_of(path)
    known = next((one for one in FORMATS.values() if head.start and one.sniff(head)), None)
    # NDJSON takes any text that begins like an object, to say what is wrong with it.
    named = known is not None and any(suffix in path.name for suffix in known.suffixes)
    return known if known is None or known.recorder or named else None


def read_recordings(files: Sequence[Path], meta_path: Path | None, kind: str | None) -> Recorded:
    """Read files of one session together, showing how far it is."""
    meta = _meta_next_to(files, meta_path)
    alone = len(files) == 1
    parts = [_read(path, meta, kind, part=not alone) for path in _shown(files)]
    unmapped = total(one for part in parts for one in part.unmapped)
    if alone:
        return Recorded(parts[0].trace, unmapped)
    joint = reduce(join_metadata, (part.trace.meta for part in parts))
    chunks = [
        TraceChunk(path.name, number, part.trace)
        for number, (path, part) in enumerate(zip(files, parts, strict=True))
    ]
    merged = merge(chunks, joint)
    copies = merged.trace.copies + sum(one.operations for one in merged.dropped)
    return Recorded(replace(merged.trace, copies=copies), unmapped)


def _shown(files: Sequence[Path]) -> Iterable[Path]:
    """Return files, of which a terminal shows how many are read where there are several."""
    if len(files) == 1:
        return files
    from app.cli.progress import shown  # noqa: PLC0415 - what draws it is slow to load

    return shown(files)


def say_unmapped(unmapped: Sequence[Unmapped]) -> None:
    """Say on standard error what was left out, a line a kind, with what would record it."""
    for one in unmapped:
        remedy = f": {one.remedy}" if one.remedy else ""
        sys.stderr.write(f"Left out: {one.count:,} {one.what}{remedy}\n")


def _may_be_trace(path: Path) -> bool:
    return path.name not in NO_TRACES and not path.name.startswith(".")


def _meta_next_to(files: Sequence[Path], meta_path: Path | None) -> SessionMeta | None:
    """Return the metadata that was named, else that of the file in the same folder."""
    adjacent = files[0].parent / META_NAME
    path = adjacent if meta_path is None and adjacent.is_file() else meta_path
    return None if path is None else load_metadata(read_metadata(path))


def _read(path: Path, meta: SessionMeta | None, kind: str | None, *, part: bool) -> Decoded:
    try:
        with reading(path):
            return decode(path, meta, limits=Limits(), format_name=kind, local=True, part=part)
    except FileError:
        raise
    except PacelineError as error:
        message = f"{path.name}: {error.message}"
        raise type(error)(message, code=error.stable_code, faults=error.faults) from error
