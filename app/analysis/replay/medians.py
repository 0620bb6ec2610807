"""Medians of what is known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from app.analysis.loops import compiled_pays, frozen, in_rows

FloatArray = NDArray[np.float64]
Real = TypeVar("Real", np.float32, np.float64)

# So few values Python sorts before NumPy has begun.
_FEW: Final = 32
_PAIR: Final = 2
# So few NumPy sorts as a whole before it has found one place and the largest value in front of it.
_SORTED: Final = 1 << 10
# Of so many values a sample tells between which the wanted one lies, give or take this many places
# of the sample: four standard errors.
_MANY: Final = 1 << 15
_SAMPLE: Final = 1 << 12
_APART: Final = 128


def median(values: NDArray[Real]) -> NDArray[Real]:
    """Return the median over the first axis, without NaN; NumPy's own is slow on short arrays."""
    middle, odd = divmod(len(values), 2)
    if values.ndim == 1 and 0 < len(values) <= _FEW and values.dtype == np.float64:
        few = sorted(values.tolist())
        found = few[middle] if odd else (few[middle - 1] + few[middle]) / 2
        return np.asarray(found, dtype=values.dtype)
    if len(values) == _PAIR:
        return np.asarray((values[0] + values[1]) / 2)
    if len(values) <= _SORTED:
        # Of neighbors in memory NumPy sorts many at a time.
        return np.array(median_of_rows(values.T).T, order="C")
    compiled = compiled_pays(values.size)
    if odd and not compiled and (values.ndim > 1 or len(values) < _MANY):
        return np.asarray(np.partition(values, middle, axis=0)[middle])
    before, at = _neighbors(values, middle)
    return at if odd else np.asarray((before + at) / 2)


def median_of_rows(values: NDArray[Real]) -> NDArray[Real]:
    """Return the median over the last axis, of a few hundred values without NaN.

    Examples
    --------
    >>> median_of_rows(np.array([[1.0, 9.0, 2.0, 4.0]])).tolist()
    [3.0]
    """
    middle, odd = divmod(values.shape[-1], 2)
    in_order = np.array(values, order="C")
    in_order.sort(axis=-1)
    at = in_order[..., middle]
    return np.asarray(at if odd else (in_order[..., middle - 1] + at) / 2)


def _neighbors(values: NDArray[Real], place: int) -> tuple[NDArray[Real], NDArray[Real]]:
    """Return what stands right before a place of the sorted first axis, and what stands there.

    Asking NumPy for both takes up to ten times as long: it is quick for one place.
    """
    if len(values) >= _MANY and values.ndim == 1:
        values, place = _near(values, place)
    elif len(values) >= _MANY and values.ndim == 2:  # noqa: PLR2004 - column by column
        both = np.array([_neighbors(column, place) for column in values.T])
        return both[:, 0], both[:, 1]
    elif compiled_pays(values.size):
        return _selected(values, place)
    in_order = np.partition(values, place, axis=0)
    return np.asarray(np.maximum.reduce(in_order[:place], axis=0)), np.asarray(in_order[place])


def _selected(values: NDArray[Real], place: int) -> tuple[NDArray[Real], NDArray[Real]]:
    """Return the same from a compiled loop."""
    from app.analysis.replay.selecting import select_columns  # noqa: PLC0415 - loads the compiler

    columns = in_rows(values.reshape(len(values), -1))
    before, at = np.empty((2, columns.shape[1]), dtype=values.dtype)
    select_columns(columns, place, before, at)
    shape = values.shape[1:]
    return before.reshape(shape), at.reshape(shape)


def _near(values: NDArray[Real], place: int) -> tuple[NDArray[Real], int]:
    """Return the values near a place of the sorted ones, and the place among these.

    The idea is Floyd's and Rivest's (1975). All of them, where a sample misleads.
    """
    some = np.sort(values[:: len(values) // _SAMPLE | 1])
    around = place * len(some) // len(values)
    low, high = some[max(around - _APART, 0)], some[min(around + _APART, len(some) - 1)]
    near, less = _between(values, low, high)
    among = place - less
    return (near, among) if 0 < among < len(near) else (values, place)


def _between(values: NDArray[Real], low: Real, high: Real) -> tuple[NDArray[Real], int]:
    """Return the values from `low` to `high`, and how many are less."""
    if compiled_pays(values.size):
        from app.analysis.replay.selecting import take_between  # noqa: PLC0415 - loads the compiler

        near = np.empty(len(values), dtype=values.dtype)
        count, less = take_between(frozen(values), low, high, near)
        return near[:count], less
    return values[(values >= low) & (values <= high)], int(np.count_nonzero(values < low))


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


def quantiles(values: NDArray[Real], shares: Sequence[float]) -> FloatArray:
    """Return quantiles over the first axis, linear between neighbors, without NaN.

    The same as NumPy's, whose own takes most of its time to find out how it is called.

    Examples
    --------
    >>> quantiles(np.array([4.0, 1.0, 2.0]), (0.25, 1.0)).tolist()
    [1.5, 4.0]
    """
    last = len(values) - 1
    in_order = np.sort(values, axis=0) if len(values) <= _SORTED else None
    found = []
    for share in shares:
        low = int(last * share)
        if low == last:
            found.append(np.maximum.reduce(values, axis=0))
            continue
        if in_order is None:
            lower, upper = _neighbors(values, low + 1)
        else:
            lower, upper = in_order[low], in_order[low + 1]
        # also of single precision, as NumPy does
        part = np.float64(last * share - low)
        gap = upper - lower
        # from the nearer one, as NumPy does: the last bit is the same
        found.append(lower + gap * part if part < 0.5 else upper - gap * (1 - part))  # noqa: PLR2004
    return np.asarray(found, dtype=np.float64)


def peers_median(values: FloatArray) -> FloatArray:
    """Return for each DP rank (last axis) the median of the others; itself where there are none.

    Examples
    --------
    >>> peers_median(np.array([1.0, 2.0, 9.0])).tolist()
    [5.5, 5.0, 1.5]
    """
    ranks = values.shape[-1]
    if ranks == 1:
        return values
    if ranks == 2:  # noqa: PLR2004 - each is the other's only peer
        return values[..., ::-1]
    flat = values.reshape(-1, ranks)
    row = np.arange(len(flat))[:, None]
    order = np.argsort(flat, axis=1)
    in_order = flat[row, order]
    place = np.empty_like(order)
    place[row, order] = np.arange(ranks)
    # Without the value at a place everything from there on is one place nearer to the front.
    low, high = (ranks - 2) // 2, (ranks - 1) // 2
    both = in_order[row, low + (low >= place)] + in_order[row, high + (high >= place)]
    return np.asarray(both / 2).reshape(values.shape)
