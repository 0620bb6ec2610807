"""Files of a hanging job: detection of each file's kind, and the job's state from all files."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from app.analysis.hangs.state import Frame, JobState, Process, RankState
from app.analysis.trace.compression import read_text
from app.analysis.trace.limits import Limits
from app.errors import BodyTooLargeError, InvalidTraceError
from app.hangs.flight_recorder import FlightRecorder, Int64, RecordedDump, read_dump
from app.hangs.pasted import is_py_spy_text, is_ras_text, ras_in_text, stack_in_text
from app.hangs.ras import (
    Communicator,
    is_ras,
    ranks_that_answer_ras,
    ras_job,
    read_ras,
    stack_of,
)
from app.hangs.watchdog import MOST_RANKS, dumps_in_log, is_watchdog_log
from app.sessions.recordings.archive import unpacked

# First bytes of the document in which a client describes the process of a silent rank.
_BEGINS: Final = b'{"process":'
_INVALID: Final = "hang.invalid_process"


class _Process(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)

    pid: Int64
    state: Annotated[str, Field(max_length=1)]
    wait_channel: Annotated[str, Field(max_length=64)] = ""


class _Document(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)

    process: _Process


def is_process(body: bytes) -> bool:
    """Return whether a body describes the process of a silent rank."""
    return body.startswith(_BEGINS)


def read_process(body: bytes) -> Process:
    """Return the process that the body of a file describes.

    Raises
    ------
    InvalidTraceError
        The body is no such document.
    """
    try:
        process = _Document.model_validate_json(body).process
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"])) or "the document"
        raise InvalidTraceError(
            f"It says nothing of a process: {place}: {first['msg']}", code=_INVALID
        ) from error
    return Process(process.pid, process.state, process.wait_channel)


# Largest size of a file in bytes. The output of RAS and logs may be larger, since they cover up to
# 16,384 ranks.
MOST_BYTES: Final = 32 * 1024 * 1024
MOST_RAS_BYTES: Final = 128 * 1024 * 1024
_RANK_IN_NAME: Final = re.compile(r"(\d{1,7})(?:\.(?:json|pkl|pickle|pt|txt|log|out|err))?$")
_JSON_LIST: Final = re.compile(rb"\s*\[\s*[{\]]")


class FileKind(StrEnum):
    """Kinds of files, named after the tool that writes them."""

    FLIGHT_RECORDER = "flight_recorder"
    PY_SPY = "py_spy"
    NCCL_RAS = "nccl_ras"
    PROCESS = "process"


@dataclass(frozen=True, slots=True)
class HangFile:
    """A parsed file of a hang; the fields of other kinds are empty.

    Parameters
    ----------
    rank : int or None
        None in a file about all ranks.
    """

    name: str
    kind: FileKind
    rank: int | None
    dump: RecordedDump | None = None
    stack: tuple[Frame, ...] = ()
    process: Process | None = None
    communicators: tuple[Communicator, ...] = ()

    @property
    def is_log(self) -> bool:
        """Return whether it was read from the log of a watchdog."""
        return self.dump is not None and self.dump.is_log


def kind_of(body: bytes) -> FileKind | None:
    """Return the kind of a file, detected from its content; None if unknown.

    The log of a watchdog is a flight recorder's: it holds a part of what the dumps do.
    """
    if is_process(body):
        return FileKind.PROCESS
    if not _is_text(body):
        if _JSON_LIST.match(body):
            return FileKind.PY_SPY
        return FileKind.NCCL_RAS if is_ras(body) else FileKind.FLIGHT_RECORDER
    kinds = (
        (FileKind.PY_SPY, is_py_spy_text),
        (FileKind.NCCL_RAS, is_ras_text),
        (FileKind.FLIGHT_RECORDER, is_watchdog_log),
    )
    return next((kind for kind, is_it in kinds if is_it(body)), None)


def _is_text(body: bytes) -> bool:
    """Return whether a file is neither a pickle nor JSON."""
    is_json = body[:256].lstrip()[:1] == b"{" or _JSON_LIST.match(body)
    return not (body.startswith(b"\x80") or is_json)


def rank_in_name(name: str) -> int | None:
    """Return the rank that the name of a dump ends with: `_dump_3`, `nccl_trace_rank_3.json`."""
    match = _RANK_IN_NAME.search(name)
    return int(match[1]) if match else None


def read_hang_file(name: str, body: bytes, rank: int | None = None) -> tuple[HangFile, ...]:
    """Return the parsed file, a log as one file for each rank; empty if its kind is unknown.

    Parameters
    ----------
    rank : int, optional
        Rank of the file; by default the number at the end of its name. Logs name ranks themselves.

    Raises
    ------
    InvalidTraceError
        The file is damaged, or has no rank; the message begins with its name.
    """
    kind = kind_of(body)
    if kind is None:
        return ()
    try:
        return _parsed(kind, name, body, rank)
    except InvalidTraceError as error:
        raise InvalidTraceError(
            f"{name}: {error.message}", code=error.stable_code, faults=error.faults
        ) from error


def _parsed(kind: FileKind, name: str, body: bytes, rank: int | None) -> tuple[HangFile, ...]:
    is_text = _is_text(body)
    is_of_many = kind is FileKind.NCCL_RAS or (is_text and kind is FileKind.FLIGHT_RECORDER)
    most = MOST_RAS_BYTES if is_of_many else MOST_BYTES
    if len(body) > most:
        raise InvalidTraceError(
            f"it has {len(body)} bytes, the most is {most}", code="hang.too_large"
        )
    if kind is FileKind.NCCL_RAS:
        communicators = ras_in_text(body) if is_text else read_ras(body)
        return (HangFile(name, kind, None, communicators=communicators),)
    if is_of_many:
        dumps = dumps_in_log(body).items()
        return tuple(HangFile(name, kind, each, dump=dump) for each, dump in dumps)
    if rank is None:
        rank = rank_in_name(name)
    if rank is None or rank >= MOST_RANKS:
        raise InvalidTraceError(
            "the name does not end with a rank, as _dump_0 or nccl_trace_rank_0",
            code="hang.no_rank",
        )
    if kind is FileKind.PY_SPY:
        stack = stack_in_text(body) if is_text else stack_of(body)
        return (HangFile(name, kind, rank, stack=stack),)
    if kind is FileKind.PROCESS:
        return (HangFile(name, kind, rank, process=read_process(body)),)
    return (HangFile(name, kind, rank, dump=read_dump(body)),)


def read_file_at(path: Path, limits: Limits, name: str, rank: int | None) -> tuple[HangFile, ...]:
    """Return the parsed file at a path, plain or compressed; errors are those of `read_hang_file`.

    Raises
    ------
    BodyTooLargeError
    """
    return read_hang_file(name, _decompressed(path, limits), rank)


def unpack_files(
    path: Path, limits: Limits, directory: Path
) -> tuple[list[HangFile], tuple[str, ...]]:
    """Return the files of an archive, and the names of files of unknown kinds.

    One unparsed file at a time is in memory.

    Raises
    ------
    InvalidTraceError, InvalidArchiveError, BodyTooLargeError
    """
    files: list[HangFile] = []
    not_read = []
    with unpacked(path, limits, directory=directory, nameless=True) as entries:
        for entry in entries:
            found = read_hang_file(entry.name, _decompressed(entry.path, limits))
            files += found
            if not found:
                not_read.append(entry.name)
    return files, tuple(not_read)


def unpacked_size(path: Path, limits: Limits, directory: Path) -> int:
    """Return the number of bytes of the files in an archive; errors are those of `unpack_files`."""
    with unpacked(path, limits, directory=directory, nameless=True) as entries:
        return sum(entry.path.stat().st_size for entry in entries)


def _decompressed(path: Path, limits: Limits) -> bytes:
    """Return the decompressed content of a file, at most `MOST_RAS_BYTES`."""
    pieces, size = [], 0
    for piece in read_text(path, limits):
        size += len(piece)
        if size > MOST_RAS_BYTES:
            raise BodyTooLargeError(f"A file of a hang has at most {MOST_RAS_BYTES} bytes.")
        pieces.append(piece)
    return b"".join(pieces)


_ONLY_LOGS: Final = (
    "The watchdog's log has the numbers of operations only: with TORCH_NCCL_TRACE_BUFFER_SIZE=2000 "
    "each rank writes a dump with sizes and lines of code."
)


def job_of(files: Iterable[HangFile], gone: Collection[int] = ()) -> JobState:
    """Return the state of a job, combined from all its files.

    Recorder dumps show what ranks wait for; without any, the counts of RAS do, and without these
    the stacks. RAS also has the host and GPU of each rank, and shows which ranks without a dump
    answer. Dumps and stacks of a rank whose process its host describes are left out: the process no
    longer answers.

    Parameters
    ----------
    gone : collection of int, optional
        Further ranks that no longer answer.

    Raises
    ------
    InvalidTraceError
        ``hang.no_dumps``: there is none of these files; ``hang.rank_twice``: two dumps of a rank;
        ``hang.too_large``, ``hang.no_world``: see the readers.
    """
    files = tuple(files)
    processes = {
        file.rank: file.process
        for file in files
        if file.process is not None and file.rank is not None
    }
    silent = frozenset((*processes, *gone))
    recorder = FlightRecorder()
    communicators: tuple[Communicator, ...] = ()
    stacks: dict[int, tuple[Frame, ...]] = {}
    logged: dict[int, RecordedDump] = {}
    dumped = set[int]()
    for file in files:
        if file.rank is None:
            communicators = file.communicators
        elif file.rank in silent:
            continue
        elif file.dump is not None and file.is_log:
            logged[file.rank] = file.dump
        elif file.dump is not None:
            recorder.add(file.rank, file.dump)
            dumped.add(file.rank)
        else:
            stacks[file.rank] = file.stack
    for rank, dump in logged.items():
        if rank not in dumped:
            # Logs have numbers of elements, and dumps have shapes.
            recorder.add(rank, dump.without_tensors() if dumped else dump)
    has_dumps = bool(dumped or logged)
    job = _combined(recorder if has_dumps else None, communicators, stacks, silent)
    if logged and not dumped:
        job = replace(job, notes=(*job.notes, _ONLY_LOGS))
    ranks = {rank: RankState(rank, is_recorded=False) for rank in stacks} | dict(job.ranks)
    for rank, stack in stacks.items():
        ranks[rank] = replace(ranks[rank], stack=stack)
    return replace(job, ranks=ranks, processes=processes, silent=silent)


def _combined(
    recorder: FlightRecorder | None,
    communicators: tuple[Communicator, ...],
    stacks: Mapping[int, tuple[Frame, ...]],
    silent: Collection[int],
) -> JobState:
    """Return the job's state by recorders, else by RAS; an empty state if there are only stacks."""
    if recorder is not None:
        job = recorder.job(silent)
        if not communicators:
            return job
        try:
            answering = dict(ranks_that_answer_ras(job, communicators))
            ras = ras_job(communicators)
        except InvalidTraceError as error:
            return replace(job, notes=(f"The output of RAS is left out: {error.message}.",))
        return replace(job, ranks={**answering, **job.ranks}, places=ras.places, notes=ras.notes)
    if communicators:
        return ras_job(communicators)
    if stacks:
        return JobState(groups=(), ranks={})
    raise InvalidTraceError(
        "There is neither a dump of a flight recorder nor one of RAS, nor a stack, nor a log of "
        "PyTorch's watchdog; with TORCH_NCCL_TRACE_BUFFER_SIZE=2000 each rank of a job that "
        "hangs writes a dump",
        code="hang.no_dumps",
    )
