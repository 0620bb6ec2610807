from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING

import pytest
import zstandard

from app.analysis.trace.decode import decode, recognize
from app.analysis.trace.encode import to_arrow, to_ndjson_gz
from app.analysis.trace.limits import Limits
from app.analysis.trace.storage import is_stored_as_received, pack, read_stored
from app.errors import BodyTooLargeError, InvalidTraceError
from tests.unit.analysis.trace import bodies
from tests.unit.analysis.trace.bodies import META

if TYPE_CHECKING:
    from collections.abc import Callable

PARQUET = bodies.parquet(bodies.native_table())
TRACE = bodies.decoded(PARQUET)
LINES = gzip.decompress(to_ndjson_gz(TRACE))
KEPT = {
    "parquet": PARQUET,
    "published": bodies.parquet(bodies.published_table()),
    "gzip": gzip.compress(LINES),
    "zstd": zstandard.compress(LINES),
}


def kept(body: bytes) -> bool:
    return is_stored_as_received(recognize(body, limits=Limits()), body[:4])


@pytest.mark.parametrize("body", KEPT.values(), ids=KEPT)
def test_a_body_that_is_kept_is_decoded_as_it_was_when_it_came(body: bytes) -> None:
    assert kept(body)
    parts = (body[start : start + 100] for start in range(0, len(body), 100))
    bodies.assert_same(read_stored(parts, META), decode(body, META, limits=Limits()).trace)


def test_packed_bytes_are_read_too() -> None:
    bodies.assert_same(read_stored(pack(TRACE), META), TRACE)


@pytest.mark.parametrize(
    "encode",
    [
        lambda: LINES,
        lambda: to_arrow(TRACE),
        # a recording of another program
        lambda: gzip.compress(json.dumps({"traceEvents": [{"ph": "X"}]}).encode()),
    ],
    ids=["plain", "arrow", "recording"],
)
def test_bodies_that_are_large_or_not_ours_are_not_kept(
    encode: Callable[[], bytes],
) -> None:
    assert not kept(encode())


def test_limits_that_were_lowered_do_not_take_a_session_away() -> None:
    body = to_ndjson_gz(TRACE)
    few = Limits(max_decompressed_bytes=10, max_rows=1, max_header_bytes=1)
    with pytest.raises(BodyTooLargeError):
        decode(body, META, limits=few)
    assert len(read_stored([body], META)) == len(TRACE)


def test_bytes_that_are_damaged_are_refused() -> None:
    with pytest.raises(InvalidTraceError) as raised:
        read_stored([PARQUET[:-20]], META)
    assert raised.value.stable_code in {"trace.corrupt", "trace.truncated"}
