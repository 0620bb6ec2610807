"""Headers of data pages: a regular expression reads the usual ones like the general reader."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.analysis.trace.limits import Limits
from app.analysis.trace.readers import parquet_headers as pages
from app.analysis.trace.readers.parquet_headers import ReadBudget, read_footer, read_struct

ROWS = 40_000
TABLE = pa.table(
    {
        "small": pa.array(np.arange(ROWS) % 100, pa.int8()),
        "wide": pa.array(np.arange(ROWS) * 1_234_567_891, pa.int64()),
        "seconds": pa.array(np.linspace(0, 1, ROWS), pa.float32()),
        "name": pa.array(["forward", "backward-compute", "a" * 60, "ü"] * (ROWS // 4)),
    }
)


@pytest.mark.parametrize(
    ("usual", "options"),
    [
        pytest.param(True, {}, id="plain"),
        pytest.param(True, {"write_page_checksum": True}, id="check sums"),
        pytest.param(True, {"write_statistics": False}, id="no statistics"),
        pytest.param(True, {"use_dictionary": False, "compression": "zstd"}, id="no dictionary"),
        pytest.param(False, {"data_page_version": "2.0"}, id="second kind of page"),
    ],
)
def test_both_readers_say_the_same_of_each_page(options: dict[str, Any], *, usual: bool) -> None:
    written = pa.BufferOutputStream()
    pq.write_table(TABLE, written, data_page_size=4096, row_group_size=ROWS // 2, **options)
    source = pa.BufferReader(written.getvalue())
    read = 0
    for chunk in read_footer(source, Limits()).chunks:
        position, seen = chunk.start, 0
        found = pages._pages(source, chunk)
        while seen < chunk.rows:
            header, length = pages._read_header(source, position)
            expected = (*pages._page_of(header), length)
            assert next(found) == expected
            source.seek(position)
            read += pages._USUAL.match(source.read(512)) is not None
            kind, _, compressed, count, _, _ = expected
            seen += count if kind != 2 else 0
            position += length + compressed
    # The expression matches most usual headers, so that it is useful.
    assert (read > 20) is usual


def varint(value: int) -> bytes:
    zigzag = (value << 1) ^ (value >> 63)
    out = bytearray()
    while zigzag > 0x7F:
        out.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    return bytes([*out, zigzag])


@given(
    numbers=st.lists(st.integers(-(2**31), 2**31 - 1), min_size=6, max_size=6),
    check_sum=st.none() | st.integers(-(2**31), 2**31 - 1),
    extremes=st.none() | st.lists(st.binary(max_size=40), max_size=2),
    behind=st.binary(max_size=20),
)
def test_what_the_expression_takes_is_a_header_with_these_numbers(
    numbers: list[int], check_sum: int | None, extremes: list[bytes] | None, behind: bytes
) -> None:
    size, compressed, count, encoding, levels, repeated = map(varint, numbers)
    header = b"\x15\x00\x15" + size + b"\x15" + compressed
    header += b"\x2c" if check_sum is None else b"\x15" + varint(check_sum) + b"\x1c"
    header += b"".join(b"\x15" + one for one in (count, encoding, levels, repeated))
    if extremes is not None:
        header += b"\x1c" + b"".join(b"\x18" + bytes([len(one)]) + one for one in extremes)
        header += b"\x16\x04\x11\x00"
    header += b"\x00\x00"
    fields, length = read_struct(header + behind, 0, ReadBudget())
    found = pages._USUAL.match(header + behind)
    if any(len(one) > 32 for one in extremes or ()):
        assert found is None
        return
    assert found is not None
    assert found.end() == length == len(header)
    assert tuple(map(pages._zigzag_number, found.groups())) == pages._page_of(fields)[1:]


USUAL = b"\x15\x00" + b"".join(b"\x15" + varint(size) for size in (900, 400)) + b"\x2c"
USUAL += b"".join(b"\x15" + varint(value) for value in (100, 0, 3, 3)) + b"\x00\x00"


@pytest.mark.parametrize("place", range(len(USUAL)))
def test_a_header_with_another_byte_is_read_alike_or_left_to_the_reader_of_any(place: int) -> None:
    agree = 0
    for value in range(256):
        header = USUAL[:place] + bytes([value]) + USUAL[place + 1 :] + USUAL
        found = pages._USUAL.match(header)
        if found is not None:
            assert read_struct(header, 0, ReadBudget())[1] == found.end()
            agree += 1
    assert agree >= 1
