"""The placement of columns: slices numbered as in the paper, and optimal water levels."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.analysis.mitigation.tensor.prediction import levelled, renumbered, routed, slices
from tests.oracles.tensor_groups import soonest
from tests.support.nightly import drawn

SPEEDS = st.floats(0.01, 3.0)


def test_figure_4_of_the_paper() -> None:
    """Task 3 of three is slow: task 2 gets the second column, counted from 1 as in the paper."""
    assert [renumbered(rank, 2, 3) for rank in range(3)] == [1, 2, 0]
    assert slices(2, 2, np.array([0, 1]), 3).tolist() == [1, 1, 0]


def test_the_remainder_goes_to_the_last_in_the_sender_s_order() -> None:
    assert slices(7, 1, np.array([0, 2, 3]), 4).tolist() == [3, 0, 2, 2]


@given(st.integers(0, 500), st.integers(2, 9), st.data())
def test_slices_are_whole_and_even(count: int, ranks: int, data: st.DataObject) -> None:
    sender = data.draw(st.integers(0, ranks - 1))
    others = [rank for rank in range(ranks) if rank != sender]
    receivers = data.draw(st.lists(st.sampled_from(others), min_size=1, unique=True))

    taken = slices(count, sender, np.array(receivers), ranks)
    assert taken.sum() == count
    assert np.ptp(taken[receivers]) <= 1
    assert set(np.flatnonzero(taken)) <= set(receivers)


@given(st.lists(st.integers(-20, 20), min_size=2, max_size=8))
def test_routes_bring_everything_from_senders_to_receivers(balance: list[int]) -> None:
    amounts = np.array(balance)
    amounts[-1] -= amounts.sum()
    shed, received = np.maximum(amounts, 0), np.maximum(-amounts, 0)

    moved = routed(shed, received)
    assert moved.sum(axis=1).tolist() == shed.tolist()
    assert moved.sum(axis=0).tolist() == received.tolist()
    assert (moved > 0).sum() < len(balance)


@given(st.lists(st.tuples(SPEEDS, SPEEDS), min_size=2, max_size=3), st.integers(1, 6))
@drawn(60)
def test_no_division_in_whole_columns_ends_sooner(
    ranks: list[tuple[float, float]], columns: int
) -> None:
    fixed, unit = (np.array(part) for part in zip(*ranks, strict=True))
    units = levelled(fixed, unit, len(ranks) * columns)

    assert units.sum() == len(ranks) * columns
    assert units.min() >= 1
    best = soonest(fixed.tolist(), unit.tolist(), columns)
    assert (fixed + unit * units).max() == pytest.approx(best)


def test_levels_of_four_ranks_as_the_closed_form_has_them() -> None:
    """Σ τ/u = 4 K: with one of four ranks 8 × slower, all end at 1.28 of a healthy rank's time."""
    unit = np.array([8.0, 1.0, 1.0, 1.0])
    units = levelled(np.zeros(4), unit, 4 * 1000)
    assert units.tolist() == [160, 1280, 1280, 1280]


def test_a_rank_whose_fixed_part_is_above_the_level_keeps_the_least() -> None:
    assert levelled(np.array([100.0, 0.0, 0.0]), np.ones(3), 30).tolist() == [1, 15, 14]


@given(st.floats(1e-7, 1.0), st.integers(1, 10_000_000))
def test_levels_are_valid_when_numbers_differ_much_in_size(unit: float, columns: int) -> None:
    fixed = np.array([1e6, 0.0, 3.0, 1e-9])
    units = levelled(fixed, np.full(4, unit / columns), 4 * columns)
    assert units.sum() == 4 * columns
    assert units.min() >= 1
