"""Unions of intervals, compared with counting every nanosecond."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from app.analysis.arrivals.lanes import Intervals, cover, first_claims
from app.analysis.arrivals.lateness import without

LANES, SPAN = 3, 30

some = st.lists(
    st.tuples(st.integers(0, LANES - 1), st.integers(0, SPAN - 1), st.integers(0, 12)).map(
        lambda one: (one[0], one[1], min(one[1] + one[2], SPAN - 1))
    ),
    max_size=12,
)


def _intervals(given_: list[tuple[int, int, int]]) -> Intervals:
    lane, start_ns, end_ns = np.array(given_, dtype=np.int64).reshape(-1, 3).T
    return Intervals.within_lanes(lane, start_ns, end_ns, SPAN)


def _moments(given_: list[tuple[int, int, int]]) -> set[tuple[int, int]]:
    return {(lane, moment) for lane, start, end in given_ for moment in range(start, end)}


@given(some)
def test_a_cover_counts_each_moment_once(one: list[tuple[int, int, int]]) -> None:
    moments = _moments(one)
    by_lane = [sum(lane == mine for mine, _ in moments) for lane in range(LANES)]
    assert cover(_intervals(one), LANES, SPAN).by_lane().tolist() == by_lane


@given(some, some)
def test_what_is_covered_within_intervals(
    one: list[tuple[int, int, int]], other: list[tuple[int, int, int]]
) -> None:
    moments = _moments(one)
    found = cover(_intervals(one), LANES, SPAN).within(_intervals(other))
    assert found.tolist() == [len(_moments([each]) & moments) for each in other]


@given(some, some)
def test_what_one_covers_and_the_other_does_not(
    one: list[tuple[int, int, int]], other: list[tuple[int, int, int]]
) -> None:
    covers = (cover(_intervals(each), LANES, SPAN) for each in (one, other))
    left = _moments(one) - _moments(other)
    by_lane = [sum(lane == mine for mine, _ in left) for lane in range(LANES)]
    assert without(*covers).by_lane().tolist() == by_lane


@given(some)
def test_each_moment_is_claimed_by_the_interval_that_began_first(
    one: list[tuple[int, int, int]],
) -> None:
    intervals = _intervals(one)
    begins = first_claims(intervals)
    taken: set[tuple[int, int]] = set()
    order = sorted(range(len(one)), key=lambda n: (one[n][0], one[n][1], one[n][2], n))
    for number in order:
        mine = _moments([one[number]]) - taken
        taken |= mine
        assert int(intervals.end[number] - begins[number]) == len(mine)
