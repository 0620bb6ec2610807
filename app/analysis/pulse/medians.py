"""Medians of the rows of arrays in which NaN marks missing values.

For the median of columns see `app.analysis.replay.robust_statistics.median_of_known`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from app.analysis.quantities import FloatArray, IntArray

_TWO: Final = 2


@dataclass(frozen=True, slots=True, eq=False)
class Ordered:
    """An array whose rows are sorted once, so that several medians can be computed from it.

    Parameters
    ----------
    values, ordered : float64[rows, columns]
        The values, and each row in rising order with NaN at its end.
    count : int64[rows] or None
        Number of values in each row that are not NaN; None if no value is NaN.
    """

    values: FloatArray
    ordered: FloatArray
    count: IntArray | None

    @classmethod
    def of(cls, values: FloatArray) -> Ordered:
        """Return the values together with their sorted rows."""
        ordered = np.sort(values, axis=1)
        if values.shape[1] and not np.isnan(ordered[:, -1]).any():
            return cls(values, ordered, None)
        return cls(values, ordered, np.count_nonzero(~np.isnan(ordered), axis=1))

    def median(self) -> FloatArray:
        """Return the median of each row, without NaN, float64[rows]; NaN for empty rows."""
        ordered, count, width = self.ordered, self.count, self.ordered.shape[1]
        if count is None:
            return np.asarray((ordered[:, (width - 1) // 2] + ordered[:, width // 2]) / 2)
        rows = np.arange(len(ordered))
        low, high = np.maximum(count - 1, 0) // 2, np.minimum(count // 2, width - 1)
        return np.asarray((ordered[rows, low] + ordered[rows, high]) / 2)

    def median_of_others(self) -> FloatArray:
        """Return for each value the median of the others in its row; NaN if there are none."""
        values, ordered = self.values, self.ordered
        width = values.shape[1]
        if width < _TWO:
            return np.full_like(values, np.nan)
        if self.count is None:
            half = width // 2
            center = ordered[:, half, None]
            # If a value of the lower half is left out, the median of the others is above the
            # middle; if a value of the upper half is left out, it is below the middle.
            if width % 2 == 0:
                return np.where(values < center, center, ordered[:, half - 1, None])
            below, above = ordered[:, half - 1, None], ordered[:, half + 1, None]
            return _odd(values, below, center, above)
        rows, middle = np.arange(len(values)), self.count // 2
        center = ordered[rows, np.minimum(middle, width - 1)][:, None]
        below = ordered[rows, np.maximum(middle - 1, 0)][:, None]
        above = ordered[rows, np.minimum(middle + 1, width - 1)][:, None]
        odd = (self.count % 2 == 1)[:, None]
        others = np.where(
            odd, _odd(values, below, center, above), np.where(values < center, center, below)
        )
        others[(self.count < _TWO)[:, None] | np.isnan(values)] = np.nan
        return np.asarray(others)


def median_of_rows(values: FloatArray) -> FloatArray:
    """Return the median of each row, without NaN, float64[rows]; NaN for empty rows.

    ``np.nanmedian`` is slow here: it loops over rows of more than 600 values.

    Parameters
    ----------
    values : float64[rows, columns]

    Examples
    --------
    >>> median_of_rows(np.array([[3.0, 1.0, np.nan, 2.0]]))
    array([2.])
    """
    return Ordered.of(values).median()


def median_of_others(values: FloatArray) -> FloatArray:
    """Return for each value the median of the other values in its row; NaN if there are none.

    Parameters
    ----------
    values : float64[rows, columns]

    Examples
    --------
    >>> median_of_others(np.array([[1.0, 5.0, 3.0]]))
    array([[4., 2., 3.]])
    """
    return Ordered.of(values).median_of_others()


def _odd(
    values: FloatArray, below: FloatArray, center: FloatArray, above: FloatArray
) -> FloatArray:
    """Return for each value the median of the other values, for rows of odd length."""
    higher = np.where(values > center, (below + center) / 2, (below + above) / 2)
    return np.where(values < center, (center + above) / 2, higher)
