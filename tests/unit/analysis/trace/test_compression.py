"""Compressed text is decompressed only while it is a valid recording."""

from __future__ import annotations

import gzip
from typing import TYPE_CHECKING

import pytest
import zstandard

from app.analysis.synthesis.job import JobModel
from app.analysis.synthesis.synthesize import synthesize
from app.analysis.trace.compression import read_text
from app.analysis.trace.encode import to_ndjson_gz
from app.analysis.trace.limits import MAX_RATIO, MIB, UNJUDGED_BYTES, Limits
from app.analysis.trace.model import Sizes
from app.errors import BodyTooLargeError, InvalidTraceError

if TYPE_CHECKING:
    from collections.abc import Callable

# The same valid line repeatedly, so that the body is not refused before its end.
LINES = (
    b'{"rank":0,"dp":0,"pp":0,"step":1,"op":"forward-compute","start_ns":0,"dur_ns":1}\n' * 200_000
)
MEMBERS = 32


def compressors() -> dict[str, Callable[[bytes], bytes]]:
    return {
        "zstd": zstandard.ZstdCompressor().compress,
        "gzip": lambda text: gzip.compress(text, 9),
    }


def read_on(body: bytes) -> tuple[int, str | None]:
    """Read a body; return the number of decompressed bytes, and the code of its refusal."""
    read = 0
    try:
        for piece in read_text(body, Limits()):
            read += len(piece)
    except InvalidTraceError as error:
        return read, error.stable_code
    return read, None


@pytest.mark.parametrize("outer", ["zstd", "gzip"])
@pytest.mark.parametrize("inner", ["zstd", "gzip"])
def test_a_text_that_is_compressed_twice_is_read(outer: str, inner: str) -> None:
    text = LINES[: 3 * MIB]
    body = compressors()[outer](compressors()[inner](text))
    assert b"".join(read_text(body, Limits())) == text


def test_a_bomb_in_a_compressed_text_is_none() -> None:
    body = gzip.compress(gzip.compress(bytes(64 * MIB), 9), 9)
    read, refusal = read_on(body)
    assert refusal == "trace.decompression_bomb"
    assert read <= UNJUDGED_BYTES
    assert read_on(gzip.compress(gzip.compress(LINES[:1000])[:-9]))[1] == "trace.truncated"


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-8-sig"])
@pytest.mark.parametrize("compress", [bytes, gzip.compress])
def test_a_text_with_a_byte_order_mark_becomes_utf_8(
    encoding: str, compress: Callable[[bytes], bytes]
) -> None:
    text = '{"name": "Änderung 𝄞"}\r\n' * 100_000
    mark = "\ufeff" if encoding.endswith(("le", "be")) else ""
    body = compress((mark + text).encode(encoding))
    assert b"".join(read_text(body, Limits())) == text.encode()


def test_half_a_character_of_utf_16_is_refused() -> None:
    for body in ("a".encode("utf-16")[:3], "a\ud83dxx".encode("utf-16", "surrogatepass")):
        assert read_on(body)[1] == "trace.corrupt"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["zstd", "gzip"])
def test_decompression_of_a_bomb_ends_early(name: str) -> None:
    body = compressors()[name](LINES) * MEMBERS
    allowed = max(UNJUDGED_BYTES, MAX_RATIO * len(body))
    assert allowed < len(LINES) * MEMBERS
    read, refusal = read_on(body)
    assert refusal == "trace.decompression_bomb"
    assert read <= allowed


def test_32_kilobytes_are_no_more_than_32_mebibytes() -> None:
    body = zstandard.ZstdCompressor(level=19).compress(bytes(32 * MIB)) * 32
    assert len(body) <= 128 * 1024
    read, refusal = read_on(body)
    assert refusal == "trace.decompression_bomb"
    assert read <= 32 * MIB


def test_the_limit_of_the_installation_comes_first_where_it_is_lower() -> None:
    body = compressors()["zstd"](LINES)
    with pytest.raises(BodyTooLargeError):
        list(read_text(body, Limits(max_decompressed_bytes=MIB)))


@pytest.mark.slow
def test_recorded_text_is_far_from_the_ratio() -> None:
    job = JobModel(Sizes(dp=4, pp=4), microbatches=8, steps=40)
    text = gzip.decompress(to_ndjson_gz(synthesize(job, seed=1).trace))
    smallest = zstandard.ZstdCompressor(level=19).compress(text)
    assert len(text) / len(smallest) < MAX_RATIO / 4
