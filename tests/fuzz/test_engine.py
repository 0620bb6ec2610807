"""No trace makes the engine raise anything but a domain error with a code and a position."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.fuzz.engine import DAMAGES, bases, damaged, outcome

# The nightly target runs 100,000 (python -m tests.fuzz.nightly).
CASES = 400


@pytest.mark.parametrize("part", range(4))
def test_damaged_traces_are_analyzed_or_refused(part: int) -> None:
    found = Counter(outcome(damaged(seed)) for seed in range(part, CASES, 4))
    # neither are all refused, nor is damage overlooked
    assert found["analyzed"] > 10
    assert len(found) > 3


def test_undamaged_traces_are_analyzed() -> None:
    assert {outcome(trace) for trace in bases()} == {"analyzed"}


def test_the_same_seed_damages_the_same() -> None:
    one, other = damaged(5), damaged(5)
    assert (one.start_ns == other.start_ns).all()
    assert len({damage.__name__ for damage in DAMAGES}) == 15
