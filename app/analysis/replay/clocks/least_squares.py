"""Robust fits: lines through time, and potentials of nodes from differences along edges."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from app.analysis.replay.medians import median, median_of_known

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

# From a median absolute deviation to a standard deviation.
MAD_TO_SD: Final = 1.4826
# Residuals above this many standard deviations count less (Huber).
HUBER: Final = 1.345
ROUNDS: Final = 6
MOST_ROUNDS: Final = 40
# Rounds end when nothing moves by more than this share of the typical difference.
SETTLED: Final = 0.05
TOLERANCE: Final = 1e-7
LEAST_WEIGHT: Final = 1e-9
# Up to here a dense matrix is the quickest.
DIRECT_NODES: Final = 200
# Differences are never trusted further than this share of their typical size.
FLOOR: Final = 0.1
TINY: Final = float(np.finfo(float).tiny)


@dataclass(frozen=True, slots=True, eq=False)
class FittedLines:
    """Lines of several series, arrays of shape (series,); NaN where a series is empty.

    `value` is at time 0; errors are standard errors.
    """

    value: FloatArray
    slope: FloatArray
    error: FloatArray
    slope_error: FloatArray


def robust_lines(time: FloatArray, values: FloatArray) -> FittedLines:
    """Fit a line to each series.

    Parameters
    ----------
    time : float64 array, shape (times,)
        All 0 for a constant.
    values : float64 array, shape (times, series)
        NaN where unknown.
    """
    known = ~np.isnan(values)
    filled = np.where(known, values, 0.0)
    center = median_of_known(values)
    scale = MAD_TO_SD * median_of_known(np.abs(values - center))
    span = float(np.abs(time).max(initial=0.0))
    slope = np.zeros(values.shape[1])
    if span > 0:
        slope = _first_slopes(time, values)
        center = median_of_known(values - slope * time[:, None])
    weight = known.astype(np.float64)
    value = np.nan_to_num(center)
    for _ in range(ROUNDS if span > 0 else 0):
        residual = np.abs(filled - value - slope * time[:, None])
        scale = MAD_TO_SD * median_of_known(np.where(known, residual, np.nan))
        limit = HUBER * np.maximum(np.nan_to_num(scale), TINY)
        weight = known * np.minimum(1.0, limit / np.maximum(residual, limit))
        value, slope = _weighted_lines(time, filled, weight, slope)
    count = np.maximum(known.sum(axis=0), 1)
    error = np.nan_to_num(scale) / np.sqrt(count)
    spacing = np.sqrt((known * time[:, None] ** 2).sum(axis=0))
    empty = ~known.any(axis=0)
    return FittedLines(
        value=np.where(empty, np.nan, value),
        slope=np.where(empty, np.nan, slope),
        error=error,
        slope_error=np.nan_to_num(scale) / np.where(spacing > 0, spacing, 1.0),
    )


def _first_slopes(time: FloatArray, values: FloatArray) -> FloatArray:
    """Return the median slope between times half the span apart."""
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
    """Return value at 0 and slope by weighted least squares; the slope stays where it is free."""
    total = weight.sum(axis=0)
    safe = np.where(total > 0, total, 1.0)
    mean_time = (weight * time[:, None]).sum(axis=0) / safe
    mean = (weight * values).sum(axis=0) / safe
    centered = time[:, None] - mean_time
    spacing = (weight * centered**2).sum(axis=0)
    covariance = (weight * centered * (values - mean)).sum(axis=0)
    slope = np.where(spacing > 0, covariance / np.where(spacing > 0, spacing, 1.0), slope)
    return mean - slope * mean_time, slope


def connected_parts(one: IntArray, other: IntArray, count: int) -> IntArray:
    """Return for each node the lowest node that edges connect it with."""
    label = np.arange(count)
    while True:
        lowest = label.copy()
        np.minimum.at(lowest, one, label[other])
        np.minimum.at(lowest, other, label[one])
        lowest = lowest[lowest]
        if (lowest == label).all():
            return label
        label = lowest


def robust_potentials(  # noqa: PLR0913 - the edges, and when they are settled
    one: IntArray,
    other: IntArray,
    difference: FloatArray,
    error: FloatArray,
    count: int,
    *,
    enough: float = 0.0,
) -> FloatArray:
    """Solve ``potential[one] - potential[other] = difference`` by robust least squares.

    Parameters
    ----------
    one, other : int64 arrays, shape (edges,)
    difference, error : float64 arrays, shape (edges,)
        NaN differences count nothing; the standard error of each.
    count : int
        Number of nodes.
    enough : float
        Rounds also end when nothing moves by more than this.

    Returns
    -------
    float64 array, shape (count,)
        The median of each connected part is 0.
    """
    known = ~np.isnan(difference)
    one, other, difference = one[known], other[known], difference[known]
    if not len(one):
        return np.zeros(count)
    edges = _Edges.of(one, other, difference, connected_parts(one, other, count))
    typical_error = float(median(error[known]))
    typical_difference = float(median(np.abs(difference)))
    base = np.sqrt(error[known] ** 2 + typical_error**2 + (FLOOR * typical_difference) ** 2)
    base = np.where(base > 0, base, 1.0)
    base /= np.mean(base)
    squared = base**2
    weight = _bounded(1 / squared)
    potential = np.zeros(count)
    settled = max(SETTLED * typical_difference, enough)
    for _ in range(MOST_ROUNDS):
        before = potential
        potential = _solve(edges, weight, before)
        # differences leave one node of each part free: it is put at 0
        potential -= potential[edges.part]
        if np.abs(potential - before).max() <= settled:
            break
        residual = np.abs(difference - potential[one] + potential[other]) / base
        scale = MAD_TO_SD * float(median(residual))
        limit = HUBER * max(scale, TOLERANCE * typical_difference, TINY)
        weight = _bounded(np.minimum(1.0, limit / np.maximum(residual, limit)) / squared)
    for label in np.unique(edges.part):
        inside = edges.part == label
        potential[inside] -= median(potential[inside])
    return potential


def _bounded(weight: FloatArray) -> FloatArray:
    """Keep weights so close together that equations stay solvable."""
    return np.asarray(np.maximum(weight, LEAST_WEIGHT * weight.max()))


@dataclass(frozen=True, slots=True, eq=False)
class _Edges:
    """Known differences.

    `part` is for each node the lowest that it is connected with; `held` are the places of these
    lowest nodes on the diagonal of the normal equations' matrix, and `cells` the places there that
    an edge's weight is added to, twice, and subtracted from, twice.
    """

    one: IntArray
    other: IntArray
    difference: FloatArray
    part: IntArray
    held: IntArray
    cells: IntArray

    @classmethod
    def of(cls, one: IntArray, other: IntArray, difference: FloatArray, part: IntArray) -> _Edges:
        """Return edges of the nodes that `part` has."""
        count = len(part)
        return cls(
            one,
            other,
            difference,
            part,
            held=np.flatnonzero(part == np.arange(count)) * (count + 1),
            cells=np.concatenate([one, other, one, other]) * count
            + np.concatenate([one, other, other, one]),
        )


def _solve(edges: _Edges, weight: FloatArray, guess: FloatArray) -> FloatArray:
    """Solve the weighted normal equations: directly, or by conjugate gradients where large.

    Conjugate gradients with a diagonal preconditioner, in the names of Saad, "Iterative Methods for
    Sparse Linear Systems" (2003), algorithm 9.1: residual r, z = M⁻¹r, direction p.
    """
    one, other, count = edges.one, edges.other, len(edges.part)
    if count <= DIRECT_NODES:
        return _solve_directly(edges, weight)
    ends = np.concatenate([one, other])

    def gathered(flow: FloatArray) -> FloatArray:
        return np.asarray(np.bincount(ends, np.concatenate([flow, -flow]), minlength=count), float)

    def applied(potential: FloatArray) -> FloatArray:
        return gathered(weight * (potential[one] - potential[other]))

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


def _inner(one: FloatArray, other: FloatArray) -> float:
    """Return the inner product; not by BLAS, whose threads wait for one another here."""
    return float((one * other).sum())


def _solve_directly(edges: _Edges, weight: FloatArray) -> FloatArray:
    """Solve the weighted normal equations as one matrix."""
    one, other, count = edges.one, edges.other, len(edges.part)
    negative = -weight
    values = np.concatenate((weight, weight, negative, negative))
    matrix = np.bincount(edges.cells, values, minlength=count * count)
    matrix[edges.held] += weight.max()
    flow = weight * edges.difference
    target = np.bincount(one, flow, minlength=count) - np.bincount(other, flow, minlength=count)
    return np.asarray(np.linalg.solve(matrix.reshape(count, count), target))
