"""Decoder of Nsight Systems: the SQLite database of ``nsys export --type sqlite`` of a rank.

NVTX ranges are the labels: ``torch.autograd.profiler.emit_nvtx`` turns PyTorch's own ranges into
NVTX ranges, and a hand-written loop calls ``torch.cuda.nvtx.range``. Kernels are joined to the
range that launched them by process and correlation id of the runtime call. The schema is that of
the exporter's reference: empty tables are left out, and later versions of a table have a number
after the name (``_V2``).

A database is untrusted input that may hold indices, views and triggers. It is opened as immutable
with an untrusted schema, only reads of its tables are allowed, and uploads are never opened.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import quote

from app.analysis.trace.limits import MAX_TIME_NS, MIB, Limits, refuse_body
from app.analysis.trace.model import SessionMeta
from app.analysis.trace.recordings.files import FileNames
from app.analysis.trace.recordings.labels import OwnRanges
from app.analysis.trace.recordings.profiler.labelled_pipeline import Advice
from app.analysis.trace.recordings.profiler.reader import decode_scan
from app.analysis.trace.recordings.profiler.scan import Scan, Span, Work, collective_of
from app.analysis.trace.recordings.recording import Recording

_NVTX: Final = "NVTX_EVENTS"
_STRINGS: Final = "StringIds"
_RUNTIME: Final = "CUPTI_ACTIVITY_KIND_RUNTIME"
_KERNEL: Final = "CUPTI_ACTIVITY_KIND_KERNEL"
_SESSION: Final = "TARGET_INFO_SESSION_START_TIME"
_ENVIRONMENT: Final = "TARGET_INFO_SYSTEM_ENV"
_READ: Final = frozenset({_NVTX, _STRINGS, _RUNTIME, _KERNEL, _SESSION, _ENVIRONMENT})
_VERSION: Final = re.compile(r"(\w+?)(?:_V([0-9]{1,3}))?", re.ASCII)
_MAX_TABLES: Final = 10_000
# Number of low bits of a global thread id that hold the thread; the bits above hold process and
# machine.
_THREAD_BITS: Final = 24
# Event types of ranges: NvtxPushPopRange and NvtxStartEndRange.
_RANGES: Final = (59, 60)
_ALLOWED: Final = frozenset({sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ})
# SQL functions that the queries below call; others are denied. (A generated column of the database
# may still call functions without side effects, whose values are limited in length.)
_FUNCTIONS: Final = frozenset({"coalesce", "like"})
# Maximum number of bytes of a value; exporters cut texts to some kilobytes.
_MAX_VALUE_BYTES: Final = MIB
_LABELS: Final = ("PP:", "paceline:", "ProfilerStep#")
_ONE_RANK: Final = "profile each rank to a file of its own, nsys profile -o rank%q{RANK}"
_ADVICE: Final = Advice(
    no_labels=(
        "no NVTX range is labelled as an operation: run the steps inside "
        "torch.autograd.profiler.emit_nvtx(), which makes ranges of the labels of PyTorch's "
        'pipelines, or label them with torch.cuda.nvtx.range("paceline:fwd:mb=0"), and profile '
        "with --trace=cuda,nvtx"
    ),
    unknown_rank=f"the file's name does not say which rank it is of: {_ONE_RANK}",
    no_kernel="profile with --trace=cuda,nvtx",
)


def decode_nsys(  # noqa: PLR0913 - a sender's facts about a database
    path: Path,
    meta: SessionMeta | None,
    limits: Limits,
    names: FileNames,
    *,
    part: bool,
    own: OwnRanges | None = None,
) -> Recording:
    """Decode an Nsight Systems database and check its values.

    Parameters
    ----------
    path : Path
    meta : SessionMeta or None
        Required: the database does not contain the sizes of the job.
    names : FileNames
        Names of the session's files, which give the rank: ``rank3.sqlite``.
    own : OwnRanges, optional
        The job's labels for ranges of its own.

    Raises
    ------
    InvalidTraceError, InvalidMetadataError, BodyTooLargeError
        See `decode_scan`; `trace.corrupt`: the file is not a database of Nsight Systems.
    """
    try:
        with closing(_open(path)) as database:
            scan = _scan(database, limits, own)
    except (sqlite3.Error, UnicodeDecodeError) as error:
        # UnicodeDecodeError occurs because SQLite's message may quote a damaged name in arbitrary
        # bytes.
        refuse_body("corrupt", f"the database cannot be read: {error}")
    # Unlike recordings of other profilers, an Nsight database without labels is not decoded.
    if not scan.labelled and own is None:
        refuse_body("no_labels", _ADVICE.no_labels)
    scan.rank = names.rank
    return decode_scan(scan, meta, limits, _ADVICE, part=part)


def _open(path: Path) -> sqlite3.Connection:
    # `immutable` keeps SQLite from taking locks and from reading another program's journal or
    # write-ahead log.
    database = sqlite3.connect(
        f"file:{quote(str(path.absolute()))}?mode=ro&immutable=1", uri=True, isolation_level=None
    )
    database.execute("PRAGMA trusted_schema=OFF")
    database.execute("PRAGMA query_only=ON")
    database.execute("PRAGMA cell_size_check=ON")
    database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MAX_VALUE_BYTES)
    # SQLite's defensive mode needs Python 3.12; without it the authorizer below, which is stricter,
    # protects alone.
    switch = getattr(sqlite3, "SQLITE_DBCONFIG_DEFENSIVE", None)
    if switch is not None:
        database.setconfig(switch)  # type: ignore[attr-defined, unused-ignore]
    database.set_authorizer(_authorize)
    return database


def _authorize(action: int, _first: str | None, second: str | None, *_inside: str | None) -> int:
    is_call = action == sqlite3.SQLITE_FUNCTION
    allowed = second in _FUNCTIONS if is_call else action in _ALLOWED
    return sqlite3.SQLITE_OK if allowed else sqlite3.SQLITE_DENY


@dataclass(frozen=True, slots=True)
class _Table:
    """A table of the database: its name and its columns."""

    name: str
    columns: frozenset[str]


def _scan(database: sqlite3.Connection, limits: Limits, own: OwnRanges | None) -> Scan:
    tables = _tables(database)
    if not tables:
        refuse_body("corrupt", "the database holds no table of Nsight Systems")
    scan = Scan()
    if _SESSION in tables:
        name = tables[_SESSION].name
        row = database.execute(f'SELECT utcEpochNs FROM "{name}" LIMIT 1').fetchone()  # noqa: S608 - a known name
        scan.base_ns = _time(row[0]) if row is not None else 0
    if _ENVIRONMENT in tables:
        name = tables[_ENVIRONMENT].name
        row = database.execute(
            f"SELECT value FROM \"{name}\" WHERE name = 'Hostname' LIMIT 1"  # noqa: S608 - a known name
        ).fetchone()
        scan.host = row[0] if row is not None and isinstance(row[0], str) else None
    scan.own = None if own is None else own.reader()
    processes = _add_ranges(database, tables, scan, limits)
    if scan.labelled and _RUNTIME in tables and _KERNEL in tables:
        _add_device(database, tables, processes, scan, limits)
    return scan


def _tables(database: sqlite3.Connection) -> Mapping[str, _Table]:
    """Return the tables of `_READ` by their name without a version number; views are left out."""
    rows = database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
    versions: dict[str, list[tuple[int, str]]] = {}
    for (name,) in rows.fetchmany(_MAX_TABLES):
        version = _VERSION.fullmatch(str(name))
        if version is not None and version[1] in _READ:
            versions.setdefault(version[1], []).append((int(version[2] or 1), str(name)))
    tables = {}
    for plain, candidates in versions.items():
        # Use the table with the latest version that is not empty.
        for _, name in sorted(candidates, reverse=True):
            rows = database.execute(f'SELECT * FROM "{name}" LIMIT 1')  # noqa: S608 - matched above
            columns = frozenset(column[0] for column in rows.description)
            if rows.fetchone() is not None or name == min(candidates)[1]:
                tables[plain] = _Table(name, columns)
                break
    return tables


def _marks(values: Sequence[object]) -> str:
    return ",".join("?" * len(values))


def _add_ranges(
    database: sqlite3.Connection, tables: Mapping[str, _Table], scan: Scan, limits: Limits
) -> frozenset[int]:
    """Add the labelled ranges to the scan; return the processes that recorded them."""
    if _NVTX not in tables:
        return frozenset()
    table = tables[_NVTX]
    named = "text"
    if _STRINGS in tables and "textId" in table.columns:
        strings = tables[_STRINGS].name
        named = f'coalesce(text, (SELECT value FROM "{strings}" WHERE id = textId))'  # noqa: S608 - a known name
    # Of many ranges only some thousands are labelled, so SQLite selects the labelled ranges. With
    # patterns of the job, SQLite returns all ranges and the patterns are matched here.
    likes = [] if scan.own is not None else [f"{label}%" for label in _LABELS]
    query = (
        f"SELECT rowid, start, end, globalTid >> {_THREAD_BITS}, {named} AS range_name "  # noqa: S608 - known names
        f'FROM "{table.name}" '
        f"WHERE eventType IN ({_marks(_RANGES)}) AND end IS NOT NULL AND "
        f"({' OR '.join(['range_name LIKE ?'] * len(likes)) or 'range_name IS NOT NULL'})"
    )
    processes = set()
    for event, start, end, process, range_name in database.execute(query, (*_RANGES, *likes)):
        if _add_range(scan, str(range_name), _span(start, end, event)):
            processes.add(process)
        scan.check_counts(limits)
    if len(processes) > 1:
        refuse_body("unknown_rank", f"{len(processes)} processes label ranges: {_ONE_RANK}")
    return frozenset(processes)


def _add_range(scan: Scan, text: str, span: Span) -> bool:
    """Add a range to the scan if its name is a label; return whether the name is a label."""
    if scan.add_own_range(text, span):
        return True
    # `emit_nvtx` appends a sequence number and tensor shapes to the name.
    name = text.split(",", 1)[0]
    if name.startswith(_LABELS):
        scan.add_range(name, span)
        return True
    if scan.own is not None:
        scan.own.miss(text)
    return False


def _add_device(
    database: sqlite3.Connection,
    tables: Mapping[str, _Table],
    processes: frozenset[int],
    scan: Scan,
    limits: Limits,
) -> None:
    """Add the launches and kernels of the processes with labels to the scan."""
    first = min(labelled.span.start for labelled in scan.labelled)
    last = max(labelled.span.end for labelled in scan.labelled)
    calls = tables[_RUNTIME]
    query = (
        f'SELECT start, correlationId FROM "{calls.name}" '  # noqa: S608 - a known name
        f"WHERE start BETWEEN ? AND ? AND {_of_process(calls, 'globalTid', processes)}"
    )
    for start, correlation in database.execute(query, (first, last, *processes)):
        scan.launches.add(_time(start), _whole(correlation))
        scan.check_counts(limits)
    names = _kernel_names(database, tables)
    kernels = tables[_KERNEL]
    query = (
        f'SELECT rowid, start, end, correlationId, shortName FROM "{kernels.name}" '  # noqa: S608 - a known name
        f"WHERE start >= ? AND {_of_process(kernels, 'globalPid', processes)}"
    )
    for event, start, end, correlation, short_name in database.execute(query, (first, *processes)):
        span, work = _span(start, end, event), -1
        name = names.get(short_name)
        if name is not None:
            work = len(scan.works)
            scan.works.append(Work(name, "", "", None, span, on_device=True))
        scan.kernels.add(span, _whole(correlation), -1, work)
        scan.check_counts(limits)


def _of_process(table: _Table, column: str, processes: frozenset[int]) -> str:
    """Return the SQL condition that a row belongs to one of the given processes.

    A global thread id consists of the process id and 24 bits of the thread. Old exporters do not
    record the process of a kernel, which then matches every process.
    """
    marks = _marks(tuple(processes))
    if column not in table.columns:
        return f"({marks}) IS NOT NULL"
    return f"coalesce({column} >> {_THREAD_BITS} IN ({marks}), 1)"


def _kernel_names(database: sqlite3.Connection, tables: Mapping[str, _Table]) -> Mapping[int, str]:
    """Return the collective of each NCCL or RCCL kernel by the id of the kernel's name."""
    if _STRINGS not in tables:
        return {}
    strings = tables[_STRINGS].name
    rows = database.execute(
        f"SELECT id, value FROM \"{strings}\" WHERE value LIKE 'nccl%' OR value LIKE 'rccl%'"  # noqa: S608 - a known name
    )
    named = ((number, collective_of(str(name))) for number, name in rows)
    return {number: name for number, name in named if name is not None}


def _span(start: object, end: object, event: int) -> Span:
    return Span(_time(start), _time(end), event)


def _time(value: object) -> int:
    time = _whole(value)
    if abs(time) > MAX_TIME_NS:
        refuse_body("time_overflow", "a time of the database is beyond all times")
    return time


def _whole(value: object) -> int:
    if not isinstance(value, int):
        refuse_body("wrong_type", "a column of the database that should hold integers does not")
    return value
