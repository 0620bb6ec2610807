"""Medians of the rows of arrays in which NaN marks missing values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from app.analysis.pulse.columns import Float64, Int64

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

    values: Float64
    ordered: Float64
    count: Int64 | None

    @classmethod
    def of(cls, values: Float64) -> Ordered:
        """Return the values together with their sorted rows."""
        ordered = np.sort(values, axis=1)
        return cls(values, ordered, _count(ordered))

    def median(self) -> Float64:
        """Return the median of each row, without NaN, float64[rows]; NaN for empty rows."""
        return _middle(self.ordered, self.count)

    def median_of_others(self) -> Float64:
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


def median_of_rows(values: Float64) -> Float64:
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


def median_of_others(values: Float64) -> Float64:
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


def median_of(values: Float64) -> float:
    """Return the median of the values that are not NaN; NaN if there are none."""
    if not len(values):
        return float("nan")
    ordered = np.sort(values)
    return float((ordered[(len(values) - 1) // 2] + ordered[len(values) // 2]) / 2)


def median_of_columns(values: Float64) -> Float64:
    """Return the median of each column, without NaN, float64[columns]; NaN for empty columns."""
    ordered = np.sort(values, axis=0).T
    return _middle(ordered, _count(ordered))


def _count(ordered: Float64) -> Int64 | None:
    """Return the number of values in each sorted row; None if no row has a NaN."""
    if ordered.shape[1] and not np.isnan(ordered[:, -1]).any():
        return None
    return np.asarray(np.count_nonzero(~np.isnan(ordered), axis=1))


def _middle(ordered: Float64, count: Int64 | None) -> Float64:
    width = ordered.shape[1]
    if count is None:
        return np.asarray((ordered[:, (width - 1) // 2] + ordered[:, width // 2]) / 2)
    rows = np.arange(len(ordered))
    low, high = np.maximum(count - 1, 0) // 2, np.minimum(count // 2, width - 1)
    return np.asarray((ordered[rows, low] + ordered[rows, high]) / 2)


def _odd(values: Float64, below: Float64, center: Float64, above: Float64) -> Float64:
    """Return for each value the median of the other values, for rows of odd length."""
    higher = np.where(values > center, (below + center) / 2, (below + above) / 2)
    return np.where(values < center, (center + above) / 2, higher)
