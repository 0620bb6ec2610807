from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from app.analysis.trace.decode import decode
from app.analysis.trace.limits import Limits
from app.analysis.trace.model import SessionMeta
from app.errors import BodyTooLargeError, InvalidMetadataError, PacelineError
from tests.unit.analysis.trace import bodies
from tests.unit.analysis.trace.bodies import LIMITS, META


def refused(body: bytes, meta: SessionMeta | None = META, limits: Limits = LIMITS) -> PacelineError:
    with pytest.raises(PacelineError) as caught:
        decode(body, meta, limits=limits)
    return caught.value


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
