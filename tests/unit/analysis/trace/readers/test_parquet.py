from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pytest

from app.analysis.trace.assemble import consume_on_second_core
from app.analysis.trace.decode import decode
from app.analysis.trace.limits import Limits
from app.analysis.trace.model import KNOWN_OP_TYPES, SessionMeta, Sizes
from app.errors import InvalidTraceError, PacelineError
from tests.unit.analysis.trace import bodies
from tests.unit.analysis.trace.bodies import LIMITS, META


def refused(body: bytes, meta: SessionMeta | None = META, limits: Limits = LIMITS) -> PacelineError:
    with pytest.raises(PacelineError) as caught:
        decode(body, meta, limits=limits)
    return caught.value


def test_published_columns_are_read() -> None:
    body = bodies.parquet(bodies.published_table())
    result = decode(body, META, limits=LIMITS)
    trace = result.trace
    assert result.trace_format == "parquet-published"
    assert trace.step_relative
    assert trace.op_names == KNOWN_OP_TYPES
    assert len(trace) == len(bodies.rows())
    assert bodies.names_of(trace) == [row["op"] for row in bodies.rows()]
    for field in ("rank", "dp", "pp", "step", "mb", "mc"):
        assert getattr(trace, field).tolist() == [row[field] for row in bodies.rows()], field
    assert trace.order.tolist() == bodies.published_columns()["seq_id"]


def test_float32_seconds_are_rounded_to_nanoseconds_in_double_precision() -> None:
    columns = bodies.published_columns()
    trace = bodies.decoded(bodies.parquet(bodies.published_table()))
    for name, values in (("start_ts", trace.start_ns), ("duration", trace.duration_ns)):
        seconds = np.array(columns[name], np.float32).astype(np.float64)
        assert values.tolist() == np.rint(seconds * 1e9).astype(np.int64).tolist()


def test_our_columns_are_read_exactly() -> None:
    result = decode(bodies.parquet(bodies.native_table()), META, limits=LIMITS)
    trace = result.trace
    assert result.trace_format == "parquet"
    assert not trace.step_relative
    assert trace.start_ns.tolist() == [row["start_ns"] for row in bodies.rows()]
    assert trace.duration_ns.tolist() == [row["dur_ns"] for row in bodies.rows()]
    assert trace.order.tolist() == bodies.published_columns()["seq_id"]


def test_a_file_is_read_like_its_bytes(tmp_path: Path) -> None:
    body = bodies.parquet(bodies.published_table())
    path = tmp_path / "trace.parquet"
    path.write_bytes(body)
    bodies.assert_same(decode(path, META, limits=LIMITS).trace, bodies.decoded(body))


def test_a_body_of_many_batches_is_read_like_one_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    body = bodies.parquet(bodies.published_table())
    whole = bodies.decoded(body)
    monkeypatch.setattr("app.analysis.trace.readers.parquet.BATCH_ROWS", 7)
    bodies.assert_same(bodies.decoded(body), whole)


def test_a_fault_in_a_later_batch_is_named_by_its_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.analysis.trace.readers.parquet.BATCH_ROWS", 7)
    ranks = bodies.published_columns()["rank"]
    error = refused(bodies.parquet(bodies.published_table(rank=[*ranks[:17], 99, *ranks[18:]])))
    assert error.stable_code == "trace.rank_out_of_range"
    assert [fault.row for fault in error.faults] == [17]


@pytest.mark.parametrize(
    "options",
    [
        {"compression": "none"},
        {"compression": "zstd"},
        {"compression": "gzip"},
        {"compression": "lz4"},
        {"compression": "brotli"},
        {"row_group_size": 7},
        {"use_dictionary": False},
        {"data_page_version": "2.0"},
        {"data_page_size": 64, "write_batch_size": 4},
        {"store_schema": False},
        {"write_statistics": False},
        {"write_page_checksum": True},
    ],
    ids=str,
)
def test_writers_may_choose_how_to_write(options: dict[str, Any]) -> None:
    expected = bodies.decoded(bodies.parquet(bodies.published_table()))
    bodies.assert_same(
        bodies.decoded(bodies.parquet(bodies.published_table(), **options)), expected
    )


def test_categorical_names_with_unused_entries_are_read() -> None:
    names = pa.array(bodies.published_columns()["optype"])
    unused = pa.array(["never-used", *bodies.OPS])
    indices = pa.array([bodies.OPS.index(name.as_py()) + 1 for name in names], pa.int8())
    table = bodies.published_table(optype=pa.DictionaryArray.from_arrays(indices, unused))
    trace = bodies.decoded(bodies.parquet(table))
    assert trace.op_names == KNOWN_OP_TYPES
    assert bodies.names_of(trace) == bodies.published_columns()["optype"]


def test_unknown_columns_are_not_read() -> None:
    table = bodies.published_table().append_column(
        "blob", pa.array(["x" * 1000] * len(bodies.rows()))
    )
    assert len(bodies.decoded(bodies.parquet(table))) == len(bodies.rows())


def test_microbatch_and_chunk_may_be_missing_in_our_columns() -> None:
    table = bodies.native_table().drop_columns(["mb", "mc"])
    trace = bodies.decoded(bodies.parquet(table))
    assert set(trace.mb.tolist()) == {-1}
    assert trace.order.max() == bodies.MICROBATCHES - 1


def test_null_is_an_absent_microbatch_in_our_columns() -> None:
    made = [{**row, "mb": None if row["mb"] == -1 else row["mb"]} for row in bodies.rows()]
    assert bodies.decoded(bodies.parquet(bodies.native_table(made))).mb.tolist() == [
        row["mb"] for row in bodies.rows()
    ]


def test_integer_times_from_zero_in_each_step_are_step_relative() -> None:
    made = [
        {**row, "start_ns": row["start_ns"] - bodies.EPOCH_NS - row["step"] * 10**9}
        for row in bodies.rows()
    ]
    assert bodies.decoded(bodies.parquet(bodies.native_table(made))).step_relative
    made[-1]["step"] = 11
    assert not bodies.decoded(bodies.parquet(bodies.native_table(made))).step_relative


def changed(**columns: pa.Array[Any]) -> bytes:
    """Return our columns, some with other types, in several row groups."""
    table = bodies.native_table()
    for name, values in columns.items():
        table = table.set_column(table.schema.get_field_index(name), name, values)
    return bodies.parquet(table, row_group_size=30)


def column(name: str) -> list[Any]:
    values: list[Any] = bodies.native_table()[name].to_pylist()
    return values


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("start_ns", pa.timestamp("ns")),
        ("start_ns", pa.timestamp("ns", tz="UTC")),
        ("dur_ns", pa.duration("ns")),
        ("rank", pa.float64()),
        ("rank", pa.float32()),
        ("step", pa.uint64()),
        ("mb", pa.float64()),
        ("mc", pa.float32()),
        ("dur_ns", pa.float64()),
    ],
    ids=str,
)
def test_integers_in_the_types_of_pandas_are_read_exactly(name: str, kind: pa.DataType) -> None:
    plain = bodies.decoded(bodies.parquet(bodies.native_table()))
    values = pa.array(column(name), pa.int64()).cast(kind)
    bodies.assert_same(bodies.decoded(changed(**{name: values})), plain)


@pytest.mark.parametrize(("unit", "scale"), [("us", 10**3), ("ms", 10**6), ("s", 10**9)])
def test_times_of_other_units_become_nanoseconds(
    unit: Literal["us", "ms", "s"], scale: int
) -> None:
    start = [1000 + row for row in range(len(column("start_ns")))]
    trace = bodies.decoded(
        changed(
            start_ns=pa.array(start, pa.int64()).cast(pa.timestamp(unit)),
            dur_ns=pa.array(start, pa.int64()).cast(pa.duration(unit)),
        )
    )
    assert trace.start_ns.tolist() == [value * scale for value in start]
    assert trace.duration_ns.tolist() == [value * scale for value in start]


def test_a_float_that_is_none_is_an_absent_microbatch() -> None:
    mb = [None if row % 7 == 0 else float(value) for row, value in enumerate(column("mb"))]
    nan = [float("nan") if value is None else value for value in mb]
    absent = [-1 if value is None else int(value) for value in mb]
    plain = bodies.decoded(changed(mb=pa.array(absent, pa.int64())))
    for values in (mb, nan):
        bodies.assert_same(bodies.decoded(changed(mb=pa.array(values, pa.float64()))), plain)


@pytest.mark.parametrize(
    ("name", "value", "kind", "code"),
    [
        ("start_ns", float(1 << 53) + 2, pa.float64(), "trace.not_exact"),
        ("start_ns", float(1 << 25), pa.float32(), "trace.not_exact"),
        ("dur_ns", 1.5, pa.float64(), "trace.not_exact"),
        ("rank", float("nan"), pa.float64(), "trace.not_finite"),
        ("mb", float("inf"), pa.float64(), "trace.not_finite"),
        ("mb", 0.25, pa.float64(), "trace.not_exact"),
        ("rank", (1 << 63) + 1, pa.uint64(), "trace.integer_overflow"),
        ("start_ns", 1 << 62, pa.timestamp("us"), "trace.time_overflow"),
        ("start_ns", None, pa.timestamp("ns"), "trace.null"),
        ("rank", None, pa.float64(), "trace.null"),
    ],
)
def test_an_inexact_value_is_refused_with_its_row(
    name: str,
    value: Any,  # noqa: ANN401 - of the column
    kind: pa.DataType,
    code: str,
) -> None:
    row = 37
    values = [0 if name == "start_ns" else one for one in column(name)]
    values[row] = value
    error = refused(changed(**{name: pa.array(values, kind)}))
    assert error.stable_code == code
    assert [(fault.row, fault.column) for fault in error.faults] == [(row, name)]


def test_absolute_times_in_floats_are_refused() -> None:
    """A double resolves only 256 ns at today's time since the epoch."""
    made = [{**row, "start_ns": row["start_ns"] + 1.76e18} for row in bodies.rows()]
    error = refused(bodies.parquet(bodies.native_table(made)))
    assert error.stable_code == "trace.not_exact"
    assert error.faults[0].column == "start_ns"
    assert len(error.faults) == 10


def test_many_row_groups_with_their_own_dictionaries_agree() -> None:
    table = bodies.native_table()
    shuffled = table.take(np.random.default_rng(3).permutation(len(table)))
    trace = bodies.decoded(bodies.parquet(shuffled, row_group_size=3))
    assert bodies.names_of(trace) == shuffled["op"].to_pylist()


def test_sizes_decide_which_ranks_there_are() -> None:
    body = bodies.parquet(bodies.published_table())
    error = refused(body, meta=SessionMeta(Sizes(dp=1, pp=2, tp=4)))
    assert isinstance(error, InvalidTraceError)
    assert error.stable_code == "trace.dp_out_of_range"
    assert error.faults[0].row == 10
    assert error.faults[0].column == "dp_rank"


def test_faults_of_a_batch_are_reported_before_those_of_the_next() -> None:
    taken: list[int] = []

    def take(number: int) -> None:
        taken.append(number)
        if number == 2:
            raise ValueError("the second batch")

    def numbers() -> Iterator[int]:
        yield from (1, 2)
        raise OSError("the third batch")

    with pytest.raises(ValueError, match="the second batch"):
        consume_on_second_core(numbers(), take)
    assert taken == [1, 2]


def test_stretches_that_reading_found_are_those_of_the_columns() -> None:
    trace = bodies.decoded(bodies.parquet(bodies.published_table()))
    found = trace.stretches()

    anew = replace(trace).stretches()
    first = found.first.tolist()
    assert anew.first.tolist() == first
    assert anew.earliest_ns.tolist() == found.earliest_ns.tolist()
    pairs = list(zip(trace.rank.tolist(), trace.step.tolist(), strict=True))
    assert first == [row for row in range(len(trace)) if not row or pairs[row] != pairs[row - 1]]
    ends = [*first[1:], len(trace)]
    assert found.earliest_ns.tolist() == [
        trace.start_ns[begin:end].min() for begin, end in zip(first, ends, strict=True)
    ]
