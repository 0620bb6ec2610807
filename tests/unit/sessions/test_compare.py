"""The ranks that others waited for, before and after."""

from __future__ import annotations

import pytest

from app.analysis.arrivals.build import arrivals_of
from app.analysis.arrivals.document import Arrivals
from app.analysis.synthesis.injections.computations import SlowWorker
from app.sessions.compare import arrival_changes
from tests.factories import session


def _arrivals(*slow: SlowWorker) -> Arrivals:
    found = arrivals_of(session(*slow, dp=4, pp=1, steps=4).trace).arrivals
    assert found is not None
    return found


def test_the_rank_that_was_replaced_comes_first() -> None:
    before, after = _arrivals(SlowWorker((2, 0), 1.6)), _arrivals()
    first, *others = arrival_changes(before, after)
    assert first.rank == before.worst.rank
    assert first.waited_for_before_s == before.worst.waited_for_s
    assert first.change_s < -0.2
    assert (first.last_share_before or 0.0) > (first.last_share_after or 0.0)
    assert all(abs(one.change_s) < 0.01 for one in others)
    assert {one.rank for one in (first, *others)} == {0, 1, 2, 3}


def test_the_other_way_around_the_change_is_its_opposite() -> None:
    before, after = _arrivals(SlowWorker((2, 0), 1.6)), _arrivals()
    forth, back = arrival_changes(before, after)[0], arrival_changes(after, before)[0]
    assert back.rank == forth.rank
    assert back.change_s == pytest.approx(-forth.change_s)


def test_without_collectives_on_both_sides_nothing_is_compared() -> None:
    assert arrival_changes(_arrivals(), None) == ()
    assert arrival_changes(None, _arrivals()) == ()
