"""Nsight Systems: the SQLite database that ``nsys export --type sqlite`` makes, one a rank.

NVTX ranges are the labels (``torch.autograd.profiler.emit_nvtx`` makes ranges of PyTorch's own, a
hand-written loop calls ``torch.cuda.nvtx.range``); kernels are joined to the range that launched
them by the correlation id of the runtime's call. The schema is that of the exporter's reference,
which leaves out tables that nothing is in.

A database is a program's input with indices, views and triggers of its own. It is opened as
immutable, its schema is not trusted, nothing but reading of its tables is allowed, and bytes that
come over a network are not opened at all.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Final
from urllib.parse import quote

from app.analysis.trace.faults import refuse_body
from app.analysis.trace.limits import MAX_TIME_NS, MIB, Limits
from app.analysis.trace.model import SessionMeta
from app.analysis.trace.recordings.profiler.reader import Advice, decode_scan
from app.analysis.trace.recordings.profiler.scan import (
    Scan,
    Span,
    Work,
    collective_of,
)
from app.analysis.trace.recordings.recording import Recording

_NVTX: Final = "NVTX_EVENTS"
_STRINGS: Final = "StringIds"
_RUNTIME: Final = "CUPTI_ACTIVITY_KIND_RUNTIME"
_KERNEL: Final = "CUPTI_ACTIVITY_KIND_KERNEL"
_SESSION: Final = "TARGET_INFO_SESSION_START_TIME"
_ENVIRONMENT: Final = "TARGET_INFO_SYSTEM_ENV"
# NvtxPushPopRange and NvtxStartEndRange.
_RANGES: Final = (59, 60)
_ALLOWED: Final = frozenset({sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ})
# What the queries below call. (A generated column of the database's own may call what is free of
# side effects, and makes no longer value than the limit.)
_FUNCTIONS: Final = frozenset({"coalesce", "like"})
# No value of these tables is longer; a range's text is cut at some kilobytes.
_MAX_VALUE_BYTES: Final = MIB
_LABELS: Final = ("PP:%", "paceline:%", "ProfilerStep#%")
_RANK: Final = re.compile(r"rank[-_.]?([0-9]{1,7})", re.IGNORECASE)

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


def decode_nsys(path: Path, meta: SessionMeta | None, limits: Limits, *, part: bool) -> Recording:
    """Decode and check a database of Nsight Systems.

    Parameters
    ----------
    path : Path
        Its name says the rank: ``rank3.sqlite``.
    meta : SessionMeta or None
        Needed: the database does not say the sizes of the job.

    Raises
    ------
    InvalidTraceError, InvalidMetadataError, BodyTooLargeError
        See `decode_scan`; `trace.corrupt` where it is no such database.
    """
    try:
        with closing(_open(path)) as database:
            scan = _scan(database, limits)
    except (sqlite3.Error, UnicodeDecodeError) as error:
        # SQLite's own words quote a damaged name, of whatever bytes.
        refuse_body("corrupt", f"the database cannot be read: {error}")
    rank = _RANK.search(path.stem)
    scan.rank = None if rank is None else int(rank[1])
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


def _scan(database: sqlite3.Connection, limits: Limits) -> Scan:
    tables = _tables(database)
    if not tables:
        refuse_body("corrupt", "the database holds no table of Nsight Systems")
    found = Scan(base_ns=_session_start(database, tables), host=_host(database, tables))
    _take_ranges(database, tables, found, limits)
    if found.labelled and _RUNTIME in tables and _KERNEL in tables:
        _take_device(database, found, limits)
    return found


def _tables(database: sqlite3.Connection) -> frozenset[str]:
    """Return which of the tables that are read are there; a view of that name is none."""
    known = (_NVTX, _STRINGS, _RUNTIME, _KERNEL, _SESSION, _ENVIRONMENT)
    rows = database.execute(
        f"SELECT name FROM sqlite_master WHERE type = 'table' AND name IN ({_marks(known)})",  # noqa: S608 - marks
        known,
    )
    return frozenset(name for (name,) in rows)


def _marks(values: Sequence[object]) -> str:
    return ",".join("?" * len(values))


def _session_start(database: sqlite3.Connection, tables: frozenset[str]) -> int:
    if _SESSION not in tables:
        return 0
    row = database.execute(f"SELECT utcEpochNs FROM {_SESSION} LIMIT 1").fetchone()  # noqa: S608 - a constant
    return _time(row[0]) if row is not None else 0


def _host(database: sqlite3.Connection, tables: frozenset[str]) -> str | None:
    if _ENVIRONMENT not in tables:
        return None
    row = database.execute(
        f"SELECT value FROM {_ENVIRONMENT} WHERE name = 'Hostname' LIMIT 1"  # noqa: S608 - a constant
    ).fetchone()
    return row[0] if row is not None and isinstance(row[0], str) else None


def _take_ranges(
    database: sqlite3.Connection, tables: frozenset[str], found: Scan, limits: Limits
) -> None:
    if _NVTX not in tables:
        return
    named = "coalesce(text, (SELECT value FROM StringIds WHERE id = textId))"
    text = named if _STRINGS in tables else "text"
    # Ranges of other threads and libraries are many; the labelled ones are some thousands.
    query = (
        f"SELECT rowid, start, end, globalTid >> 24, {text} AS said FROM NVTX_EVENTS "  # noqa: S608 - constants
        f"WHERE eventType IN ({_marks(_RANGES)}) AND end IS NOT NULL AND "
        f"({' OR '.join(['said LIKE ?'] * len(_LABELS))})"
    )
    processes = set()
    for event, start, end, process, said in database.execute(query, (*_RANGES, *_LABELS)):
        processes.add(process)
        # emit_nvtx adds the sequence number and shapes behind the name.
        name = str(said).split(",", 1)[0]
        found.take_range(name, _span(start, end, event))
        found.check_counts(limits)
    if len(processes) > 1:
        refuse_body("unknown_rank", f"{len(processes)} processes label ranges: {_ONE_RANK}")


def _take_device(database: sqlite3.Connection, found: Scan, limits: Limits) -> None:
    first = min(one.span.start for one in found.labelled)
    last = max(one.span.end for one in found.labelled)
    calls = (
        "SELECT start, correlationId FROM CUPTI_ACTIVITY_KIND_RUNTIME WHERE start BETWEEN ? AND ?"
    )
    for start, correlation in database.execute(calls, (first, last)):
        found.launches.add(_time(start), _whole(correlation))
        found.check_counts(limits)
    names = _kernel_names(database)
    kernels = (
        "SELECT rowid, start, end, correlationId, shortName FROM CUPTI_ACTIVITY_KIND_KERNEL "
        "WHERE start >= ?"
    )
    for event, start, end, correlation, short_name in database.execute(kernels, (first,)):
        span, work = _span(start, end, event), -1
        name = names.get(short_name)
        if name is not None:
            work = len(found.works)
            found.works.append(Work(name, "", "", None, span, on_device=True))
        found.kernels.add(span, _whole(correlation), -1, work)
        found.check_counts(limits)


def _kernel_names(database: sqlite3.Connection) -> Mapping[int, str]:
    """Return the collectives of the kernels of process groups by the ids of their names."""
    rows = database.execute(
        "SELECT id, value FROM StringIds WHERE value LIKE 'nccl%' OR value LIKE 'rccl%'"
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
