"""Medians of what is known."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]


def median(values: FloatArray) -> FloatArray:
    """Return the median over the first axis, without NaN; NumPy's own is slow on short arrays."""
    middle, odd = divmod(len(values), 2)
    if odd:
        return np.asarray(np.partition(values, middle, axis=0)[middle])
    in_order = np.partition(values, (middle - 1, middle), axis=0)
    return np.asarray((in_order[middle - 1] + in_order[middle]) / 2)


def median_of_known(values: FloatArray) -> FloatArray:
    """Return the median over the first axis without NaN; NaN where there is nothing."""
    if values.shape[0] == 0:
        return np.full(values.shape[1:], np.nan)
    if not np.isnan(values).any():
        return median(values)
    in_order = np.sort(values, axis=0)
    count = np.count_nonzero(~np.isnan(values), axis=0)
    low = np.maximum(count - 1, 0) // 2
    high = np.minimum(count // 2, values.shape[0] - 1)
    pick = np.take_along_axis(in_order, np.stack([low, high]), axis=0)
    return np.asarray(pick.mean(axis=0))
