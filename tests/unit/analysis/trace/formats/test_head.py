from __future__ import annotations

import gzip
import tracemalloc
from typing import TYPE_CHECKING

import pytest
import zstandard

from app.analysis.trace.formats.head import COMPRESSIONS, Compression, head_of

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
