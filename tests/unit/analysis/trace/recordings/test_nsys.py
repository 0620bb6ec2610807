"""Databases in the exporter's published schema; none was written by the program."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from app.analysis.trace.decode import decode
from app.analysis.trace.model import SessionMeta, Sizes
from app.analysis.trace.recordings import nsys
from app.analysis.trace.recordings.profiler.scan import Scan
from app.errors import InvalidMetadataError, InvalidTraceError, UnsupportedFormatError
from tests.unit.analysis.trace.bodies import LIMITS
from tests.unit.analysis.trace.recordings.kineto_files import operations

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

UTC_NS = 1_760_000_000_123_456_789
META = SessionMeta(Sizes(dp=2, pp=2))
THREAD = 0x0100_0000_1234_0000 | 77
SCHEMA = """
CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE NVTX_EVENTS (start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL,
    rangeId INTEGER, category INTEGER, color INTEGER, text TEXT, globalTid INTEGER,
    endGlobalTid INTEGER, textId INTEGER, domainId INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER NOT NULL, end INTEGER NOT NULL,
    eventClass INTEGER NOT NULL, globalTid INTEGER, correlationId INTEGER, nameId INTEGER NOT NULL,
    returnValue INTEGER NOT NULL, callchainId INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER NOT NULL, end INTEGER NOT NULL,
    deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL, streamId INTEGER NOT NULL,
    correlationId INTEGER, globalPid INTEGER, demangledName INTEGER NOT NULL,
    shortName INTEGER NOT NULL);
CREATE TABLE TARGET_INFO_SESSION_START_TIME (utcEpochNs INTEGER, utcTime TEXT, localTime TEXT);
CREATE TABLE TARGET_INFO_SYSTEM_ENV (globalVid INTEGER, devStateName TEXT NOT NULL,
    name TEXT NOT NULL, nameEnum INTEGER NOT NULL, value TEXT NOT NULL);
"""


def database(
    path: Path,
    ranges: Sequence[tuple[str, int, int]],
    kernels: Sequence[tuple[str, int, int, int]] = (),
    *,
    process: int = 0,
) -> Path:
    """Write a database with labelled ranges, and kernels with their launch times."""
    with closing(sqlite3.connect(path)) as made, made:
        made.executescript(SCHEMA)
        made.execute("INSERT INTO TARGET_INFO_SESSION_START_TIME VALUES (?, '', '')", (UTC_NS,))
        made.execute("INSERT INTO TARGET_INFO_SYSTEM_ENV VALUES (0, '', 'Hostname', 5, 'node-017')")
        add(made, ranges, process)
        for number, (name, called, start, end) in enumerate(kernels):
            name_id = 1000 + number
            made.execute("INSERT INTO StringIds VALUES (?, ?)", (name_id, name))
            made.execute(
                "INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?, ?, 0, ?, ?, 0, 0, 0)",
                (called, called + 5, THREAD, number),
            )
            made.execute(
                "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, 0, 1, 7, ?, ?, ?, ?)",
                (start, end, number, THREAD & ~0xFFFFFF, name_id, name_id),
            )
    return path


def add(made: sqlite3.Connection, ranges: Sequence[tuple[str, int, int]], process: int = 0) -> None:
    for number, (name, start, end) in enumerate(ranges):
        text, text_id = (name, None) if number % 2 else (None, 5000 + process * 100 + number)
        if text_id is not None:
            made.execute("INSERT INTO StringIds VALUES (?, ?)", (text_id, name))
        made.execute(
            "INSERT INTO NVTX_EVENTS VALUES (?, ?, 59, NULL, NULL, NULL, ?, ?, NULL, ?, 0)",
            (start, end, text, THREAD + (process << 24), text_id),
        )


RANGES = (
    ("ProfilerStep#4", 0, 90_000),
    ("PP:1RECV_F0", 100, 400),
    ("PP:1F0, seq = 12", 500, 1_000),
    ("PP:1B0", 1_100, 2_000),
    ("PP:1RESHARD", 2_100, 2_110),
    ("something else", 2_200, 2_300),
)
KERNELS = (
    ("ncclDevKernel_SendRecv", 300, 350, 7_000),
    ("gemm", 600, 7_100, 8_000),
    ("gemm", 700, 8_100, 9_000),
    ("gemm", 1_500, 9_100, 12_000),
    ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", 3_000, 20_000, 30_000),
)


def test_kernels_are_joined_to_the_ranges_that_launched_them(tmp_path: Path) -> None:
    path = database(tmp_path / "job_rank3.sqlite", RANGES, KERNELS)
    decoded = decode(path, META, limits=LIMITS, local=True)

    assert decoded.trace_format == "nsys"
    assert operations(decoded.trace) == {
        (4, "forward-recv", 0): (UTC_NS + 350, 6_650),
        (4, "forward-compute", 0): (UTC_NS + 7_100, 1_900),
        (4, "backward-compute", 0): (UTC_NS + 9_100, 2_900),
    }
    assert (set(decoded.trace.rank.tolist()), set(decoded.trace.pp.tolist())) == ({3}, {1})
    assert decoded.trace.meta.hosts == {3: "node-017"}
    assert [(one.what, one.count) for one in decoded.unmapped] == [
        ("collectives whose process group is not recorded", 1)
    ]


def test_numbers_of_launches_count_in_each_process(tmp_path: Path) -> None:
    path = database(tmp_path / "rank3.sqlite", RANGES, KERNELS)
    alone = operations(decode(path, META, limits=LIMITS, local=True).trace)
    other = THREAD + (3 << 24)
    with closing(sqlite3.connect(path)) as made, made:
        # Another process on the same device, a data loader, whose launches have the same numbers.
        for number in range(len(KERNELS)):
            made.execute(
                "INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?, ?, 0, ?, ?, 0, 0, 0)",
                (450 + number, 460 + number, other, number),
            )
            made.execute(
                "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, 0, 1, 7, ?, ?, 1001, 1001)",
                (6_000 + number, 60_000 + number, number, other & ~0xFFFFFF),
            )
    decoded = decode(path, META, limits=LIMITS, local=True)

    assert operations(decoded.trace) == alone
    assert [(one.what, one.count) for one in decoded.unmapped] == [
        ("collectives whose process group is not recorded", 1)
    ]


def test_where_no_process_is_recorded_of_kernels_numbers_are_enough(tmp_path: Path) -> None:
    path = database(tmp_path / "rank3.sqlite", RANGES, KERNELS)
    read = operations(decode(path, META, limits=LIMITS, local=True).trace)
    with closing(sqlite3.connect(path)) as made, made:
        made.execute("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET globalPid = NULL")
    assert operations(decode(path, META, limits=LIMITS, local=True).trace) == read
    with closing(sqlite3.connect(path)) as made, made:
        made.execute("ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL DROP COLUMN globalPid")
    assert operations(decode(path, META, limits=LIMITS, local=True).trace) == read


@pytest.mark.parametrize("stale", [None, "empty", "some"])
def test_of_versions_of_a_table_the_latest_with_rows_is_read(
    tmp_path: Path, stale: str | None
) -> None:
    path = database(tmp_path / "rank3.sqlite", RANGES, KERNELS)
    read = operations(decode(path, META, limits=LIMITS, local=True).trace)
    tables = ["NVTX_EVENTS", "CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_KERNEL"]
    with closing(sqlite3.connect(path)) as made, made:
        for table in (*tables, "StringIds"):
            made.execute(f"ALTER TABLE {table} RENAME TO {table}_V3")
            if stale == "some":
                made.execute(f"CREATE TABLE {table}_V2 AS SELECT * FROM {table}_V3 LIMIT 1")  # noqa: S608
            elif stale == "empty":
                made.execute(f"CREATE TABLE {table}_V10 AS SELECT * FROM {table}_V3 LIMIT 0")  # noqa: S608
    assert operations(decode(path, META, limits=LIMITS, local=True).trace) == read


def test_collectives_outside_of_the_calls_of_ranges_are_counted(tmp_path: Path) -> None:
    kernels = (*KERNELS, ("ncclDevKernel_ReduceScatter", 1_990, 40_000, 50_000))
    ranges = (*RANGES, ("paceline:fwd:mb=9", 2_900, 3_100))
    decoded = decode(
        database(tmp_path / "rank0.sqlite", ranges, kernels), META, limits=LIMITS, local=True
    )

    assert {(one.what, one.count) for one in decoded.unmapped} == {
        ("computations without a kernel", 1),
        ("collectives whose process group is not recorded", 2),
    }


def test_a_server_is_sent_no_database(tmp_path: Path) -> None:
    path = database(tmp_path / "rank0.sqlite", RANGES)
    with pytest.raises(UnsupportedFormatError, match="paceline convert nsys") as caught:
        decode(path, META, limits=LIMITS)
    assert caught.value.stable_code == "trace.command_line_only"


def test_the_name_of_the_file_says_the_rank_of_one_process(tmp_path: Path) -> None:
    path = database(tmp_path / "report.sqlite", RANGES)
    with pytest.raises(InvalidTraceError, match=r"rank%q\{RANK\}") as caught:
        decode(path, META, limits=LIMITS, local=True)
    assert caught.value.stable_code == "trace.unknown_rank"


def test_the_sizes_are_needed_with_it(tmp_path: Path) -> None:
    path = database(tmp_path / "rank0.sqlite", RANGES)
    with pytest.raises(InvalidMetadataError) as caught:
        decode(path, None, limits=LIMITS, local=True)
    assert caught.value.stable_code == "metadata.missing"


def test_without_labels_the_refusal_contains_the_remedy(tmp_path: Path) -> None:
    path = database(tmp_path / "rank0.sqlite", [("forward", 1, 2)])
    with pytest.raises(InvalidTraceError, match="emit_nvtx") as caught:
        decode(path, META, limits=LIMITS, local=True)
    assert caught.value.stable_code == "trace.no_labels"


@pytest.mark.parametrize(
    "statement",
    [
        # A view in place of a table would execute arbitrary functions when it is read.
        "CREATE VIEW NVTX_EVENTS AS SELECT 1 AS start, load_extension('x') AS end",
        "CREATE TABLE other (x)",
    ],
)
def test_a_database_of_something_else_is_refused(tmp_path: Path, statement: str) -> None:
    path = tmp_path / "rank0.sqlite"
    with closing(sqlite3.connect(path)) as made, made:
        made.execute(statement)
    before = path.read_bytes()
    with pytest.raises(InvalidTraceError) as caught:
        decode(path, META, limits=LIMITS, local=True)
    assert caught.value.stable_code == "trace.corrupt"
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["rank0.sqlite"]


def test_a_view_in_the_place_of_a_table_is_not_read(tmp_path: Path) -> None:
    path = database(tmp_path / "rank1.sqlite", RANGES, KERNELS)
    with closing(sqlite3.connect(path)) as made, made:
        made.executescript(
            "ALTER TABLE TARGET_INFO_SYSTEM_ENV RENAME TO other;"
            "CREATE VIEW TARGET_INFO_SYSTEM_ENV AS SELECT * FROM other;"
        )
    decoded = decode(path, META, limits=LIMITS, local=True)
    assert decoded.trace.meta.hosts == {}


@pytest.mark.parametrize("function", ["zeroblob(1000000000)", "load_extension(said)"])
def test_what_a_column_computes_is_bounded_and_harmless(tmp_path: Path, function: str) -> None:
    """A generated column is computed when it is read."""
    path = database(tmp_path / "rank1.sqlite", RANGES, KERNELS)
    with closing(sqlite3.connect(path)) as made, made:
        made.execute("ALTER TABLE NVTX_EVENTS RENAME COLUMN text TO said")
        made.execute("ALTER TABLE NVTX_EVENTS ADD COLUMN text AS (upper(said))")
        # The schema is changed directly, because SQLite refuses some functions in a column's
        # definition.
        made.execute("PRAGMA writable_schema=ON")
        made.execute("UPDATE sqlite_master SET sql = replace(sql, 'upper(said)', ?)", (function,))
    with pytest.raises(InvalidTraceError, match="the database cannot be read") as caught:
        decode(path, META, limits=LIMITS, local=True)
    assert caught.value.stable_code == "trace.corrupt"


def test_the_schema_is_not_trusted_and_nothing_but_reading_is_let(tmp_path: Path) -> None:
    path = database(tmp_path / "rank1.sqlite", RANGES)
    with closing(sqlite3.connect(path)) as made, made:
        made.executescript(
            "CREATE VIEW told AS SELECT tell(value) AS value FROM StringIds;"
            "CREATE TRIGGER more AFTER INSERT ON StringIds BEGIN DELETE FROM NVTX_EVENTS; END;"
        )
    before = path.read_bytes()
    called: list[object] = []
    with closing(nsys._open(path)) as opened:
        opened.create_function("tell", 1, called.append)
        # Without the authorizer, as for a function that it allows.
        for statement in ("SELECT value FROM told", "SELECT coalesce(value, '') FROM told"):
            with pytest.raises(sqlite3.Error):
                opened.execute(statement).fetchall()
        opened.set_authorizer(None)
        with pytest.raises(sqlite3.OperationalError, match="unsafe use of tell"):
            opened.execute("SELECT value FROM told").fetchall()
        opened.execute("PRAGMA writable_schema=ON")
        for statement in (
            "INSERT INTO StringIds VALUES (1, '')",
            "UPDATE sqlite_master SET sql = ''",
        ):
            with pytest.raises(sqlite3.OperationalError, match=r"readonly|may not be modified"):
                opened.execute(statement)
    assert called == []
    assert path.read_bytes() == before


@pytest.mark.parametrize("until", [0, 100, 4096, 8192, -1])
def test_a_database_that_changes_while_it_is_read_is_read_or_refused(
    tmp_path: Path, until: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader opens it as immutable: a concurrent change leads to a refusal or mixed data."""
    path = database(tmp_path / "rank1.sqlite", RANGES, KERNELS)
    whole = path.read_bytes()
    scan = nsys._add_ranges

    def change(*given: Any, of_pytorch: bool = False) -> dict[int, Scan]:  # noqa: ANN401 - as those of the function
        path.write_bytes(whole[:until] + bytes(len(whole) // 2))
        return scan(*given, of_pytorch=of_pytorch)

    monkeypatch.setattr(nsys, "_add_ranges", change)
    try:
        decoded = decode(path, META, limits=LIMITS, local=True)
    except InvalidTraceError as error:
        assert error.stable_code.startswith("trace.")  # noqa: PT017 - one of two good ends
    else:
        assert len(decoded.trace) > 0
    assert [file.name for file in tmp_path.iterdir()] == ["rank1.sqlite"]


@pytest.mark.parametrize("mode", ["wal", "delete"])
def test_a_database_that_a_program_still_writes_is_neither_waited_for_nor_touched(
    tmp_path: Path, mode: str
) -> None:
    """The reader takes no lock, reads no other process's journal, and writes no file next to it."""
    path = database(tmp_path / "rank1.sqlite", RANGES, KERNELS)
    read = operations(decode(path, META, limits=LIMITS, local=True).trace)
    with closing(sqlite3.connect(path, isolation_level=None)) as writing:
        writing.execute(f"PRAGMA journal_mode={mode}")
        writing.execute("BEGIN EXCLUSIVE")
        writing.execute("DELETE FROM NVTX_EVENTS")
        before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
        assert operations(decode(path, META, limits=LIMITS, local=True).trace) == read
        assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before
        writing.execute("ROLLBACK")


@pytest.mark.parametrize("cut", [17, 100, 4096, 9000])
def test_a_damaged_database_is_refused(tmp_path: Path, cut: int) -> None:
    path = database(tmp_path / "rank0.sqlite", RANGES, KERNELS)
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(InvalidTraceError) as caught:
        decode(path, META, limits=LIMITS, local=True)
    assert caught.value.stable_code == "trace.corrupt"


def test_a_damaged_name_that_is_no_text_is_refused(tmp_path: Path) -> None:
    path = database(tmp_path / "rank1.sqlite", RANGES, KERNELS)
    path.write_bytes(
        path.read_bytes().replace(b"CREATE TABLE NVTX_EVENTS", b"CREATE TABLE NVTX\xf5EVENTS")
    )
    with pytest.raises(InvalidTraceError, match="the database cannot be read") as caught:
        decode(path, META, limits=LIMITS, local=True)
    assert caught.value.stable_code == "trace.corrupt"
