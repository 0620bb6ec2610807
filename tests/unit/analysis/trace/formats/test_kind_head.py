from __future__ import annotations

import codecs
import gzip
import tracemalloc
from typing import TYPE_CHECKING

import numpy as np
import pytest
import zstandard

from app.analysis.trace.formats.kind import COMPRESSIONS, Compression, head_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

TEXT = b'{"schema": "paceline.trace/1"}\n' * 1000


def zstd(text: bytes) -> bytes:
    return zstandard.ZstdCompressor().compress(text)


@pytest.mark.parametrize("compress", [bytes, gzip.compress, zstd])
def test_the_text_is_read_through_its_compression(
    compress: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    body = compress(TEXT)
    path = tmp_path / "body"
    path.write_bytes(body)

    for head in (head_of(body), head_of(path)):
        assert head.start == body[: len(head.start)]
        assert head.text == TEXT[: len(head.text)]
        assert 64 < len(head.text) <= 4096
        assert head.compressed == (body != TEXT)


@pytest.mark.parametrize("known", COMPRESSIONS, ids=lambda known: known.suffix)
def test_damaged_compression_has_no_text(known: Compression) -> None:
    head = head_of(known.magic + b"\xff" * 200)

    assert head.compressed
    assert head.text == b""


def digits(count: int) -> bytes:
    """Return text whose first compressed kilobytes contain no whole block."""
    return np.random.default_rng(7).bytes(count // 2).hex().encode()


@pytest.mark.parametrize("level", [1, 3, 9, 19])
def test_a_block_of_zstd_may_be_longer_than_the_bytes_that_are_looked_at(level: int) -> None:
    text = b'{"schemaVersion": 1, "a": "' + digits(200_000)
    body = zstandard.ZstdCompressor(level=level).compress(text)
    assert len(body) > 50_000

    assert head_of(body).text == text[:4096]
    assert head_of(body).has_field("schemaVersion")


@pytest.mark.parametrize("compress", [gzip.compress, zstd])
def test_members_are_one_text(compress: Callable[[bytes], bytes]) -> None:
    body = compress(b"") + compress(b'{"schema') + compress(b'Version": 1,') + compress(b'"b": 2}')
    head = head_of(body)

    assert head.text == b'{"schemaVersion": 1,"b": 2}'
    assert head.has_field("b")


@pytest.mark.parametrize("compress", [bytes, gzip.compress, zstd])
def test_a_byte_order_mark_is_no_text(compress: Callable[[bytes], bytes]) -> None:
    head = head_of(compress(codecs.BOM_UTF8 + b'{"a": 1}'))
    assert head.text == b'{"a": 1}'
    assert head.has_field("a")

    for mark, encoding in (("", "utf-16"), ("\ufeff", "utf-16-be"), ("\ufeff", "utf-16-le")):
        head = head_of(compress(f'{mark}{{"ä": 1}}'.encode(encoding)))
        assert head.text == '{"ä": 1}'.encode()
        assert head.has_field("ä")


@pytest.mark.parametrize("inner", [gzip.compress, zstd])
@pytest.mark.parametrize("outer", [gzip.compress, zstd])
def test_a_text_that_is_compressed_twice_is_a_text(
    inner: Callable[[bytes], bytes], outer: Callable[[bytes], bytes]
) -> None:
    assert head_of(outer(inner(TEXT))).text == TEXT[:4096]


def test_members_without_end_are_not_all_looked_at() -> None:
    empty = gzip.compress(b"", mtime=0)
    head = head_of(empty * (2 * (1 << 20) // len(empty)) + gzip.compress(TEXT))
    assert head.text == b""


@pytest.mark.slow
@pytest.mark.parametrize("compress", [gzip.compress, zstd])
def test_a_bomb_is_not_unfolded(compress: Callable[[bytes], bytes]) -> None:
    body = compress(bytes(64 << 20))
    tracemalloc.start()
    try:
        assert len(head_of(body).text) <= 4096
        assert tracemalloc.get_traced_memory()[1] < 32 << 20
    finally:
        tracemalloc.stop()
