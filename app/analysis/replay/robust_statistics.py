"""Means, medians and quantiles of arrays; robust line fits and node potentials.

Arrays have no NaN unless a function says otherwise. Lines are fitted through values over time.
Potentials of nodes are fitted to differences along the edges of a graph, for example clock offsets
to differences between clocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
Real = TypeVar("Real", np.float32, np.float64)

# Largest number of values for which `np.sort` is faster than `np.partition`.
_SORTED: Final = 1 << 10


def mean(values: NDArray[Real]) -> NDArray[Real]:
    """Return the mean over the first axis.

    With `np.mean` a report takes 1.04 times (ST) as long, because of its overhead per call.
    """
    return np.asarray(np.add.reduce(values, axis=0) / len(values))


def median(values: NDArray[Real]) -> NDArray[Real]:
    """Return the median over the first axis, without NaN.

    With `np.median` a report takes 1.16 times (ST), 1.29 times (AR) and 1.23 times (AR tiled 16
    times) as long, mostly because of its overhead per call.
    """
    half, odd = divmod(len(values), 2)
    if len(values) <= _SORTED:
        # The values are transposed, since NumPy sorts contiguous rows fastest.
        return np.asarray(median_of_rows(values.T).T, order="C")
    parted = np.partition(values, half, axis=0)
    at = parted[half]
    return np.asarray(at if odd else (parted[:half].max(axis=0) + at) / 2)


def median_of_rows(values: NDArray[Real]) -> NDArray[Real]:
    """Return the median over the last axis, for up to a few hundred values without NaN.

    Examples
    --------
    >>> median_of_rows(np.array([[1.0, 9.0, 2.0, 4.0]])).tolist()
    [3.0]
    """
    half, odd = divmod(values.shape[-1], 2)
    in_order = np.array(values, order="C")
    in_order.sort(axis=-1)
    at = in_order[..., half]
    return np.asarray(at if odd else (in_order[..., half - 1] + at) / 2)


def quantile(values: NDArray[Real], share: float) -> NDArray[Real]:
    """Return a quantile over the first axis, as `np.quantile` does, of values without NaN."""
    return np.asarray(_between(_placed(values, [share]), share))


def quantiles(values: NDArray[Real], shares: Sequence[float]) -> tuple[FloatArray, ...]:
    """Return several quantiles over the first axis; see `quantile`.

    With `np.quantile` instead of both functions a report takes 1.05 times (ST) as long, because of
    its overhead per call.

    Examples
    --------
    >>> [float(value) for value in quantiles(np.array([1.0, 9.0, 2.0]), (0.25, 0.75))]
    [1.5, 5.5]
    """
    placed = _placed(values, shares)
    return tuple(np.asarray(_between(placed, np.float64(share))) for share in shares)


def _placed(values: NDArray[Real], shares: Sequence[float]) -> NDArray[Real]:
    """Return values partitioned along the first axis at the indices that the quantiles need."""
    last = len(values) - 1
    if last < _SORTED:
        return np.sort(values, axis=0)
    places = {min(int(last * share) + above, last) for share in shares for above in (0, 1)}
    return np.partition(values, sorted(places), axis=0)


def _between(placed: NDArray[Real], share: float | np.float64) -> NDArray[Real]:
    """Return a quantile, interpolated linearly between its two neighboring values."""
    last = len(placed) - 1
    at = last * share
    low = int(at)
    part, below, above = at - low, placed[low], placed[min(low + 1, last)]
    apart = above - below
    if part < 1 / 2:
        return np.asarray(below + apart * part)
    # Interpolate from the upper value in the upper half, like `np.quantile`, so that the result is
    # exact at the upper value.
    return np.asarray(above - apart * (1 - part))


def median_of_known(values: FloatArray) -> FloatArray:
    """Return the median over the first axis, ignoring NaN; NaN where all values are NaN."""
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


def peers_median(values: FloatArray) -> FloatArray:
    """Return for each DP rank (last axis) the median of the others; of a single rank its value.

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
    # Removing a value moves all larger values one place towards the front of the sorted order.
    low, high = (ranks - 2) // 2, (ranks - 1) // 2
    both = in_order[row, low + (low >= place)] + in_order[row, high + (high >= place)]
    return np.asarray(both / 2).reshape(values.shape)


IntArray = NDArray[np.int64]

# Ratio of the standard deviation to the median absolute deviation of normally distributed values.
MAD_TO_SD: Final = 1.4826
# Residuals above this many standard deviations get smaller weights (Huber's weights, 95 %
# efficiency for normal values).
HUBER: Final = 1.345
# Number of reweighting rounds for lines, and largest number of reweighting rounds for potentials.
ROUNDS: Final = 6
MOST_ROUNDS: Final = 40
# Reweighting stops when no potential changes by more than this share of the typical difference.
SETTLED: Final = 0.05
TOLERANCE: Final = 1e-7
LEAST_WEIGHT: Final = 1e-9
# Largest number of nodes for which the equations are solved with a dense matrix, which is then
# fastest.
DIRECT_NODES: Final = 200
# Smallest standard error of a difference, as a share of the typical difference.
FLOOR: Final = 0.1
TINY: Final = float(np.finfo(float).tiny)


@dataclass(frozen=True, slots=True, eq=False)
class FittedLines:
    """Fitted lines, arrays of shape (series,): value at time 0, slope, and standard errors.

    NaN where a series is empty.
    """

    value: FloatArray
    slope: FloatArray
    error: FloatArray
    slope_error: FloatArray


def robust_lines(time: FloatArray, values: FloatArray) -> FittedLines:
    """Fit a line to each series by least squares with Huber weights, robust against outliers.

    Parameters
    ----------
    time : float64 array, shape (times,)
        Times of the values; all 0 to fit a constant.
    values : float64 array, shape (times, series)
        Values of each series at each time; NaN if unknown.
    """
    present = ~np.isnan(values)
    filled = np.where(present, values, 0.0)
    center = median_of_known(values)
    scale = MAD_TO_SD * median_of_known(np.abs(values - center))
    span = float(np.abs(time).max(initial=0.0))
    slope = np.zeros(values.shape[1])
    if span > 0:
        slope = _first_slopes(time, values)
        center = median_of_known(values - slope * time[:, None])
    weight = present.astype(np.float64)
    value = np.nan_to_num(center)
    for _ in range(ROUNDS if span > 0 else 0):
        residual = np.abs(filled - value - slope * time[:, None])
        scale = MAD_TO_SD * median_of_known(np.where(present, residual, np.nan))
        limit = HUBER * np.maximum(np.nan_to_num(scale), TINY)
        weight = present * np.minimum(1.0, limit / np.maximum(residual, limit))
        value, slope = _weighted_lines(time, filled, weight, slope)
    count = np.maximum(present.sum(axis=0), 1)
    error = np.nan_to_num(scale) / np.sqrt(count)
    spacing = np.sqrt((present * time[:, None] ** 2).sum(axis=0))
    empty = ~present.any(axis=0)
    return FittedLines(
        value=np.where(empty, np.nan, value),
        slope=np.where(empty, np.nan, slope),
        error=error,
        slope_error=np.nan_to_num(scale) / np.where(spacing > 0, spacing, 1.0),
    )


def _first_slopes(time: FloatArray, values: FloatArray) -> FloatArray:
    """Return the median slope over pairs of times that are half the span apart, shape (series,)."""
    order = np.argsort(time, kind="stable")
    half = len(order) // 2
    early, late = order[:half], order[len(order) - half :]
    run = time[late] - time[early]
    apart = run > 0
    if not apart.any():
        return np.zeros(values.shape[1])
    slopes = (values[late[apart]] - values[early[apart]]) / run[apart, None]
    return np.nan_to_num(median_of_known(slopes))


def _weighted_lines(
    time: FloatArray, values: FloatArray, weight: FloatArray, slope: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return value at 0 and slope by weighted least squares; `slope` if all times are equal."""
    total = weight.sum(axis=0)
    safe = np.where(total > 0, total, 1.0)
    mean_time = (weight * time[:, None]).sum(axis=0) / safe
    mean = (weight * values).sum(axis=0) / safe
    centered = time[:, None] - mean_time
    spacing = (weight * centered**2).sum(axis=0)
    covariance = (weight * centered * (values - mean)).sum(axis=0)
    slope = np.where(spacing > 0, covariance / np.where(spacing > 0, spacing, 1.0), slope)
    return mean - slope * mean_time, slope


def connected_parts(first: IntArray, second: IntArray, count: int) -> IntArray:
    """Return the lowest node of each node's connected component, shape (count,)."""
    label = np.arange(count)
    while True:
        lowest = label.copy()
        np.minimum.at(lowest, first, label[second])
        np.minimum.at(lowest, second, label[first])
        lowest = lowest[lowest]
        if (lowest == label).all():
            return label
        label = lowest


def robust_potentials(  # noqa: PLR0913 - the edges, and when they are settled
    first: IntArray,
    second: IntArray,
    difference: FloatArray,
    error: FloatArray,
    count: int,
    *,
    enough: float = 0.0,
) -> FloatArray:
    """Return node potentials whose differences fit those of edges, by robust least squares.

    Parameters
    ----------
    first, second : int64 arrays, shape (edges,)
        The two nodes of each edge.
    difference, error : float64 arrays, shape (edges,)
        Differences, ignored where NaN, and their standard errors.
    count : int
        Number of nodes.
    enough : float
        Reweighting also stops when no potential changes by more than this.

    Returns
    -------
    float64 array, shape (count,)
        The median of each connected part is 0.
    """
    present = ~np.isnan(difference)
    first, second, difference = first[present], second[present], difference[present]
    if not len(first):
        return np.zeros(count)
    edges = _Edges.of(first, second, difference, connected_parts(first, second, count))
    typical_error = float(median(error[present]))
    typical_difference = float(median(np.abs(difference)))
    base = np.sqrt(error[present] ** 2 + typical_error**2 + (FLOOR * typical_difference) ** 2)
    base = np.where(base > 0, base, 1.0)
    base /= np.mean(base)
    squared = base**2
    weight = _bounded(1 / squared)
    potential = np.zeros(count)
    settled = max(SETTLED * typical_difference, enough)
    for _ in range(MOST_ROUNDS):
        before = potential
        potential = _solve(edges, weight, before)
        # Differences determine the potentials of a connected part only up to a constant, so the
        # part's lowest node is set to 0.
        potential -= potential[edges.part]
        if np.abs(potential - before).max() <= settled:
            break
        residual = np.abs(difference - potential[first] + potential[second]) / base
        scale = MAD_TO_SD * float(median(residual))
        limit = HUBER * max(scale, TOLERANCE * typical_difference, TINY)
        weight = _bounded(np.minimum(1.0, limit / np.maximum(residual, limit)) / squared)
    for label in np.unique(edges.part):
        inside = edges.part == label
        potential[inside] -= median(potential[inside])
    return potential


def _bounded(weight: FloatArray) -> FloatArray:
    """Return weights of at least `LEAST_WEIGHT` times the largest, so equations stay solvable."""
    return np.asarray(np.maximum(weight, LEAST_WEIGHT * weight.max()))


@dataclass(frozen=True, slots=True, eq=False)
class _Edges:
    """Edges with known differences, and their indices into the matrix of the normal equations.

    `part` is the result of `connected_parts`. `held` are the flat indices of the diagonal element
    of the lowest node of each part. `cells` are the flat indices of the four elements that each
    edge changes: its weight is added to two of them and subtracted from the other two.
    """

    first: IntArray
    second: IntArray
    difference: FloatArray
    part: IntArray
    held: IntArray
    cells: IntArray

    @classmethod
    def of(
        cls, first: IntArray, second: IntArray, difference: FloatArray, part: IntArray
    ) -> _Edges:
        """Return the edges with their indices into the matrix of the normal equations."""
        count = len(part)
        return cls(
            first,
            second,
            difference,
            part,
            held=np.flatnonzero(part == np.arange(count)) * (count + 1),
            cells=np.concatenate([first, second, first, second]) * count
            + np.concatenate([first, second, second, first]),
        )


def _solve(edges: _Edges, weight: FloatArray, guess: FloatArray) -> FloatArray:
    """Solve the weighted normal equations.

    Up to `DIRECT_NODES` nodes, a dense matrix is used; with more nodes, conjugate gradients with a
    diagonal preconditioner. Symbols are those of Saad, "Iterative Methods for Sparse Linear
    Systems" (2003), algorithm 9.1: residual r, z = M⁻¹r, direction p.
    """
    first, second, count = edges.first, edges.second, len(edges.part)
    if count <= DIRECT_NODES:
        negative = -weight
        values = np.concatenate((weight, weight, negative, negative))
        matrix = np.bincount(edges.cells, values, minlength=count * count)
        matrix[edges.held] += weight.max()
        flow = weight * edges.difference
        inflow = np.bincount(first, flow, minlength=count) - np.bincount(
            second, flow, minlength=count
        )
        return np.asarray(np.linalg.solve(matrix.reshape(count, count), inflow))
    ends = np.concatenate([first, second])

    def gathered(flow: FloatArray) -> FloatArray:
        return np.asarray(np.bincount(ends, np.concatenate([flow, -flow]), minlength=count), float)

    def applied(potential: FloatArray) -> FloatArray:
        return gathered(weight * (potential[first] - potential[second]))

    diagonal = np.bincount(ends, np.concatenate([weight, weight]), minlength=count)
    scale = 1 / np.where(diagonal > 0, diagonal, 1.0)
    target = gathered(weight * edges.difference)
    potential = guess.copy()
    r = target - applied(potential)
    z = scale * r
    p = z.copy()
    rz = _inner(r, z)
    enough = TOLERANCE**2 * _inner(target, scale * target)
    for _ in range(4 * count):
        if rz <= enough:
            break
        Ap = applied(p)  # noqa: N806 - the literature's name
        pAp = _inner(p, Ap)  # noqa: N806
        if pAp <= 0.0:  # only rounding remains
            break
        alpha = rz / pAp
        potential += alpha * p
        r -= alpha * Ap
        z = scale * r
        rz_next = _inner(r, z)
        p = z + (rz_next / rz) * p
        rz = rz_next
    return potential


def _inner(left: FloatArray, right: FloatArray) -> float:
    """Return the inner product without BLAS, whose threads would cost more time than they save."""
    return float((left * right).sum())
