from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING

import pytest
import zstandard

from app.analysis.trace.decode import decode
from app.analysis.trace.limits import Limits
from app.analysis.trace.model import SessionMeta, Sizes
from app.errors import (
    BodyTooLargeError,
    InvalidMetadataError,
    InvalidTraceError,
    PacelineError,
    UnsupportedFormatError,
)
from tests.unit.analysis.trace import bodies
from tests.unit.analysis.trace.bodies import LIMITS, META

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

PLAIN = bodies.ndjson()


def refused(body: bytes, meta: SessionMeta | None = None, limits: Limits = LIMITS) -> PacelineError:
    with pytest.raises(PacelineError) as caught:
        decode(body, meta, limits=limits)
    return caught.value


def lines_with(line: bytes, at: int = 5) -> bytes:
    """Insert a line into the body, as line `at` (from 1)."""
    lines = PLAIN.splitlines(keepends=True)
    lines.insert(at - 1, line + b"\n")
    return b"".join(lines)


@pytest.mark.parametrize(
    "compress",
    [bytes, gzip.compress, zstandard.ZstdCompressor().compress],
    ids=["plain", "gzip", "zstd"],
)
def test_each_compression_gives_the_same_trace(
    compress: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    body = compress(PLAIN)
    result = decode(body, None, limits=LIMITS)
    assert result.trace_format == "ndjson"
    bodies.assert_same(result.trace, bodies.decoded(bodies.parquet(bodies.native_table())))
    path = tmp_path / "body"
    path.write_bytes(body)
    bodies.assert_same(decode(path, None, limits=LIMITS).trace, result.trace)


def test_nanoseconds_are_exact() -> None:
    trace = bodies.decoded(PLAIN, None)
    assert trace.start_ns.tolist() == [row["start_ns"] for row in bodies.rows()]


def test_several_members_are_one_text() -> None:
    parts = [PLAIN[:100], PLAIN[100:3000], b"", PLAIN[3000:]]
    expected = bodies.decoded(PLAIN, None)
    frames = zstandard.ZstdCompressor()
    bodies.assert_same(
        bodies.decoded(b"".join(map(gzip.compress, parts)) + b"\0" * 700, None), expected
    )
    bodies.assert_same(bodies.decoded(b"".join(map(frames.compress, parts)), None), expected)


def test_metadata_may_come_apart_from_the_body_instead() -> None:
    rows_only = PLAIN.partition(b"\n")[2]
    bodies.assert_same(bodies.decoded(rows_only, META), bodies.decoded(PLAIN, None))
    without_meta = b'{"schema": "paceline.trace/1"}\n' + rows_only
    bodies.assert_same(bodies.decoded(without_meta, META), bodies.decoded(PLAIN, None))


def test_metadata_must_come_from_somewhere() -> None:
    for body in (PLAIN.partition(b"\n")[2], b'{"schema": "paceline.trace/1"}\n{}\n'):
        error = refused(body)
        assert isinstance(error, InvalidMetadataError)
        assert error.stable_code == "metadata.missing"


def test_metadata_in_two_places_must_agree() -> None:
    assert bodies.decoded(PLAIN, META).meta == META
    error = refused(PLAIN, meta=SessionMeta(Sizes(dp=4, pp=2)))
    assert error.stable_code == "metadata.conflict"


@pytest.mark.parametrize(
    ("meta", "code"),
    [
        ({"dp": 2, "pp": 2, "tp": 2, "world": 9}, "metadata.world_mismatch"),
        ({"dp": 2}, "metadata.missing_size"),
        ([1], "metadata.malformed"),
    ],
)
def test_bad_metadata_in_the_header_are_refused(meta: object, code: str) -> None:
    head = json.dumps({"schema": "paceline.trace/1", "meta": meta}).encode()
    assert refused(head + b"\n" + PLAIN.partition(b"\n")[2]).stable_code == code


def test_another_schema_is_refused() -> None:
    error = refused(PLAIN.replace(b"paceline.trace/1", b"paceline.trace/2"))
    assert isinstance(error, UnsupportedFormatError)
    assert error.stable_code == "trace.unknown_schema"


@pytest.mark.parametrize(
    "body", [b"\x00\x01\x02", b"hello", b"[]", b"null\n", b"PK\x03\x04", b"ARROW0\0\0", b"PARE...."]
)
def test_an_unknown_format_is_refused(body: bytes) -> None:
    with pytest.raises(UnsupportedFormatError) as caught:
        decode(body, META, limits=LIMITS, content_type="application/x-mystery")
    assert caught.value.stable_code == "trace.unknown_format"
    assert "application/x-mystery" in caught.value.message


def test_an_empty_body_is_refused() -> None:
    for body in (b"", PLAIN.partition(b"\n")[0], PLAIN.partition(b"\n")[0] + b"\n\n"):
        assert refused(body).stable_code == "trace.no_rows"


def test_blank_lines_and_other_line_ends_change_nothing() -> None:
    expected = bodies.decoded(PLAIN, None)
    for body in (
        PLAIN.replace(b"\n", b"\n\n"),
        PLAIN.replace(b"\n", b"\r\n"),
        PLAIN.replace(b"\n", b" \n  "),
        PLAIN.rstrip(b"\n"),
    ):
        bodies.assert_same(bodies.decoded(body, None), expected)


def test_unknown_keys_are_passed_over() -> None:
    made = [
        {**row, "note": {"a": [1, None]}, "x": number} for number, row in enumerate(bodies.rows())
    ]
    bodies.assert_same(bodies.decoded(bodies.ndjson(made), None), bodies.decoded(PLAIN, None))


def test_microbatch_and_chunk_may_be_left_out() -> None:
    made = [{key: value for key, value in row.items() if value != -1} for row in bodies.rows()]
    bodies.assert_same(bodies.decoded(bodies.ndjson(made), None), bodies.decoded(PLAIN, None))


@pytest.mark.parametrize(
    ("line", "code", "column"),
    [
        (b"null", "bad_line", None),
        (b"[1]", "bad_line", None),
        (b"17", "bad_line", None),
        (b"{", "bad_line", None),
        (b'{"rank": 1}{"rank": 2}', "bad_line", None),
        (b'{"rank": NaN}', "bad_line", None),
        (b'{"rank": 01}', "bad_line", None),
        (b'{"x": 1e400}', "bad_line", None),
        (b'{"rank": 1, "rank": 2}', "bad_line", None),
        (b'{"op": "a\x00"}', "bad_line", None),
        (b'{"rank": ' + b"1" * 5000 + b"}", "bad_line", None),
        (b'{"rank": "1"}', "wrong_type", "rank"),
        (b'{"rank": 1.0}', "wrong_type", "rank"),
        (b'{"rank": true}', "wrong_type", "rank"),
        (b'{"rank": [1]}', "wrong_type", "rank"),
        (b'{"op": 1}', "wrong_type", "op"),
        (b'{"op": "\\ud800"}', "bad_op_name", "op"),
        (b'{"start_ns": 9223372036854775808}', "integer_overflow", "start_ns"),
        (b'{"dur_ns": -9223372036854775809}', "integer_overflow", "dur_ns"),
        (b"{}", "null", "dp"),
        (json.dumps(bodies.rows()[0]).encode().replace(b"forward", b"\xff"), "bad_op_name", "op"),
    ],
)
@pytest.mark.parametrize("at", [2, 40, 82])
def test_a_bad_line_is_found(line: bytes, code: str, column: str | None, at: int) -> None:
    error = refused(lines_with(line, at))
    assert isinstance(error, InvalidTraceError)
    assert error.stable_code == f"trace.{code}"
    fault = error.faults[0]
    assert (fault.code, fault.line, fault.row) == (code, at, None)
    assert fault.column == column


def test_depth_is_no_danger() -> None:
    for key in (b"x", b"rank"):
        deep = b'{"%b": ' % key + b"[" * 200_000 + b"]" * 200_000 + b"}"
        assert refused(lines_with(deep)).faults[0].line == 5
        assert refused(deep + b"\n" + PLAIN).stable_code == "trace.unknown_format"


def test_a_bad_header_line_is_the_first_line() -> None:
    error = refused(b'{"schema": \n' + PLAIN)
    assert (error.stable_code, error.faults[0].line) == ("trace.bad_line", 1)


def test_lines_are_counted_over_blank_ones_and_blocks() -> None:
    made = bodies.rows()
    made[-1]["rank"] = -1
    # The body exceeds a block of 4 MiB, so that the fault is in a later block.
    padded = [{**row, "note": "x" * 100_000} for row in made]
    body = bodies.ndjson(padded)
    assert len(body) > 7_000_000
    assert refused(body).faults[0].line == 81
    assert refused(body.replace(b"\n", b"\n\n", 1)).faults[0].line == 82
    assert refused(body.replace(b"\n", b"\n\n")).faults[0].line == 161


def test_a_line_that_was_cut_off_is_truncated() -> None:
    error = refused(PLAIN[:-10])
    assert (error.stable_code, error.faults[0].line) == ("trace.truncated", 81)


def test_an_over_long_line_is_refused() -> None:
    line = b'{"x": "' + b"y" * (6 << 20) + b'"}'
    error = refused(lines_with(line))
    assert (error.stable_code, error.faults[0].line) == ("trace.line_too_long", 5)
    assert refused(b'{"schema": "' + b"y" * (6 << 20)).stable_code == "body.header_too_large"


@pytest.mark.parametrize("name", ["gzip", "zstd"])
def test_every_truncation_of_compressed_text_is_refused(name: str) -> None:
    compress = gzip.compress if name == "gzip" else zstandard.ZstdCompressor().compress
    body = compress(PLAIN)
    for length in range(4, len(body)):
        assert refused(body[:length]).stable_code == "trace.truncated", length


@pytest.mark.parametrize("name", ["gzip", "zstd"])
def test_damaged_compressed_text_is_refused(name: str) -> None:
    compressor = zstandard.ZstdCompressor(write_checksum=True)
    compress = gzip.compress if name == "gzip" else compressor.compress
    body = bytearray(compress(PLAIN))
    for place in range(20, len(body), 7):
        damaged = bytearray(body)
        damaged[place] ^= 0x55
        assert refused(bytes(damaged)).stable_code.startswith("trace."), place


def test_garbage_behind_compressed_text_is_refused() -> None:
    for body in (gzip.compress(PLAIN), zstandard.ZstdCompressor().compress(PLAIN)):
        assert refused(body + b"garbage").stable_code == "trace.corrupt"


@pytest.mark.parametrize("name", ["gzip", "zstd", "plain"])
def test_text_over_the_limit_is_refused_while_it_is_read(name: str) -> None:
    bomb = PLAIN + b"\n" * (20 << 20)
    compressors: dict[str, Callable[[bytes], bytes]] = {
        "gzip": gzip.compress,
        "zstd": zstandard.ZstdCompressor().compress,
        "plain": bytes,
    }
    error = refused(compressors[name](bomb), limits=Limits(max_decompressed_bytes=1 << 20))
    assert isinstance(error, BodyTooLargeError)
    assert error.stable_code == "body.too_large"


def test_a_bomb_in_a_later_member_is_counted() -> None:
    body = gzip.compress(PLAIN) + gzip.compress(b"\n" * (20 << 20))
    error = refused(body, limits=Limits(max_decompressed_bytes=1 << 20))
    assert error.stable_code == "body.too_large"


@pytest.mark.slow
def test_members_without_end_are_refused() -> None:
    body = gzip.compress(PLAIN) + gzip.compress(b"") * ((1 << 18) + 1)
    assert refused(body).stable_code == "trace.decompression_bomb"


def test_a_wide_zstd_window_is_refused() -> None:
    wide = zstandard.ZstdCompressionParameters(window_log=24, strategy=1, write_content_size=False)
    stream = zstandard.ZstdCompressor(compression_params=wide).compressobj()
    body = stream.compress(PLAIN) + stream.flush()
    assert refused(body).stable_code == "trace.decompression_bomb"


def test_rows_over_the_limit_are_refused() -> None:
    limits = Limits(max_rows=50)
    error = refused(PLAIN, limits=limits)
    assert isinstance(error, BodyTooLargeError)
    assert error.stable_code == "body.too_many_rows"


@pytest.mark.slow
def test_bodies_may_be_longer_than_expected() -> None:
    row = bodies.rows()[0] | {"op": "tp-all-reduce", "mb": -1}
    made = [row | {"start_ns": number} for number in range(70_000)]
    trace = bodies.decoded(bodies.ndjson(made), None)
    assert trace.start_ns.tolist() == list(range(70_000))
    assert trace.order.tolist() == list(range(70_000))


@pytest.mark.slow
def test_lines_without_rows_are_counted() -> None:
    body = gzip.compress(PLAIN) + gzip.compress(b"\n" * (10 << 20))
    assert refused(body, limits=Limits(max_rows=200)).stable_code == "body.too_many_rows"


def test_compressed_parquet_is_no_text() -> None:
    body = gzip.compress(bodies.parquet(bodies.native_table()))
    error = refused(body)
    assert error.stable_code == "trace.unknown_format"
    assert "it begins with 'PAR1" in error.message
