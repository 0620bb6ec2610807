from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from app.analysis.replay.layout.dense import FloatArray
from app.analysis.replay.means import mean, means, share_of


@given(arrays(np.float64, st.tuples(*[st.integers(1, 40)] * 2), elements=st.floats(-9, 9)))
def test_means_are_those_of_numpy_to_the_bit(values: FloatArray) -> None:
    assert mean(values) == values.mean()
    for axis in range(values.ndim):
        assert np.array_equal(means(values, axis=axis), values.mean(axis=axis))
        assert np.array_equal(means(values > 0, axis=axis), (values > 0).mean(axis=axis))
    assert share_of(values > 0) == (values > 0).mean()
