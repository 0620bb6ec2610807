from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from app.analysis.trace.recordings.profiler.scan import PackedTable

INTEGERS = st.integers(min_value=-(1 << 63), max_value=(1 << 63) - 1)


def whole(table: PackedTable, *columns: int) -> list[list[int]]:
    blocks = list(table.read(*columns))
    return [np.concatenate([block[at] for block in blocks]).tolist() for at in range(len(columns))]


@given(st.lists(INTEGERS, min_size=1, max_size=40), st.integers(min_value=1, max_value=9))
def test_packed_rows_are_unpacked_unchanged(values: list[int], block_rows: int) -> None:
    table = PackedTable(2, block_rows=block_rows)
    for number, value in enumerate(values):
        table.add(value, number)

    assert len(table) == len(values)
    assert whole(table, 1, 0) == [list(range(len(values))), values]


def test_rows_that_follow_one_another_take_few_bytes() -> None:
    table = PackedTable(3, block_rows=500)
    rows = 2000
    for number in range(rows):
        table.add(1_790_857_026_000_000_000 + 1_000_003 * number, number, -1)

    assert sum(packed.steps.nbytes for block in table._blocks for packed in block) < rows * (
        4 + 1 + 1
    )
    assert whole(table, 2) == [[-1] * rows]


def test_a_table_that_is_read_goes_on() -> None:
    table = PackedTable(1)
    table.add(7)
    assert whole(table, 0) == [[7]]
    table.add(8)
    assert whole(table, 0) == [[7, 8]]
