"""Find the recordings in a folder's listing, which a browser sends before the files.

A line of JSON, ``{"files": [{"name", "size", "head", "tail"}, …]}``, where ``head`` and ``tail``
are numbers of bytes, followed by these bytes of each file. It tells which files are worth sending,
and whether the folder was sent before.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Annotated, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from app.analysis.trace.formats.kind import head_of
from app.analysis.trace.limits import MIB
from app.analysis.trace.recordings.files import world_of
from app.errors import Fault, InvalidFolderError
from app.sessions.recordings.choose import (
    META_NAME,
    InspectedFile,
    NotRead,
    choose,
    inspect,
    may_be_trace,
)

MAX_FILES: Final = 10_000
MAX_LINE_BYTES: Final = 8 * MIB
# Bytes from a file's beginning that suffice to detect its format: a zstd block has up to 128 KiB.
HEAD_BYTES: Final = 160 * 1024
# Bytes from a file's end: they contain the checksum of a compressed file, or the last events of
# another.
TAIL_BYTES: Final = 4096
# Limit of the beginnings of all files together, in bytes.
MAX_BEGINNINGS: Final = 64 * MIB
# The limits above, for the script of the upload page.
UPLOADED_BYTES: Final = {"head": HEAD_BYTES, "tail": TAIL_BYTES, "all": MAX_BEGINNINGS}
MAX_FILE_NAME_CHARS: Final = 1000


class ListedFile(BaseModel):
    """The description of a file in a browser's folder."""

    model_config = ConfigDict(extra="forbid")

    name: Annotated[str, Field(min_length=1, max_length=MAX_FILE_NAME_CHARS)]
    size: Annotated[int, Field(ge=0)]
    head: Annotated[int, Field(ge=0, le=HEAD_BYTES)]
    tail: Annotated[int, Field(ge=0, le=TAIL_BYTES)]


class Listing(BaseModel):
    """The descriptions of a folder's files."""

    model_config = ConfigDict(extra="forbid")

    files: Annotated[list[ListedFile], Field(max_length=MAX_FILES)]


@dataclass(frozen=True, slots=True)
class FolderLook:
    """The files of a folder that the browser has to send."""

    folder: str
    """SHA-256 of the files' names, sizes, beginnings and ends; equal folders have equal digests."""
    format: str
    """The name of the recordings' format."""
    title: str
    """The title of that format."""
    files: tuple[str, ...]
    """The recordings, by name."""
    ranks: int | None
    """Number of recordings if their names show that all ranks are present; else null."""
    meta: str | None
    """The metadata file, which has to be sent with each recording."""
    not_read: tuple[NotRead, ...]
    """The other files."""


def look_at_listing(path: Path) -> FolderLook:
    """Return which files of a listed folder the browser has to send.

    Raises
    ------
    InvalidFolderError
        ``folder.malformed``: the listing is invalid; ``file.no_trace``, ``file.mixed_formats``.
    """
    with path.open("rb") as file:
        listing = _listing(file)
        inspected: list[InspectedFile] = []
        digests: dict[str, bytes] = {}
        for listed in listing.files:
            head, tail = _taken(file, listed.head), _taken(file, listed.tail)
            digests[listed.name] = _digest(listed, head, tail)
            if may_be_trace(listed.name):
                inspected.append(_inspected(listed, head))
    metas = [
        listed.name for listed in listing.files if PurePosixPath(listed.name).name == META_NAME
    ]
    meta = min(metas, key=lambda name: (name.count("/"), name), default=None)
    chosen = choose(inspected, "the folder")
    names = (*sorted(chosen.names), *filter(None, [meta]))
    return FolderLook(
        folder=hashlib.sha256(b"".join(digests[name] for name in names)).hexdigest(),
        format=chosen.trace_format.name,
        title=chosen.trace_format.title,
        files=tuple(sorted(chosen.names)),
        ranks=world_of(chosen.names),
        meta=meta,
        not_read=chosen.not_read,
    )


def _inspected(file: ListedFile, head: bytes) -> InspectedFile:
    if file.head == 0 and file.size:
        return InspectedFile(
            file.name, None, "it is too large a folder to look at all of its files"
        )
    inspected = inspect(file.name, head_of(head))
    recognized = inspected.trace_format
    if recognized is not None and recognized.local_only:
        why = f"it is {recognized.title}, which the command line reads: paceline upload FOLDER"
        return InspectedFile(file.name, None, why)
    if recognized is not None and recognized.numbers_ranks:
        # The ranks of this format are numbered across all files, so the files cannot be sent one by
        # one.
        why = f"it is {recognized.title}, which comes as an archive of its folder"
        return InspectedFile(file.name, None, why)
    return inspected


def _listing(file: IO[bytes]) -> Listing:
    line = file.readline(MAX_LINE_BYTES + 1)
    try:
        if len(line) > MAX_LINE_BYTES:
            raise _malformed(f"the list of files has over {MAX_LINE_BYTES} bytes")
        listing = Listing.model_validate_json(line)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        column = ".".join(map(str, first["loc"]))
        raise _malformed(f"the list of files is not valid: {first['msg']}", column) from error
    names = {listed.name for listed in listing.files}
    if len(names) != len(listing.files):
        raise _malformed("a name is there twice")
    return listing


def _taken(file: IO[bytes], count: int) -> bytes:
    taken = file.read(count)
    if len(taken) != count:
        raise _malformed("the beginnings of the files end too early")
    return taken


def _digest(file: ListedFile, head: bytes, tail: bytes) -> bytes:
    whole = hashlib.sha256(f"{len(file.name)} {file.name} {file.size} ".encode())
    for part in (head, tail):
        whole.update(hashlib.sha256(part).digest())
    return whole.digest()


def _malformed(message: str, column: str = "") -> InvalidFolderError:
    faults = (Fault("malformed", message, column=column),) if column else ()
    return InvalidFolderError(message, code="folder.malformed", faults=faults)
