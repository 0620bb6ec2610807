from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from app.analysis.trace.decode import decode
from app.analysis.trace.limits import Limits
from app.analysis.trace.model import KNOWN_OP_TYPES, SessionMeta, Sizes
from app.analysis.trace.parquet.reader import _take_one_behind
from app.errors import BodyTooLargeError, InvalidMetadataError, InvalidTraceError, PacelineError
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
    monkeypatch.setattr("app.analysis.trace.parquet.reader.BATCH_ROWS", 7)
    bodies.assert_same(bodies.decoded(body), whole)


def test_a_fault_in_a_later_batch_is_named_by_its_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.analysis.trace.parquet.reader.BATCH_ROWS", 7)
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


def test_metadata_must_come_apart_from_the_body() -> None:
    error = refused(bodies.parquet(bodies.published_table()), meta=None)
    assert isinstance(error, InvalidMetadataError)
    assert error.stable_code == "metadata.missing"


@pytest.mark.parametrize(
    "name",
    [
        "dp_rank",
        "stage",
        "rank",
        "step",
        "optype",
        "start_ts",
        "duration",
        "seq_id",
        "mc",
        "mb_id",
    ],
)
def test_a_missing_published_column_is_named(name: str) -> None:
    error = refused(bodies.parquet(bodies.published_table(**{name: None})))
    assert error.stable_code == "trace.missing_column"
    assert [fault.column for fault in error.faults] == [name]


def test_all_missing_columns_are_named() -> None:
    error = refused(bodies.parquet(pa.table({"rank": [0], "step": [1], "op": ["gc"]})))
    assert error.stable_code == "trace.missing_column"
    assert {fault.column for fault in error.faults} == {"dp", "pp", "start_ns", "dur_ns"}


def test_a_column_that_is_there_twice_is_refused() -> None:
    table = bodies.published_table()
    twice = table.append_column("rank", table["rank"])
    assert refused(bodies.parquet(twice)).stable_code == "trace.duplicate_column"


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("start_ts", pa.array([0] * 80, pa.int64())),
        ("duration", pa.array(["1"] * 80)),
        ("rank", pa.array([0.0] * 80)),
        ("rank", pa.array([0] * 80, pa.uint64())),
        ("rank", pa.array([[0]] * 80)),
        ("step", pa.array([0] * 80, pa.timestamp("ns"))),
        ("optype", pa.array([1] * 80)),
        ("optype", pa.array([b"gc"] * 80)),
        ("optype", pa.array([{"name": "gc"}] * 80)),
        ("mb_id", pa.array([True] * 80)),
    ],
)
def test_a_wrong_type_is_refused(name: str, values: pa.Array[Any]) -> None:
    error = refused(bodies.parquet(bodies.published_table(**{name: values})))
    assert error.stable_code == "trace.wrong_type"
    assert error.faults[0].column == name


def test_float_times_are_the_wrong_type_for_our_columns() -> None:
    made = [{**row, "start_ns": float(row["start_ns"])} for row in bodies.rows()]
    error = refused(bodies.parquet(bodies.native_table(made)))
    assert error.stable_code == "trace.wrong_type"
    assert error.faults[0].column == "start_ns"


def test_zero_rows_are_refused() -> None:
    for table in (bodies.published_table(), bodies.native_table()):
        assert refused(bodies.parquet(table.slice(0, 0))).stable_code == "trace.no_rows"


def test_every_truncation_is_refused() -> None:
    body = bodies.parquet(bodies.published_table())
    for length in range(4, len(body), 11):
        error = refused(body[:length])
        assert error.stable_code in {"trace.truncated", "trace.corrupt"}, length


def test_bytes_missing_in_the_middle_are_refused() -> None:
    body = bodies.parquet(bodies.published_table())
    half = len(body) // 4
    assert refused(body[:half] + body[half + 20 :]).stable_code == "trace.corrupt"


def test_a_wrong_page_checksum_is_refused() -> None:
    body = bytearray(
        bodies.parquet(
            bodies.published_table(),
            write_page_checksum=True,
            compression="none",
            use_dictionary=False,
        )
    )
    start = np.array(bodies.published_columns()["start_ts"], np.float32).tobytes()
    body[body.index(start) + 5] ^= 1
    assert refused(bytes(body)).stable_code == "trace.corrupt"


def test_a_claim_of_too_many_rows_is_refused_before_reading() -> None:
    count = 1_000_000
    table = pa.table(
        {
            name: pa.array(np.zeros(count, np.int8), kind)
            if kind != pa.string()
            else ["gc"] * count
            for name, kind in bodies.PUBLISHED_TYPES.items()
        }
    )
    body = bodies.parquet(table, compression="zstd")
    assert len(body) < 50_000
    error = refused(body)
    assert isinstance(error, BodyTooLargeError)
    assert error.stable_code == "body.too_many_rows"


def test_a_body_over_the_byte_limit_is_refused() -> None:
    limits = Limits(max_decompressed_bytes=1000, max_rows=1000)
    error = refused(bodies.parquet(bodies.published_table()), limits=limits)
    assert isinstance(error, BodyTooLargeError)
    assert error.stable_code == "body.too_large"


def test_a_footer_over_the_limit_is_refused() -> None:
    limits = Limits(max_header_bytes=100)
    error = refused(bodies.parquet(bodies.published_table()), limits=limits)
    assert error.stable_code == "body.header_too_large"


def test_a_string_bomb_is_refused_before_it_is_decompressed() -> None:
    names = bodies.published_columns()["optype"]
    names[0] = "x" * (16 << 20)
    body = bodies.parquet(bodies.published_table(optype=names), compression="zstd")
    assert len(body) < 20_000
    error = refused(body)
    assert error.stable_code == "trace.decompression_bomb"
    assert error.faults[0].column == "optype"


def test_rows_that_take_no_bytes_are_refused_before_they_are_decoded() -> None:
    rows = 1_000_000
    table = pa.table(
        {
            name: pa.repeat(column[0], rows)
            for name, column in zip(
                bodies.native_table(bodies.rows()).column_names,
                bodies.native_table(bodies.rows()).columns,
                strict=True,
            )
        }
    )
    body = bodies.parquet(table, compression="zstd")
    assert len(body) < 100_000
    error = refused(body, limits=Limits())
    assert error.stable_code == "trace.decompression_bomb"


def test_text_that_is_built_on_other_text_is_refused() -> None:
    body = bodies.parquet(
        bodies.published_table(),
        use_dictionary=False,
        column_encoding={"optype": "DELTA_BYTE_ARRAY"},
    )
    assert refused(body).stable_code == "trace.unsupported_encoding"


def test_distinct_names_are_limited() -> None:
    row = bodies.rows()[0]
    for distinct in (300, 5000):
        table = bodies.native_table(row | {"op": f"kernel-{number}"} for number in range(distinct))
        assert refused(bodies.parquet(table)).stable_code == "trace.too_many_op_names"


@pytest.mark.parametrize("name", ["", "x" * 129, "a\nb", "a\x00b", " padded"])
def test_a_name_that_is_none_is_refused_with_its_row(name: str) -> None:
    names = bodies.published_columns()["optype"]
    names[5] = name
    error = refused(bodies.parquet(bodies.published_table(optype=names)))
    assert error.stable_code == "trace.bad_op_name"
    assert [(fault.row, fault.column) for fault in error.faults] == [(5, "optype")]


def test_a_name_that_is_not_utf8_is_refused() -> None:
    body = bodies.parquet(bodies.published_table(), compression="none", write_statistics=False)
    damaged = body.replace(b"forward-send", b"forward-\xff\xfe\xfdd")
    assert damaged != body
    assert refused(damaged).stable_code == "trace.bad_op_name"


def test_a_damaged_file_raises_nothing_of_its_own(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        decode(tmp_path / "absent", META, limits=LIMITS)


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


def test_what_is_wrong_with_a_batch_is_said_before_what_is_wrong_with_the_next() -> None:
    taken: list[int] = []

    def take(number: int) -> None:
        taken.append(number)
        if number == 2:
            raise ValueError("the second batch")

    def numbers() -> Iterator[int]:
        yield from (1, 2)
        raise OSError("the third batch")

    with pytest.raises(ValueError, match="the second batch"):
        _take_one_behind(numbers(), take)
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
