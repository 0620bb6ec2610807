from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from app.analysis.replay.layout.dense import FloatArray
from app.analysis.replay.robust_statistics import _SORTED, median, peers_median, quantile, quantiles


def test_peers_are_the_others() -> None:
    assert peers_median(np.array([1.0, 2.0, 9.0])).tolist() == [5.5, 5.0, 1.5]
    assert peers_median(np.array([1.0, 3.0])).tolist() == [3.0, 1.0]
    assert peers_median(np.array([4.0])).tolist() == [4.0]


@settings(deadline=None)
@given(
    arrays(np.float64, st.tuples(st.integers(1, 3), st.integers(2, 9)), elements=st.floats(0, 9))
)
def test_each_one_has_the_median_of_all_others(values: FloatArray) -> None:
    found = peers_median(values)

    for lane in range(values.shape[-1]):
        others = np.delete(values, lane, axis=-1)
        assert np.array_equal(found[:, lane], np.median(others, axis=-1))


@settings(deadline=None)
@given(
    arrays(
        st.sampled_from([np.float32, np.float64]),
        st.tuples(st.integers(1, 40), st.integers(1, 3)),
        elements=st.floats(-9, 9, width=32),
    )
)
def test_medians_are_those_of_numpy_to_the_bit(values: NDArray[np.float64]) -> None:
    assert np.array_equal(median(values), np.median(values, axis=0))


@settings(deadline=None)
@given(
    arrays(
        st.sampled_from([np.float32, np.float64]),
        st.tuples(st.integers(1, 40) | st.just(_SORTED + 2), st.integers(1, 2)),
        elements=st.floats(-9, 9, width=32),
        fill=st.floats(-9, 9, width=32),
    ),
    st.lists(st.floats(0, 1), min_size=1, max_size=3),
)
def test_quantiles_are_those_of_numpy_to_the_bit(
    values: NDArray[np.float64], shares: list[float]
) -> None:
    assert np.array_equal(quantiles(values, shares), np.quantile(values, shares, axis=0))
    assert np.array_equal(quantile(values, 0.25), np.quantile(values, 0.25, axis=0))


@settings(deadline=None, max_examples=20)
@given(
    seed=st.integers(0, 2**32 - 1),
    count=st.integers(_SORTED - 1, 2 * _SORTED) | st.integers(50_000, 50_001),
    kind=st.sampled_from([np.float32, np.float64]),
    values=st.sampled_from(["normal", "few", "sorted"]),
)
def test_medians_of_more_are_those_of_numpy_to_the_bit(
    seed: int, count: int, kind: type[np.floating[Any]], values: str
) -> None:
    drawn = np.random.default_rng(seed).lognormal(sigma=2.0, size=count).astype(kind)
    if values == "few":
        drawn = np.round(drawn)
    elif values == "sorted":
        drawn.sort()

    columns = np.stack([drawn, drawn[::-1] + 1], axis=1)
    assert np.array_equal(median(drawn), np.median(drawn))
    assert np.array_equal(median(columns), np.median(columns, axis=0))
    lanes = columns.reshape(-1, 1, 2).swapaxes(1, 2)
    assert np.array_equal(median(lanes), np.median(lanes, axis=0))
