"""Medians of rows with missing values."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from app.analysis.pulse.medians import median_of_others, median_of_rows
from app.analysis.quantities import FloatArray
from app.analysis.replay.robust_statistics import median_of_known

SHAPES = st.tuples(st.integers(1, 3), st.integers(2, 9))
NUMBERS = st.integers(-5, 5).map(float)
# Rows without missing values are computed together.
ROWS = st.one_of(
    arrays(np.float64, SHAPES, elements=st.one_of(st.just(np.nan), NUMBERS)),
    arrays(np.float64, SHAPES, elements=NUMBERS),
)


@given(ROWS)
def test_they_are_those_of_what_is_there(values: FloatArray) -> None:
    middle, others = median_of_rows(values), median_of_others(values)

    assert np.array_equal(median_of_known(values.T), middle, equal_nan=True)
    for row, seen in enumerate(values):
        there = seen[~np.isnan(seen)]
        assert np.array_equal(median_of_known(there), middle[row], equal_nan=True)
        assert np.array_equal(
            middle[row], np.median(there) if len(there) else np.nan, equal_nan=True
        )
        for column, value in enumerate(seen):
            rest = np.delete(seen, column)
            rest = rest[~np.isnan(rest)]
            known = len(rest) and not np.isnan(value)
            expected = np.median(rest) if known else np.nan
            assert np.array_equal(others[row, column], expected, equal_nan=True)
