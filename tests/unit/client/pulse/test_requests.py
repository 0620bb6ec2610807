"""The budget of sessions that notices may request."""

from __future__ import annotations

import pytest

from paceline_client.pulse.requests import BudgetUse, RecordBudget


def test_two_percent_of_the_steps_and_one_an_hour_are_recorded() -> None:
    requests = BudgetUse(RecordBudget())
    # A young job may record its first session, too.
    assert requests.has_room(150, 0.0)
    requests.count(50, 0.0)
    assert not requests.has_room(6000, 3599.0)
    assert not requests.has_room(2499, 3600.0)
    assert requests.has_room(2500, 3600.0)
    requests.count(50, 3600.0)
    assert not requests.has_room(4999, 9999.0)
    assert requests.has_room(5000, 9999.0)


def test_tests_and_demos_have_a_budget_of_their_own() -> None:
    requests = BudgetUse(RecordBudget(share=1.0, every_s=0.0))
    requests.count(5, 0.0)
    assert not requests.has_room(4, 0.0)
    assert requests.has_room(5, 0.0)


def test_a_share_of_nothing_is_none() -> None:
    assert not BudgetUse(RecordBudget(share=0.0)).has_room(10**9, 0.0)


@pytest.mark.parametrize(("share", "every_s"), [(2.0, 1.0), (-0.1, 1.0), (0.1, -1.0)])
def test_an_invalid_budget_is_refused(share: float, every_s: float) -> None:
    with pytest.raises(ValueError, match="a share from 0 to 1"):
        RecordBudget(share, every_s)
