"""The budget of sessions that notices may request."""

from __future__ import annotations

import pytest

from paceline_client.pulse.requests import BudgetUse, RecordBudget, RecordRequest


def of_notice(steps: int = 50) -> RecordRequest:
    """Return a request that a notice made."""
    return RecordRequest(steps, "slow", by_person=False)


def test_two_percent_of_the_steps_and_one_an_hour_are_recorded() -> None:
    requests = BudgetUse(RecordBudget())
    # A young job may record its first session, too.
    assert requests.has_room(of_notice(), 150, 0.0)
    requests.count(of_notice(), 0.0)
    assert not requests.has_room(of_notice(), 6000, 3599.0)
    assert not requests.has_room(of_notice(), 2499, 3600.0)
    assert requests.has_room(of_notice(), 2500, 3600.0)
    requests.count(of_notice(), 3600.0)
    assert not requests.has_room(of_notice(), 4999, 9999.0)
    assert requests.has_room(of_notice(), 5000, 9999.0)


def test_tests_and_demos_have_a_budget_of_their_own() -> None:
    requests = BudgetUse(RecordBudget(share=1.0, every_s=0.0))
    requests.count(of_notice(5), 0.0)
    assert not requests.has_room(of_notice(), 4, 0.0)
    assert requests.has_room(of_notice(), 5, 0.0)


def test_a_share_of_nothing_is_none() -> None:
    assert not BudgetUse(RecordBudget(share=0.0)).has_room(of_notice(), 10**9, 0.0)


def test_one_session_of_every_rank_is_outside_of_the_budget() -> None:
    requests = BudgetUse(RecordBudget())
    requests.count(of_notice(), 0.0)
    sharper = RecordRequest(50, "which rank", by_person=False, every_rank=True)
    assert requests.has_room(sharper, 60, 1.0)
    requests.count(sharper, 1.0)
    assert not requests.has_room(sharper, 61, 2.0)
    assert requests.has_room(RecordRequest(50, "Ada", by_person=True), 61, 2.0)
    # It leaves the budget of notices as it was.
    assert requests.has_room(of_notice(), 2500, 3600.0)


@pytest.mark.parametrize(("share", "every_s"), [(2.0, 1.0), (-0.1, 1.0), (0.1, -1.0)])
def test_an_invalid_budget_is_refused(share: float, every_s: float) -> None:
    with pytest.raises(ValueError, match="a share from 0 to 1"):
        RecordBudget(share, every_s)
