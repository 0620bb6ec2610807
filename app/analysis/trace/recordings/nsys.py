"""Nsight Systems: the SQLite database that ``nsys export --type sqlite`` makes, one a rank.

NVTX ranges are the labels (``torch.autograd.profiler.emit_nvtx`` makes ranges of PyTorch's own, a
hand-written loop calls ``torch.cuda.nvtx.range``); kernels are joined to the range that launched
them by the process and the correlation id of the runtime's call, which counts in each process. The
schema is that of the exporter's reference, which leaves out tables that nothing is in; later
versions of a table have a number behind the name (``_V2``).

A database is a program's input with indices, views and triggers of its own. It is opened as
immutable, its schema is not trusted, nothing but reading of its tables is allowed, and bytes that
come over a network are not opened at all.
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
# Of a thread's number; those above are the process and the machine.
_THREAD_BITS: Final = 24
# NvtxPushPopRange and NvtxStartEndRange.
_RANGES: Final = (59, 60)
_ALLOWED: Final = frozenset({sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ})
# What the queries below call. (A generated column of the database's own may call what is free of
# side effects, and makes no longer value than the limit.)
_FUNCTIONS: Final = frozenset({"coalesce", "like"})
# No value of these tables is longer; a range's text is cut at some kilobytes.
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


def decode_nsys(  # noqa: PLR0913 - what is said of a database
    path: Path,
    meta: SessionMeta | None,
    limits: Limits,
    names: FileNames,
    *,
    part: bool,
    own: OwnRanges | None = None,
) -> Recording:
    """Decode and check a database of Nsight Systems.

    Parameters
    ----------
    path : Path
    meta : SessionMeta or None
        Needed: the database does not say the sizes of the job.
    names : FileNames
        The name of the file says the rank: ``rank3.sqlite``.
    own : OwnRanges, optional
        What the job calls ranges of its own.

    Raises
    ------
    InvalidTraceError, InvalidMetadataError, BodyTooLargeError
        See `decode_scan`; `trace.corrupt` where it is no such database.
    """
    try:
        with closing(_open(path)) as database:
            scan = _scan(database, limits, own)
    except (sqlite3.Error, UnicodeDecodeError) as error:
        # SQLite's own words quote a damaged name, of whatever bytes.
        refuse_body("corrupt", f"the database cannot be read: {error}")
    # Of a database only what is labelled is read, whatever else it holds.
    if not scan.labelled and own is None:
        refuse_body("no_labels", _ADVICE.no_labels)
    scan.rank = names.rank
    return decode_scan(scan, meta, limits, _ADVICE, part=part)


def _open(path: Path) -> sqlite3.Connection:
    # Immutable: no lock, no journal and no write-ahead log of another program is looked for.
    database = sqlite3.connect(
        f"file:{quote(str(path.absolute()))}?mode=ro&immutable=1", uri=True, isolation_level=None
    )
    database.execute("PRAGMA trusted_schema=OFF")
    database.execute("PRAGMA query_only=ON")
    database.execute("PRAGMA cell_size_check=ON")
    database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MAX_VALUE_BYTES)
    # From Python 3.12 on the library's own switch is reachable; the authorizer below is stricter.
    switch = getattr(sqlite3, "SQLITE_DBCONFIG_DEFENSIVE", None)
    if switch is not None:
        database.setconfig(switch)  # type: ignore[attr-defined, unused-ignore]
    database.set_authorizer(_authorize)
    return database


def _authorize(action: int, _first: str | None, second: str | None, *_inside: str | None) -> int:
    called = action == sqlite3.SQLITE_FUNCTION
    allowed = second in _FUNCTIONS if called else action in _ALLOWED
    return sqlite3.SQLITE_OK if allowed else sqlite3.SQLITE_DENY


@dataclass(frozen=True, slots=True)
class _Table:
    """A table as the database calls it, and its columns."""

    name: str
    columns: frozenset[str]


def _scan(database: sqlite3.Connection, limits: Limits, own: OwnRanges | None) -> Scan:
    tables = _tables(database)
    if not tables:
        refuse_body("corrupt", "the database holds no table of Nsight Systems")
    found = Scan(base_ns=_session_start(database, tables), host=_host(database, tables))
    found.own = None if own is None else own.reader()
    processes = _take_ranges(database, tables, found, limits)
    if found.labelled and _RUNTIME in tables and _KERNEL in tables:
        _take_device(database, tables, processes, found, limits)
    return found


def _tables(database: sqlite3.Connection) -> Mapping[str, _Table]:
    """Return those of the tables that are read, by their plain names; a view is none."""
    rows = database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
    versions: dict[str, list[tuple[int, str]]] = {}
    for (said,) in rows.fetchmany(_MAX_TABLES):
        version = _VERSION.fullmatch(str(said))
        if version is not None and version[1] in _READ:
            versions.setdefault(version[1], []).append((int(version[2] or 1), str(said)))
    found = {}
    for plain, known in versions.items():
        # The latest version that anything is in.
        for _, name in sorted(known, reverse=True):
            rows = database.execute(f'SELECT * FROM "{name}" LIMIT 1')  # noqa: S608 - matched above
            columns = frozenset(column[0] for column in rows.description)
            if rows.fetchone() is not None or name == min(known)[1]:
                found[plain] = _Table(name, columns)
                break
    return found


def _marks(values: Sequence[object]) -> str:
    return ",".join("?" * len(values))


def _session_start(database: sqlite3.Connection, tables: Mapping[str, _Table]) -> int:
    if _SESSION not in tables:
        return 0
    name = tables[_SESSION].name
    row = database.execute(f'SELECT utcEpochNs FROM "{name}" LIMIT 1').fetchone()  # noqa: S608 - a known name
    return _time(row[0]) if row is not None else 0


def _host(database: sqlite3.Connection, tables: Mapping[str, _Table]) -> str | None:
    if _ENVIRONMENT not in tables:
        return None
    name = tables[_ENVIRONMENT].name
    row = database.execute(
        f"SELECT value FROM \"{name}\" WHERE name = 'Hostname' LIMIT 1"  # noqa: S608 - a known name
    ).fetchone()
    return row[0] if row is not None and isinstance(row[0], str) else None


def _take_ranges(
    database: sqlite3.Connection, tables: Mapping[str, _Table], found: Scan, limits: Limits
) -> frozenset[int]:
    """Take the labelled ranges; return the processes that have any."""
    if _NVTX not in tables:
        return frozenset()
    table = tables[_NVTX]
    named = "text"
    if _STRINGS in tables and "textId" in table.columns:
        strings = tables[_STRINGS].name
        named = f'coalesce(text, (SELECT value FROM "{strings}" WHERE id = textId))'  # noqa: S608 - a known name
    # Ranges of other threads and libraries are many; the labelled ones are some thousands.
    # Patterns of labels are matched here, not by the database.
    likes = [] if found.own is not None else [f"{label}%" for label in _LABELS]
    query = (
        f"SELECT rowid, start, end, globalTid >> {_THREAD_BITS}, {named} AS said "  # noqa: S608 - known names
        f'FROM "{table.name}" '
        f"WHERE eventType IN ({_marks(_RANGES)}) AND end IS NOT NULL AND "
        f"({' OR '.join(['said LIKE ?'] * len(likes)) or 'said IS NOT NULL'})"
    )
    processes = set()
    for event, start, end, process, said in database.execute(query, (*_RANGES, *likes)):
        if _take_range(found, str(said), _span(start, end, event)):
            processes.add(process)
        found.check_counts(limits)
    if len(processes) > 1:
        refuse_body("unknown_rank", f"{len(processes)} processes label ranges: {_ONE_RANK}")
    return frozenset(processes)


def _take_range(found: Scan, said: str, span: Span) -> bool:
    """Take a range; return whether it is labelled."""
    if found.take_own(said, span):
        return True
    # emit_nvtx adds the sequence number and shapes behind the name.
    name = said.split(",", 1)[0]
    if name.startswith(_LABELS):
        found.take_range(name, span)
        return True
    if found.own is not None:
        found.own.miss(said)
    return False


def _take_device(
    database: sqlite3.Connection,
    tables: Mapping[str, _Table],
    processes: frozenset[int],
    found: Scan,
    limits: Limits,
) -> None:
    """Take what the labelled process launched, and what its devices did."""
    first = min(one.span.start for one in found.labelled)
    last = max(one.span.end for one in found.labelled)
    calls = tables[_RUNTIME]
    query = (
        f'SELECT start, correlationId FROM "{calls.name}" '  # noqa: S608 - a known name
        f"WHERE start BETWEEN ? AND ? AND {_of_process(calls, 'globalTid', processes)}"
    )
    for start, correlation in database.execute(query, (first, last, *processes)):
        found.launches.add(_time(start), _whole(correlation))
        found.check_counts(limits)
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
            work = len(found.works)
            found.works.append(Work(name, "", "", None, span, on_device=True))
        found.kernels.add(span, _whole(correlation), -1, work)
        found.check_counts(limits)


def _of_process(table: _Table, column: str, processes: frozenset[int]) -> str:
    """Return the condition that a row is of one of the processes.

    A thread has the number of its process and its own (24 bits); old exporters leave the process
    of a kernel out, which then is anyone's.
    """
    marks = _marks(tuple(processes))
    if column not in table.columns:
        return f"({marks}) IS NOT NULL"
    return f"coalesce({column} >> {_THREAD_BITS} IN ({marks}), 1)"


def _kernel_names(database: sqlite3.Connection, tables: Mapping[str, _Table]) -> Mapping[int, str]:
    """Return the collectives of the kernels of process groups by the ids of their names."""
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
