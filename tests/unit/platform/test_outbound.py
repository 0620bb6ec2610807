"""The times at which a delivery is repeated, and at which it is given up."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.platform.outbound import DELAYS_S, GIVE_UP_AFTER, JITTER, wait_before

NEW = timedelta(0)


@pytest.mark.parametrize(
    ("attempt", "wait_s"), [(2, 5), (3, 60), (4, 300), (5, 1800), (6, 7200), (7, 7200), (50, 7200)]
)
def test_waits_grow_up_to_two_hours(attempt: int, wait_s: float) -> None:
    assert wait_before(attempt, 0.5, NEW, None) == timedelta(seconds=wait_s)


@given(attempt=st.integers(2, 100), jitter=st.floats(0, 1))
def test_retries_of_simultaneous_failures_are_spread(attempt: int, jitter: float) -> None:
    base_s = DELAYS_S[min(attempt, len(DELAYS_S)) - 1]
    wait = wait_before(attempt, jitter, NEW, None)
    assert wait is not None
    assert abs(wait.total_seconds() - base_s) <= JITTER * base_s + 1e-5
    spread = [wait_before(attempt, edge, NEW, None) for edge in (0.0, 1.0)]
    assert spread[0] != spread[1]


def test_of_the_receivers_wish_and_ours_the_longer_counts() -> None:
    assert wait_before(2, 0.5, NEW, 17.0) == timedelta(seconds=17)
    assert wait_before(4, 0.5, NEW, 17.0) == timedelta(minutes=5)


def test_after_a_day_it_is_given_up() -> None:
    assert wait_before(9, 0.5, GIVE_UP_AFTER - timedelta(hours=1), None) is None
    assert wait_before(9, 0.5, GIVE_UP_AFTER - timedelta(hours=3), None) == timedelta(hours=2)
