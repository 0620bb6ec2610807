"""Medians of rows in which values are missing (NaN)."""

from __future__ import annotations

from typing import Final

import numpy as np

from app.analysis.pulse.columns import Float64

_TWO: Final = 2


def median_of_rows(values: Float64) -> Float64:
    """Return the median of what is there in each row; NaN where nothing is.

    ``np.nanmedian`` takes rows of more than 600 values one after the other.

    Parameters
    ----------
    values : float64[rows, columns]

    Examples
    --------
    >>> median_of_rows(np.array([[3.0, 1.0, np.nan, 2.0]]))
    array([2.])
    """
    ordered = np.sort(values, axis=1)
    count = np.count_nonzero(~np.isnan(values), axis=1)
    rows = np.arange(len(values))
    low, high = np.maximum(count - 1, 0) // 2, np.minimum(count // 2, values.shape[1] - 1)
    return np.asarray((ordered[rows, low] + ordered[rows, high]) / 2)


def median_of_others(values: Float64) -> Float64:
    """Return for each value the median of the others in its row; NaN where there is none.

    Parameters
    ----------
    values : float64[rows, columns]

    Examples
    --------
    >>> median_of_others(np.array([[1.0, 5.0, 3.0]]))
    array([[4., 2., 3.]])
    """
    width = values.shape[1]
    if width < _TWO:
        return np.full_like(values, np.nan)
    ordered = np.sort(values, axis=1)
    count = np.count_nonzero(~np.isnan(values), axis=1)
    rows, middle = np.arange(len(values)), count // 2
    center = ordered[rows, np.minimum(middle, width - 1)][:, None]
    below = ordered[rows, np.maximum(middle - 1, 0)][:, None]
    above = ordered[rows, np.minimum(middle + 1, width - 1)][:, None]
    odd = (count % 2 == 1)[:, None]
    # Without a value of the lower half the middle of the others lies higher, and the reverse.
    others = np.where(
        odd,
        np.where(
            values < center,
            (center + above) / 2,
            np.where(values > center, (below + center) / 2, (below + above) / 2),
        ),
        np.where(values < center, center, below),
    )
    others[(count < _TWO)[:, None] | np.isnan(values)] = np.nan
    return np.asarray(others)


def median_of_columns(values: Float64) -> Float64:
    """Return the median of what is there in each column; NaN where nothing is."""
    ordered = np.sort(values, axis=0)
    count = np.count_nonzero(~np.isnan(values), axis=0)
    columns = np.arange(values.shape[1])
    low, high = np.maximum(count - 1, 0) // 2, np.minimum(count // 2, len(values) - 1)
    return np.asarray((ordered[low, columns] + ordered[high, columns]) / 2)
