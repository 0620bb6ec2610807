"""Slowdown of all workers together in each step, relative to their fastest stretch of steps.

Comparing workers with one another cannot show such a slowdown; comparing the session's steps can.
Slow spells are found by circular binary segmentation (Olshen, Venkatraman et al., Biostatistics 5,
2004). If steps grow steadily, a line is fitted to the logarithms instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import Final

import numpy as np

from app.analysis.quantities import BoolArray, FloatArray, IntArray
from app.analysis.replay.layout.dense import (
    Layout,
)
from app.analysis.replay.robust_statistics import mean, median
from app.analysis.trace.model import BACKWARD_COMPUTE, FORWARD_COMPUTE, WGRAD_COMPUTE

_COMPUTATIONS: Final = (FORWARD_COMPUTE, BACKWARD_COMPUTE, WGRAD_COMPUTE)
# Largest number of values in which slow spells are searched; in longer sessions these are means of
# groups of consecutive steps.
_MOST_STEPS: Final = 256


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Thresholds for a slowdown of all workers together."""

    slow: float = 0.05  # smallest excess over its best stretch of a slow worker
    workers: float = 0.9  # smallest share of slow workers for all to be slow
    fewest: int = 3  # fewest steps of the best stretch, and fewest slow steps
    # Smallest size of the best stretch, and of a set of scattered slow steps, as a share of the
    # session.
    best: float = 0.1
    to_scatter: float = 6.0  # smallest distance of a spell from the rest, in standard errors
    # Smallest distance between two levels of scattered steps, as a multiple of the range of the
    # wider level.
    to_width: float = 1.0
    # Largest residual sum of squares of a fitted line, relative to the residual of the best single
    # change of level.
    line: float = 0.7


THRESHOLDS: Final = Thresholds()


@dataclass(frozen=True, slots=True, eq=False)
class CommonFactor:
    """Slowdown of all workers together in each step, relative to their best stretch of steps."""

    # Shape (steps,): median over workers of the ratio of computing time to the worker's computing
    # time in the best stretch
    level: FloatArray
    slow: BoolArray  # (steps,): steps in which nearly all workers are slow
    best: BoolArray  # (steps,): steps of the best stretch
    # Relative growth of computing time from each recorded step to the next, negative if it shrinks;
    # None unless it grows or shrinks steadily.
    growth: float | None = None

    @property
    def by_step(self) -> FloatArray:
        """Return the slowdown level of each step, shape (steps,); 1 for steps that are not slow.

        A step of level L loses the share 1 − 1/L of each worker's computing time to the common
        slowdown.
        """
        return np.asarray(np.where(self.slow, np.maximum(self.level, 1.0), 1.0))

    @property
    def times(self) -> float:
        """Return the mean level of the slow steps; 1 if there are none."""
        return float(np.mean(self.level[self.slow])) if self.slow.any() else 1.0


def computing_ns(layout: Layout, recorded_ns: FloatArray) -> FloatArray:
    """Return the computing time of each worker in each step, shape (pp, steps, dp), ns.

    Parameters
    ----------
    recorded_ns : array, shape (nodes, steps, dp)
        Durations without waiting.
    """
    total = np.zeros((layout.pp, *recorded_ns.shape[1:]))
    for stage in range(layout.pp):
        for name in _COMPUTATIONS:
            mine = layout.of(name, stage)
            if len(mine):
                # Nodes of a type and stage are contiguous, so a slice avoids a copy.
                total[stage] += recorded_ns[mine[0] : mine[-1] + 1].sum(axis=0)
    return total


def common_factor(
    computing: FloatArray, steps: IntArray, work: FloatArray | None = None
) -> CommonFactor:
    """Return the slowdown of all workers together, relative to their best stretch of steps.

    Parameters
    ----------
    computing : array, shape (pp, steps, dp)
        Computing time of each worker in each step, in any unit.
    steps : array, shape (steps,)
        The steps' numbers, ascending.
    work : array, shape (steps, dp), optional
        Amount of work (tokens), if known; in any unit, above 0.
    """
    per_work = computing if work is None else computing / work
    count = len(steps)
    # The logarithms have the shape (steps, workers).
    logs = np.log(np.maximum(per_work, 1.0 if work is None else 1e-12)).swapaxes(0, 1)
    logs = logs.reshape(count, -1)
    logs = logs - median(logs)
    common = median(np.ascontiguousarray(logs.T))
    nothing = CommonFactor(
        np.exp(common - median(common)), np.zeros(count, bool), np.ones(count, bool)
    )
    least = np.log1p(THRESHOLDS.slow)
    if count < 2 * THRESHOLDS.fewest or np.ptp(common) < least:
        return nothing
    growing = _growth(common, logs, steps)
    if growing is not None:
        return growing
    levels = _spells(common)
    if (levels == levels[0]).all():
        levels = _two_levels(common)
    best = levels <= np.sort(levels)[_enough(count) - 1]
    rise = common - median(common[best])
    up = logs - median(logs[best])
    slow = np.zeros(count, bool)
    for level in np.unique(levels[~best]):
        spell = levels == level
        together = np.mean(median(up[spell]) >= least) >= THRESHOLDS.workers
        slow |= spell & together & (median(rise[spell]) >= least)
    if slow.sum() < THRESHOLDS.fewest:
        return nothing
    return CommonFactor(np.exp(rise), slow, best)


def _enough(count: int) -> int:
    """Return the smallest number of steps of a best stretch, and of scattered slow steps."""
    return max(THRESHOLDS.fewest, round(THRESHOLDS.best * count))


def _spells(common: FloatArray) -> FloatArray:
    """Return the median level of each step's spell, shape (steps,), from a binary segmentation.

    Circular binary segmentation of Olshen, Venkatraman et al., "Circular binary segmentation for
    the analysis of array-based DNA copy number data", Biostatistics 5 (2004).
    """
    levels = np.empty(len(common))
    each = -(-len(common) // _MOST_STEPS)
    edges = np.arange(0, len(common), each)
    means = np.add.reduceat(common, edges) / np.diff([*edges, len(common)])
    # Standard deviation of the differences between neighboring steps, from two quantiles, so that
    # the few differences at edges of spells do not count: half of normally distributed values lie
    # within 0.6745 standard deviations, nine tenths within 1.6449.
    moves = np.sort(np.abs(np.diff(common)))
    half, most = moves[len(moves) // 2] / 0.6745, moves[int(0.9 * (len(moves) - 1))] / 1.6449
    scatter = max(float(max(half, most)) / sqrt(2), 1e-3) / sqrt(each)
    waiting = [(0, len(means))]
    # A loop instead of recursion, since a session may have more spells than the recursion limit.
    while waiting:
        begin, end = waiting.pop()
        spell = _spell(means[begin:end], scatter)
        if spell is None:
            steps = slice(begin * each, min(end * each, len(common)))
            levels[steps] = median(common[steps])
            continue
        first, last = begin + spell[0], begin + spell[1]
        waiting += [
            part for part in ((begin, first), (first, last), (last, end)) if part[0] < part[1]
        ]
    return levels


def _spell(part: FloatArray, scatter: float) -> tuple[int, int] | None:
    """Return (begin, end) of the run of steps that differs most; None if none is significant.

    A run has at least `fewest` steps, so that a single step does not determine its median.
    """
    count = len(part)
    if count <= THRESHOLDS.fewest:
        return None
    sums = np.concatenate([[0.0], np.cumsum(part - mean(part))])
    length = np.arange(count + 1)[None, :] - np.arange(count + 1)[:, None]
    # Sum within each run (begin, end). The total sum is 0, so the sum of the rest is its negative.
    inside = sums[None, :] - sums[:, None]
    apart = np.abs(inside) / np.sqrt(np.maximum(length * (count - length), 1) / count)
    apart[(length < THRESHOLDS.fewest) | (length == count)] = 0.0
    begin, end = divmod(int(np.argmax(apart)), count + 1)
    return (begin, end) if apart[begin, end] > THRESHOLDS.to_scatter * scatter else None


def _two_levels(common: FloatArray) -> FloatArray:
    """Return each step's level if steps scatter between two levels, shape (steps,); else zeros."""
    in_order = np.sort(common)
    gap = int(np.argmax(np.diff(in_order))) + 1
    low, high = in_order[:gap], in_order[gap:]
    width = max(float(np.ptp(low)), float(np.ptp(high)), float(np.log1p(THRESHOLDS.slow)))
    few = min(len(low), len(high)) < _enough(len(common))
    if few or high[0] - low[-1] < THRESHOLDS.to_width * width:
        return np.zeros(len(common))
    return np.where(common > (low[-1] + high[0]) / 2, median(high), median(low))


def _growth(common: FloatArray, logs: FloatArray, steps: IntArray) -> CommonFactor | None:
    """Return the common factor if steps grow or shrink steadily; None if they do not.

    A line is fitted to the logarithms, against the count of recorded steps or their numbers,
    whichever fits better.
    """
    count = len(steps)
    best_fit: tuple[float, FloatArray, FloatArray] | None = None
    for numbers in (np.arange(count), steps):
        at = (numbers - numbers.mean()).astype(np.float64)
        line = float(at @ common / (at @ at)) * at
        left = common - mean(common) - line
        if best_fit is None or left @ left < best_fit[0]:
            best_fit = float(left @ left), at, line
    assert best_fit is not None  # noqa: S101 - two were tried
    squares, at, line = best_fit
    rise, least = float(line[-1] - line[0]), np.log1p(THRESHOLDS.slow)
    error = sqrt(squares / count / float(at @ at)) * np.ptp(at)
    if abs(rise) < max(least, THRESHOLDS.to_scatter * error):
        return None
    # Residual sum of squares of the best single change of level, for comparison with the line
    away = common - mean(common)
    sums, before = np.cumsum(away)[:-1], np.arange(1, count)
    explained = sums**2 / before + sums**2 / (count - before)
    if squares > THRESHOLDS.line * float(away @ away - explained.max()):
        return None
    own = at @ logs / (at @ at) * np.ptp(at) * np.sign(rise)
    if np.mean(own >= least) < THRESHOLDS.workers:
        return None
    # The level at the lowest step is taken from a parabola, which fits there better than the line.
    bend = np.polynomial.Polynomial.fit(at, common, 2)(at)
    lowest = int(np.argmin(line))
    best = line <= np.sort(line)[_enough(count) - 1]
    return CommonFactor(
        np.exp(common - bend[lowest]),
        np.arange(count) != lowest,
        best,
        float(np.expm1(rise / (count - 1))),
    )
