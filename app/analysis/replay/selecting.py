# ruff: noqa: C901 - compiled loops: no objects there
"""The value at a place of the sorted order, in compiled loops, without sorting.

NumPy's `partition` waits for memory at each comparison that the processor guessed wrong. Here
values are moved without a branch: every one is written, and what is not wanted is overwritten.
"""

from __future__ import annotations

from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from app.analysis.compiled import compiled
from app.analysis.loops import frozen

Real = TypeVar("Real", np.float32, np.float64)

# So few are sorted as they are.
_FEW: Final = 24
# A value of so many at most divides the rest; more would take longer to sort than they save.
_SAMPLE: Final = 63
# Columns that are taken apart at a time: neighbors share the lines of a cache.
_TOGETHER: Final = 16


@compiled  # pragma: no cover - coverage does not see compiled code
def _sort(values: NDArray[Real], count: int) -> None:
    """Sort the first few values."""
    for i in range(1, count):
        value = values[i]
        k = i
        while k > 0 and values[k - 1] > value:
            values[k] = values[k - 1]
            k -= 1
        values[k] = value


@compiled  # pragma: no cover
def _select(values: NDArray[Real], place: int, some: NDArray[Real], found: NDArray[Real]) -> None:
    """Write what stands before a place of the sorted order, and at it; values change their order.

    Parameters
    ----------
    values : float array, shape (values,)
    place : int
        From 1 on.
    some : float array, shape (_SAMPLE,)
        Is written to.
    found : float array, shape (2,)
    """
    count = len(values)
    while count > _FEW:
        sample = min(_SAMPLE, int(np.sqrt(count)) // 2 + 1)
        for i in range(sample):
            some[i] = values[i * count // sample]
        _sort(some, sample)
        pivot = some[place * sample // count]
        less = equal = 0
        for i in range(count):
            less += values[i] < pivot
            equal += values[i] == pivot
        if less < place < less + equal:
            found[0] = found[1] = pivot
            return
        kept = 0
        if place <= less:
            # What is before the place is less, also where the pivot itself is at it.
            if place == less:
                before = -np.inf
                for i in range(count):
                    before = max(before, values[i] if values[i] < pivot else -np.inf)
                found[0], found[1] = before, pivot
                return
            for i in range(count):
                value = values[i]
                values[kept] = value
                kept += value < pivot
        else:
            if place == less + equal:
                at = np.inf
                for i in range(count):
                    at = min(at, values[i] if values[i] > pivot else np.inf)
                found[0], found[1] = pivot, at
                return
            for i in range(count):
                value = values[i]
                values[kept] = value
                kept += value > pivot
            place -= less + equal
        count = kept
    _sort(values, count)
    found[0], found[1] = values[place - 1], values[place]


@compiled  # pragma: no cover
def select_columns(
    values: NDArray[Real], place: int, before: NDArray[Real], at: NDArray[Real]
) -> None:
    """Write what stands before a place of each sorted column, and at it.

    Parameters
    ----------
    values : float array, shape (values, columns)
    place : int
        From 1 on.
    before, at : float arrays, shape (columns,)
    """
    count, columns = values.shape
    apart = np.empty((_TOGETHER, count), dtype=values.dtype)
    some, found = np.empty(_SAMPLE, dtype=values.dtype), np.empty(2, dtype=values.dtype)
    for first in range(0, columns, _TOGETHER):
        wide = min(_TOGETHER, columns - first)
        for row in range(count):
            for k in range(wide):
                apart[k, row] = values[row, first + k]
        for k in range(wide):
            _select(apart[k], place, some, found)
            before[first + k], at[first + k] = found[0], found[1]


@compiled  # pragma: no cover
def take_between(
    values: NDArray[Real], low: Real, high: Real, out: NDArray[Real]
) -> tuple[int, int]:
    """Write the values from `low` to `high`; return how many these are, and how many are less.

    Parameters
    ----------
    values : float array, shape (values,)
        Read-only.
    low, high : float
    out : float array, shape (values,)
    """
    kept = less = 0
    for i in range(len(values)):
        value = values[i]
        out[kept] = value
        kept += (low <= value) & (value <= high)
        less += value < low
    return kept, less


def warm_up() -> None:
    """Compile, or load from the disk's cache, all of these."""
    for two in (np.zeros((2, 1)), np.zeros((2, 1), dtype=np.float32)):
        select_columns(two, 1, two[0], two[0])
        take_between(frozen(two[0]), two[0, 0], two[0, 0], two[0])
