from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.analysis.loops import cut, in_threads


@given(st.integers(0, 200), st.integers(1, 4), st.integers(1, 50))
def test_parts_are_all_of_it_in_whole_units(count: int, threads: int, unit: int) -> None:
    parts = cut(count, threads, unit)

    assert [number for part in parts for number in range(count)[part]] == list(range(count))
    assert all(part.start % unit == 0 and part.start < part.stop for part in parts)


@pytest.mark.parametrize("threads", [1, 3])
def test_results_are_in_the_order_of_the_parts(threads: int) -> None:
    assert in_threads(threads, lambda part: part * part, range(20)) == [n * n for n in range(20)]


@pytest.mark.parametrize("threads", [1, 3])
def test_an_exception_of_a_part_is_raised(threads: int) -> None:
    def divide(part: int) -> float:
        return 1 / part

    with pytest.raises(ZeroDivisionError):
        in_threads(threads, divide, [3, 2, 1, 0])
