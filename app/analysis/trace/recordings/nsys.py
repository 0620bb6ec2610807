"""Decoder of Nsight Systems: the SQLite database of ``nsys export --type sqlite``.

NVTX ranges are the labels: ``torch.autograd.profiler.emit_nvtx`` turns PyTorch's own ranges into
NVTX ranges, and a hand-written loop calls ``torch.cuda.nvtx.range``. Without labels, PyTorch's
ranges show the parts of a step. Kernels are joined to the range that launched them by process and
correlation id of the runtime call. ``nsys profile torchrun …`` records the processes of all ranks
of a node to one database. The schema is that of the exporter's reference: empty tables are left
out, and later versions of a table have a number after the name (``_V2``).

A database is untrusted input that may hold indices, views and triggers. It is opened as immutable
with an untrusted schema, only reads of its tables are allowed, and uploads are never opened.
"""

from __future__ import annotations

import re
import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn
from urllib.parse import quote

from app.analysis.trace.limits import MAX_TIME_NS, MIB, Limits, refuse_body
from app.analysis.trace.model import SessionMeta
from app.analysis.trace.recordings.annotations import add_annotation
from app.analysis.trace.recordings.events import Event
from app.analysis.trace.recordings.files import FileNames
from app.analysis.trace.recordings.labels import OwnRanges
from app.analysis.trace.recordings.profiler.contents import (
    FindNames,
    Gap,
    NameCounter,
    Names,
    refuse_without_steps,
)
from app.analysis.trace.recordings.profiler.labelled_pipeline import Advice
from app.analysis.trace.recordings.profiler.reader import decode_scan
from app.analysis.trace.recordings.profiler.scan import (
    Activity,
    Scan,
    Span,
    Work,
    collective_of,
)
from app.analysis.trace.recordings.recording import Recording, joined_recordings

_NVTX: Final = "NVTX_EVENTS"
_STRINGS: Final = "StringIds"
_RUNTIME: Final = "CUPTI_ACTIVITY_KIND_RUNTIME"
_KERNEL: Final = "CUPTI_ACTIVITY_KIND_KERNEL"
_COPY: Final = "CUPTI_ACTIVITY_KIND_MEMCPY"
_SET: Final = "CUPTI_ACTIVITY_KIND_MEMSET"
# Tables of work on device streams.
_ACTIVITIES: Final = {
    _KERNEL: Activity.KERNEL,
    _COPY: Activity.COPY,
    _SET: Activity.SET,
}
_SESSION: Final = "TARGET_INFO_SESSION_START_TIME"
_ENVIRONMENT: Final = "TARGET_INFO_SYSTEM_ENV"
_READ: Final = frozenset({_NVTX, _STRINGS, _RUNTIME, _SESSION, _ENVIRONMENT, *_ACTIVITIES})
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
# What `emit_nvtx` appends to the name of a range: sequence number, tensor shapes, operator id.
_APPENDED: Final = re.compile(r", (?:seq|op_id|sizes|input_op_ids) = ")
_OPERATOR: Final = "aten::"  # beginning of the names of PyTorch's operators
_MOST_PROCESSES: Final = 4096
_ONE_RANK: Final = "profile each rank to a file of its own, nsys profile -o rank%q{RANK}"
_PROFILE: Final = "profile with --trace=cuda,nvtx"
_LABEL: Final = 'label them with torch.cuda.nvtx.range("paceline:fwd:mb=0")'
_EMIT: Final = (
    "Run the steps inside torch.autograd.profiler.emit_nvtx(), which makes ranges of PyTorch's "
    f"operators and of the labels of its pipelines, or {_LABEL}, and {_PROFILE}"
)
_ADVICE: Final = Advice(
    no_labels=f"{_LABEL[:1].upper()}{_LABEL[1:]}",
    unknown_rank=f"the file's name does not say which rank it is of: {_ONE_RANK}",
    no_kernel=_PROFILE,
    host_events=_EMIT,
)
# _LISTED: maximum number of names of ranges that a refusal lists; _NAME_CHARS: characters of each;
# _MOST_LISTED: maximum number of ranges that are read for it
_LISTED: Final = 3
_NAME_CHARS: Final = 60
_MOST_LISTED: Final = 10_000


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
            scans = _scans(database, limits, own, _Names(path))
        return _decode_ranks(scans, meta, limits, names, path, part=part)
    except (sqlite3.Error, UnicodeDecodeError) as error:
        # UnicodeDecodeError occurs because SQLite's message may quote a damaged name in arbitrary
        # bytes.
        refuse_body("corrupt", f"the database cannot be read: {error}")


def _decode_ranks(  # noqa: PLR0913 - facts of the file
    scans: Mapping[int, Scan],
    meta: SessionMeta | None,
    limits: Limits,
    names: FileNames,
    path: Path,
    *,
    part: bool,
) -> Recording:
    """Decode the scans of the processes of a database, which are in the order of their ranks."""
    if len(scans) == 1:
        (scan,) = scans.values()
        scan.rank, scan.world = names.rank, names.world
        return decode_scan(scan, meta, limits, _ADVICE, part=part, find_names=_Names(path))
    # Several files are of one node each, with as many ranks, in the order of their names. A rank in
    # the name of such a file is that of the node.
    first = (names.place if names.rank is None else names.rank) * len(scans)
    recordings = []
    for rank, (process, scan) in enumerate(scans.items(), first):
        scan.rank, scan.world = rank, len(scans) * names.files
        find_names = _Names(path, process)
        recordings.append(
            decode_scan(scan, meta, limits, _ADVICE, part=True, find_names=find_names)
        )
    return joined_recordings(recordings)


@dataclass(frozen=True, slots=True)
class _Names:
    """Finder of the names in a database: see `FindNames`."""

    path: Path
    process: int | None = None  # None for all processes

    def __call__(self, gaps: Sequence[Gap], on_device: bool) -> Names:  # noqa: FBT001 - a `FindNames`
        counter = NameCounter(gaps)
        with closing(_open(self.path)) as database:
            tables = _tables(database)
            for table, name, owner, runtime in _named_tables(tables):
                counted = table == tables[_KERNEL if on_device else _NVTX].name
                rows = database.execute(
                    f'SELECT start, end, {name}, {owner} FROM "{table}" '  # noqa: S608 - known names
                    "WHERE start IS NOT NULL AND end IS NOT NULL"
                )
                for start, end, text, who in rows:
                    of_process = self.process is None or not isinstance(who, int)
                    if not of_process and who >> _THREAD_BITS != self.process:
                        continue
                    span = _span(start, end, 0)
                    if counted:
                        counter.count(_name(text), 1, span.end - span.start)
                    if runtime is not None:
                        counter.call(_name(text), span.start, span.end, runtime=runtime)
        return counter.names()


def _named_tables(tables: Mapping[str, _Table]) -> Iterator[tuple[str, str, str, bool | None]]:
    """Yield name of a table of ranges, SQL of name and process, whether it has runtime calls.

    None instead of a truth value for kernels, which are no calls of the host.
    """
    for kind, column, owner, runtime in (
        (_KERNEL, "shortName", "globalPid", None),
        (_RUNTIME, "nameId", "globalTid", True),
        (_NVTX, "textId", "globalTid", False),
    ):
        if kind in tables:
            table, name = tables[kind], _sql_of_name(tables, kind, column)
            yield table.name, name, _process_of(table, owner), runtime


def _sql_of_name(tables: Mapping[str, _Table], kind: str, column: str) -> str:
    """Return the SQL expression of the name of a row, whose id is in a column."""
    table = tables[kind]
    name = "''"
    if _STRINGS in tables and column in table.columns:
        name = f'(SELECT value FROM "{tables[_STRINGS].name}" WHERE id = {column})'  # noqa: S608 - known names
    return f"coalesce(text, {name})" if "text" in table.columns else name


def _name(text: object) -> str:
    """Return the name of a range without what `emit_nvtx` appends."""
    return _APPENDED.split(str(text or ""), maxsplit=1)[0]


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


def _scans(
    database: sqlite3.Connection, limits: Limits, own: OwnRanges | None, find_names: FindNames
) -> Mapping[int, Scan]:
    """Return the scans of the processes that train, in the order of their ranks."""
    tables = _tables(database)
    if not tables:
        refuse_body("corrupt", "the database holds no table of Nsight Systems")
    base_ns, host = _recorder(database, tables)
    scans = _add_ranges(database, tables, limits, own)
    if not scans and own is None:
        scans = _add_ranges(database, tables, limits, None, of_pytorch=True)
    named = bool(scans)
    scans = scans or {0: Scan(own=None if own is None else own.reader())}
    devices: Mapping[int, frozenset[int]] = {}
    if _RUNTIME in tables and _KERNEL in tables:
        devices = _add_device(database, tables, scans, limits, every=not named)
    if not named and own is None:
        _refuse_unnamed(database, tables, scans[0], find_names)
    for scan in scans.values():
        scan.base_ns, scan.host = base_ns, host
        scan.use_nodes()
    # Processes without kernels, such as those of data loaders, are no ranks where others have some.
    computing = [process for process in scans if len(scans[process].kernels)] or list(scans)
    used = [devices.get(process, frozenset()) for process in computing]
    if all(len(ids) == 1 for ids in used) and len(frozenset().union(*used)) == len(used):
        # A rank computes on the device of its number.
        computing.sort(key=lambda process: min(devices[process]))
    else:
        computing.sort()
    return {process: scans[process] for process in computing}


def _recorder(database: sqlite3.Connection, tables: Mapping[str, _Table]) -> tuple[int, str | None]:
    """Return the time in ns since 1970 from which times count, and the name of the host."""
    base_ns, host = 0, None
    if _SESSION in tables:
        name = tables[_SESSION].name
        row = database.execute(f'SELECT utcEpochNs FROM "{name}" LIMIT 1').fetchone()  # noqa: S608 - a known name
        base_ns = _time(row[0]) if row is not None else 0
    if _ENVIRONMENT in tables:
        name = tables[_ENVIRONMENT].name
        row = database.execute(
            f"SELECT value FROM \"{name}\" WHERE name = 'Hostname' LIMIT 1"  # noqa: S608 - a known name
        ).fetchone()
        host = row[0] if row is not None and isinstance(row[0], str) else None
    return base_ns, host


def _refuse_unnamed(
    database: sqlite3.Connection, tables: Mapping[str, _Table], scan: Scan, find_names: FindNames
) -> NoReturn:
    """Refuse a database whose ranges are neither labels nor PyTorch's operators."""
    if len(scan.kernels):
        refuse_without_steps(scan, _ADVICE, find_names, transfers=0)
    listed = ""
    if _NVTX in tables:
        name = _sql_of_name(tables, _NVTX, "textId")
        rows = database.execute(f'SELECT {name} FROM "{tables[_NVTX].name}"')  # noqa: S608 - known names
        names = Counter(_name(text) for (text,) in rows.fetchmany(_MOST_LISTED))
        listed = ", ".join(
            f"{text[:_NAME_CHARS]!r} ({count})" for text, count in names.most_common(_LISTED)
        )
    what = f"of the NVTX ranges, such as {listed}, none is" if listed else "no NVTX range is"
    refuse_body("no_labels", f"{what} a label or an operator of PyTorch. {_EMIT}")


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
    database: sqlite3.Connection,
    tables: Mapping[str, _Table],
    limits: Limits,
    own: OwnRanges | None,
    *,
    of_pytorch: bool = False,
) -> dict[int, Scan]:
    """Return scans of the labelled ranges of each process that has some.

    Parameters
    ----------
    of_pytorch : bool
        Take PyTorch's operators and the ranges of frameworks instead of labels.
    """
    scans: dict[int, Scan] = {}
    emitting: set[int] = set()  # processes with ranges of `emit_nvtx`
    if _NVTX not in tables:
        return scans
    table, named = tables[_NVTX], _sql_of_name(tables, _NVTX, "textId")
    # Of many ranges only some thousands are labelled, so SQLite selects the labelled ranges. With
    # patterns of the job, SQLite returns all ranges and the patterns are matched here.
    likes = [] if of_pytorch or own is not None else [f"{label}%" for label in _LABELS]
    query = (
        f"SELECT rowid, start, end, globalTid, {named} AS range_name "  # noqa: S608 - known names
        f'FROM "{table.name}" '
        f"WHERE eventType IN ({_marks(_RANGES)}) AND end IS NOT NULL AND "
        f"({' OR '.join(['range_name LIKE ?'] * len(likes)) or 'range_name IS NOT NULL'}) "
        "ORDER BY start"
    )
    for event, start, end, thread, text in database.execute(query, (*_RANGES, *likes)):
        process = thread >> _THREAD_BITS if isinstance(thread, int) else 0
        scan = scans.get(process)
        if scan is None:
            if len(scans) >= _MOST_PROCESSES:
                refuse_body("several_ranks", f"over {_MOST_PROCESSES} processes have ranges")
            scan = scans[process] = Scan(own=None if own is None else own.reader())
        span = _span(start, end, event)
        name = str(text)
        if of_pytorch:
            emitted = name.startswith(_OPERATOR) or _APPENDED.search(name) is not None
            if emitted:
                emitting.add(process)
            args, place = Event(event, {"External id": event}), scan.thread(thread)
            add_annotation(scan, _name(name), span, place, args, operator=emitted)
        else:
            _add_range(scan, name, span)
        scan.check_counts(limits)
    if of_pytorch:
        return {process: scan for process, scan in scans.items() if process in emitting}
    labelled = {process: scan for process, scan in scans.items() if scan.labelled}
    # Without a label of the job, the refusal names the ranges that are there.
    return labelled or (scans if own is not None else {})


def _add_range(scan: Scan, text: str, span: Span) -> None:
    """Add a range to the scan if its name is a label."""
    if scan.add_own_range(text, span):
        return
    name = text.split(",", 1)[0]
    if name.startswith(_LABELS):
        scan.add_range(name, span)
    elif scan.own is not None:
        scan.own.miss(text)


def _add_device(
    database: sqlite3.Connection,
    tables: Mapping[str, _Table],
    scans: Mapping[int, Scan],
    limits: Limits,
    *,
    every: bool,
) -> Mapping[int, frozenset[int]]:
    """Add launches and kernels to the scans of their processes.

    Parameters
    ----------
    every : bool
        Add all launches and kernels to the only scan.

    Returns
    -------
    devices : mapping
        Process → devices that run its kernels.
    """
    of_thread = _process_of(tables[_RUNTIME], "globalTid")
    only = next(iter(scans)) if len(scans) == 1 else None
    first, last = _period(scans, every=every)
    query = (
        f'SELECT start, correlationId, {of_thread} FROM "{tables[_RUNTIME].name}" '  # noqa: S608 - a known name
        "WHERE start BETWEEN ? AND ?"
    )
    for start, correlation, thread in database.execute(query, (first, last)):
        scan = _scan_of(scans, thread, only, every=every)
        if scan is not None:
            scan.launches.add(_time(start), _whole(correlation), scan.thread(thread))
            scan.check_counts(limits)
    names = _kernel_names(database, tables)
    devices: dict[int, set[int]] = {}
    for kind, activity in _ACTIVITIES.items():
        if kind not in tables:
            continue
        table = tables[kind]
        short_name = "shortName" if activity is Activity.KERNEL else "NULL"
        query = (
            f"SELECT rowid, start, end, correlationId, {short_name}, deviceId, streamId, "  # noqa: S608 - known names
            f'{_process_of(table, "globalPid")} FROM "{table.name}" WHERE start >= ?'
        )
        for event, start, end, number, named, device, stream, owner in database.execute(
            query, (first,)
        ):
            scan = _scan_of(scans, owner, only, every=every)
            if scan is None:
                continue
            span, correlation, work = _span(start, end, event), _whole(number), -1
            name = names.get(named)
            if name is not None:
                work = len(scan.works)
                scan.works.append(
                    Work(name, "", "", None, span, on_device=True, correlation=correlation)
                )
            place = scan.thread(("stream", device, stream))
            scan.kernels.add(span, correlation, -1, work, place, activity)
            scan.check_counts(limits)
            if isinstance(owner, int) and activity is Activity.KERNEL:
                devices.setdefault(owner >> _THREAD_BITS, set()).add(_whole(device))
    return {process: frozenset(ids) for process, ids in devices.items()}


def _period(scans: Mapping[int, Scan], *, every: bool) -> tuple[int, int]:
    """Return first and last start of the launches that ranges may have, in ns."""
    ranges = [item.span for scan in scans.values() for item in scan.labelled]
    if every or not ranges:
        return -MAX_TIME_NS, MAX_TIME_NS
    return min(span.start for span in ranges), max(span.end for span in ranges)


def _process_of(table: _Table, column: str) -> str:
    """Return the SQL of a row's global thread or process id; NULL where none is recorded."""
    return column if column in table.columns else "NULL"


def _scan_of(
    scans: Mapping[int, Scan], owner: object, only: int | None, *, every: bool
) -> Scan | None:
    """Return the scan of a row's process; None if the process has no scan.

    A global thread id consists of the process id and 24 bits of the thread. Old exporters do not
    record the process of a kernel, which then is of the only process with ranges.

    Raises
    ------
    InvalidTraceError
        `trace.unknown_rank`: several processes have ranges, and a kernel names no process.
    """
    if isinstance(owner, int) and not every:
        return scans.get(owner >> _THREAD_BITS)
    if only is None:
        refuse_body("unknown_rank", f"kernels name none of the {len(scans)} processes: {_ONE_RANK}")
    return scans[only]


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
