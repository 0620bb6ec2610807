"""Groups, and the times that their ranks would take without the plan in force."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.analysis.mitigation.tensor.group import Costs, Group, Shares, without_plan
from app.analysis.mitigation.tensor.methods import fill, migrate, resize, semi
from app.analysis.mitigation.tensor.prediction import predicted_s

RANK = st.tuples(st.floats(0.1, 10.0), st.floats(0.05, 1.0))


def group_of(ranks: list[tuple[float, float]], columns: int = 64) -> Group:
    time_s = np.array([time for time, _ in ranks])
    return Group(time_s, time_s * np.array([share for _, share in ranks]), columns)


def test_stragglers_are_over_a_tenth_slower_than_the_fastest_slowest_first() -> None:
    time_s = np.array([1.2, 1.0, 1.1, 3.0])
    assert Group(time_s, time_s, 8).stragglers.tolist() == [3, 0]


def test_a_unit_is_several_columns() -> None:
    group = Group(np.array([2.0, 1.0]), np.array([1.6, 0.8]), columns=128, unit=16)
    assert group.units == 8
    assert group.unit_s.tolist() == pytest.approx([0.2, 0.1])
    assert group.fixed_s.tolist() == pytest.approx([0.4, 0.2])


def test_absorbed_columns_are_no_slowness() -> None:
    shares = Shares(np.array([2, 0]), np.array([[0, 4], [0, 0]]))
    group = without_plan(np.array([1.2, 1.7]), np.array([1.0, 1.5]), 8, shares)
    assert group.matmul_s.tolist() == pytest.approx([4.0, 1.0])
    assert group.time_s.tolist() == pytest.approx([4.2, 1.2])


def test_what_ranks_computed_indeed_goes_before_what_the_plan_says() -> None:
    shares = Shares(np.array([2, 0]), np.zeros((2, 2), dtype=np.int64))
    computed = np.array([0.5, 1.0])
    group = without_plan(np.array([1.2, 1.2]), np.array([1.0, 1.0]), 8, shares, 1, computed)
    assert group.time_s.tolist() == pytest.approx([2.2, 1.2])


@given(st.lists(RANK, min_size=2, max_size=8), st.integers(0, 3))
def test_what_was_predicted_under_a_plan_leads_back_to_the_group(
    ranks: list[tuple[float, float]], which: int
) -> None:
    group = group_of(ranks)
    shares = (
        resize(group, group.fastest_s), migrate(group), semi(group, Costs()), fill(group, Costs())
    )[which]  # fmt: skip
    under_s = predicted_s(group, shares, Costs())

    found = without_plan(under_s, under_s - group.fixed_s, group.columns, shares)
    assert found.time_s.tolist() == pytest.approx(group.time_s.tolist())
    assert found.matmul_s.tolist() == pytest.approx(group.matmul_s.tolist())
