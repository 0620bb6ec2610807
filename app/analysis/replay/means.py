"""Means, for which NumPy's own spend most of their time on finding out how they are called."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]


def mean(values: FloatArray) -> float:
    """Return the mean of all values.

    Examples
    --------
    >>> mean(np.array([1.0, 2.0, 6.0]))
    3.0
    """
    return float(values.sum() / values.size)


def means(values: FloatArray | BoolArray, *, axis: int) -> FloatArray:
    """Return the means over one axis.

    Examples
    --------
    >>> means(np.array([[1.0, 2.0], [3.0, 6.0]]), axis=0).tolist()
    [2.0, 4.0]
    """
    return np.asarray(values.sum(axis=axis) / values.shape[axis])


def share_of(holds: BoolArray) -> float:
    """Return the share of cases in which something holds.

    Examples
    --------
    >>> share_of(np.array([True, False, True, True]))
    0.75
    """
    return np.count_nonzero(holds) / holds.size
