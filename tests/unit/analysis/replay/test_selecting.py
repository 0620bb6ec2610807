"""Values at a place of the sorted order, against sorting."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.analysis.loops import frozen
from app.analysis.replay import selecting
from app.analysis.replay.engine.executor import warm_up
from app.analysis.replay.medians import median
from tests.support.nightly import drawn

seeds = st.integers(min_value=0, max_value=2**32 - 1)


@pytest.mark.slow
@drawn(200)
@given(
    seeds,
    st.integers(2, 400),
    st.integers(1, 40),
    st.sampled_from(["float32", "float64"]),
    st.sampled_from([2, 9, 10_000]),
    st.floats(0, 1),
)
def test_columns_have_at_a_place_what_sorting_brings_there(  # noqa: PLR0917
    seed: int,
    rows: int,
    columns: int,
    kind: str,
    different: int,
    part: float,
) -> None:
    rng = np.random.default_rng(seed)
    values = rng.integers(-different, different, (rows, columns)).astype(kind)
    place = 1 + round(part * (rows - 2))
    given_values = values.copy()
    before, at = np.empty((2, columns), dtype=kind)

    selecting.select_columns(values, place, before, at)

    in_order = np.sort(values, axis=0)
    assert np.array_equal(before, in_order[place - 1])
    assert np.array_equal(at, in_order[place])
    assert np.array_equal(values, given_values)


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_what_lies_between_is_taken_in_order_and_what_is_less_counted(
    kind: type[np.floating[Any]],
) -> None:
    values = np.random.default_rng(7).integers(0, 9, 500).astype(kind)
    low, high = kind(3), kind(5)
    out = np.empty(500, dtype=kind)

    count, less = selecting.take_between(frozen(values), low, high, out)

    assert np.array_equal(out[:count], values[(values >= low) & (values <= high)])
    assert less == (values < low).sum()


def test_loops_are_compiled_for_what_warming_up_runs() -> None:
    selecting.warm_up()

    kinds = len({np.float32, np.float64})
    assert len(selecting.select_columns.signatures) == kinds  # type: ignore[attr-defined]
    assert len(selecting.take_between.signatures) == kinds  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize("count", [50_000, 50_001])
def test_medians_of_very_many_values_are_those_of_numpy(
    count: int, kind: type[np.floating[Any]]
) -> None:
    warm_up()
    values = np.random.default_rng(count).lognormal(size=count).astype(kind)
    alike = np.where(values > 1, kind(2), values)

    assert median(values) == np.median(values)
    assert median(alike) == np.median(alike)


@pytest.mark.parametrize("rows", [2_000, 2_001])
def test_medians_of_long_columns_are_those_of_numpy(rows: int) -> None:
    warm_up()
    values = np.random.default_rng(rows).lognormal(size=(3, rows, 5)).swapaxes(0, 1)

    assert np.array_equal(median(values), np.median(values, axis=0))
