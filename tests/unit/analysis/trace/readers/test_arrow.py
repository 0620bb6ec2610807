from __future__ import annotations

import io
import struct
import tracemalloc
from typing import Literal

import pyarrow as pa
import pytest

from app.analysis.trace.decode import decode
from app.analysis.trace.encode import to_arrow
from app.analysis.trace.limits import Limits
from app.analysis.trace.metadata import metadata_document
from app.errors import BodyTooLargeError, InvalidMetadataError, InvalidTraceError
from tests.unit.analysis.trace import bodies


def stream(table: pa.Table, compression: Literal["zstd", "lz4"] | None = None) -> bytes:
    written = io.BytesIO()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(written, table.schema, options=options) as writer:
        writer.write_table(table)
    return written.getvalue()


@pytest.mark.parametrize("compression", [None, "zstd", "lz4"])
def test_a_stream_is_the_same_trace(compression: Literal["zstd", "lz4"] | None) -> None:
    known = bodies.decoded(bodies.ndjson())
    read = decode(stream(bodies.native_table(), compression), bodies.META, limits=bodies.LIMITS)

    assert read.trace_format == "arrow"
    bodies.assert_same(read.trace, known)


def test_a_file_and_a_dictionary_of_names_are_read_as_well() -> None:
    read = decode(bodies.arrow_file(), bodies.META, limits=bodies.LIMITS)

    bodies.assert_same(read.trace, bodies.decoded(bodies.ndjson()))


def test_metadata_are_in_the_schema_or_come_separately() -> None:
    trace = bodies.decoded(bodies.ndjson())
    body = to_arrow(trace)
    assert metadata_document(decode(body, None, limits=bodies.LIMITS).trace.meta) == (
        metadata_document(trace.meta)
    )
    with pytest.raises(InvalidMetadataError) as caught:
        decode(stream(bodies.native_table()), None, limits=bodies.LIMITS)
    assert caught.value.stable_code == "metadata.missing"


def test_a_buffer_that_claims_more_than_may_be_is_not_unfolded() -> None:
    body = bytearray(stream(bodies.native_table(), "zstd"))
    # Each compressed buffer begins with its decompressed length; the first buffer contains the
    # ranks.
    ranks = struct.pack("<q", bodies.native_table().num_rows * 8)
    at = body.index(ranks + b"\x28\xb5\x2f\xfd")
    body[at : at + 8] = struct.pack("<q", 1 << 40)
    tracemalloc.start()
    try:
        with pytest.raises(BodyTooLargeError):
            decode(bytes(body), bodies.META, limits=Limits(max_decompressed_bytes=1 << 20))
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


def test_too_many_rows_are_refused_before_they_are_read() -> None:
    with pytest.raises(BodyTooLargeError) as caught:
        decode(stream(bodies.native_table()), bodies.META, limits=Limits(max_rows=3))
    assert caught.value.stable_code == "body.too_many_rows"


def test_a_missing_column_is_named() -> None:
    table = bodies.native_table().drop_columns(["step"])
    with pytest.raises(InvalidTraceError) as caught:
        decode(stream(table), bodies.META, limits=bodies.LIMITS)
    assert caught.value.stable_code == "trace.missing_column"
    assert caught.value.faults[0].column == "step"


def test_the_columns_of_the_published_traces_come_as_parquet() -> None:
    with pytest.raises(InvalidTraceError) as caught:
        decode(stream(bodies.published_table()), bodies.META, limits=bodies.LIMITS)
    assert caught.value.stable_code == "trace.missing_column"
