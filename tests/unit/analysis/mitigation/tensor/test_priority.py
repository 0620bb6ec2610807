"""Which columns are left out: Algorithm 1."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.analysis.mitigation.tensor.priority import (
    DECAY,
    kept_at_random,
    kept_columns,
    layer_ratios,
    variation,
)


def test_variation_is_the_mean_absolute_change_of_a_column() -> None:
    before = np.zeros((2, 3))
    after = np.array([[1.0, -2.0, 0.0], [3.0, 0.0, 0.0]])
    assert variation(after, before, np.array([], dtype=int), np.zeros(3)).tolist() == [2, 1, 0]


def test_pruned_columns_keep_what_was_known_of_them() -> None:
    """Else their zero gradients would prune them for good."""
    before, after = np.zeros((1, 3)), np.array([[0.0, 5.0, 7.0]])
    found = variation(after, before, np.array([0]), np.array([9.0, 8.0, 1.0]))
    assert found.tolist() == [9.0, 5.0, 7.0]


def test_columns_of_small_variation_go_first() -> None:
    assert kept_columns(np.array([5.0, 1.0, 4.0, 0.5]), 0.5).tolist() == [0, 2]


def test_a_layer_that_changes_little_gives_more() -> None:
    calm, lively = np.linspace(0, 1, 100), np.linspace(2, 3, 100)
    ratios = layer_ratios([calm, lively], 0.4)
    assert ratios[1] == pytest.approx(DECAY * 0.4)
    assert ratios[0] == pytest.approx(0.8 - DECAY * 0.4)


def test_a_threshold_of_one_s_own_counts_candidates() -> None:
    ratios = layer_ratios([np.array([0.0, 1, 2, 3]), np.array([0.0, 0, 0, 3])], 0.5, threshold=1.5)
    assert ratios.tolist() == pytest.approx([0.4, 0.6])


@given(
    st.lists(st.lists(st.floats(0, 1), min_size=4, max_size=30), min_size=1, max_size=6),
    st.floats(0.0, 1.0),
)
def test_layers_have_the_wanted_mean_and_none_less_than_its_share(
    layers: list[list[float]], ratio: float
) -> None:
    ratios = layer_ratios([np.array(layer) for layer in layers], ratio)
    assert ratios.mean() == pytest.approx(ratio, abs=1e-9)
    assert ratios.min() >= DECAY * ratio
    assert ratios.max() <= 1


def test_random_columns_are_ascending_and_as_many() -> None:
    kept = kept_at_random(100, 0.25, np.random.default_rng(0))
    assert len(kept) == 75
    assert (np.diff(kept) > 0).all()
    assert kept.tolist() != list(range(75))
