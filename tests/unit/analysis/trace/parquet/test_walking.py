"""The compiled walk over page headers against its twin: also where bytes are damaged."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.analysis.trace.limits import Limits
from app.analysis.trace.parquet import pages, walking
from app.analysis.trace.parquet.footer import ColumnChunk, read_footer
from app.analysis.trace.parquet.thrift import ThriftError
from tests.support.nightly import drawn
from tests.unit.analysis.trace import bodies

# As the reader of pages takes them for damage.
DAMAGE = (ThriftError, IndexError, KeyError, TypeError, AttributeError)
OPTIONS: list[dict[str, Any]] = [
    {},
    {"data_page_version": "2.0"},
    {"data_page_size": 64, "write_batch_size": 4},
    {"data_page_size": 64, "write_batch_size": 4, "write_page_checksum": True},
    {"use_dictionary": False, "write_statistics": False},
]
# Ends, kinds of fields with and without their number, and lengths that go on.
LIKELY = (0, 1, 2, 5, 8, 12, 0x15, 0x18, 0x1C, 0x7F, 0x80, 0xFF)
seeds = st.integers(min_value=0, max_value=2**32 - 1)


@cache
def chunks_of(number: int) -> tuple[bytes, tuple[ColumnChunk, ...]]:
    body = bodies.parquet(bodies.published_table(), **OPTIONS[number])
    return body, read_footer(pa.BufferReader(body), Limits()).chunks


def seen_of(walk: Iterator[tuple[int, ...]], chunk: ColumnChunk) -> list[object]:
    """Return the facts of pages as long as they are within the column, or how it ends."""
    seen: list[object] = []
    position = chunk.start
    try:
        while position < chunk.end:
            facts = next(walk)
            seen.append(facts)
            if min(facts) < 0:
                break
            position += facts[2] + facts[5]
    except DAMAGE as error:
        seen.append((type(error), str(error)))
    return seen


@pytest.mark.parametrize("number", range(len(OPTIONS)))
@pytest.mark.parametrize("window", [40, 1 << 20])
def test_pages_are_those_that_the_twin_reads(
    number: int, window: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "_WINDOW_BYTES", window)
    body, chunks = chunks_of(number)
    for chunk in chunks:
        twin = seen_of(pages._one_by_one(pa.BufferReader(body), chunk), chunk)
        assert seen_of(pages._walk(pa.BufferReader(body), chunk), chunk) == twin


@pytest.mark.slow
@drawn(600)
@given(seeds, st.integers(0, len(OPTIONS) - 1))
def test_damage_is_told_alike(seed: int, number: int) -> None:
    rng = np.random.default_rng(seed)
    body, chunks = chunks_of(number)
    chunk = chunks[int(rng.integers(len(chunks)))]
    damaged = bytearray(body)
    for _ in range(int(rng.integers(1, 4))):
        place = chunk.start + int(rng.integers(min(60, chunk.end - chunk.start)))
        damaged[place] = int(rng.choice([*LIKELY, int(rng.integers(256))]))

    twin = seen_of(pages._one_by_one(pa.BufferReader(bytes(damaged)), chunk), chunk)

    assert seen_of(pages._walk(pa.BufferReader(bytes(damaged)), chunk), chunk) == twin


def test_headers_as_written_need_no_other_reader() -> None:
    body, chunks = chunks_of(0)
    facts = np.empty((9, walking.FACTS), np.int64)
    for chunk in chunks:
        data = np.frombuffer(body[chunk.start : chunk.end], np.uint8)
        assert walking.walk_pages(data, facts) > 0


def test_the_loop_is_compiled_for_what_warming_up_runs() -> None:
    walking.warm_up()

    assert len(walking.walk_pages.signatures) == 1  # type: ignore[attr-defined]
