"""Slowdown of all workers together in each step, relative to their best stretch of steps.

Comparing workers cannot show it; other steps of the session can. Slow spells are found by circular
binary segmentation (Olshen, Venkatraman et al., Biostatistics 5, 2004). Where steps grow steadily,
a line is fitted to the logarithms instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import Final

import numpy as np
from numpy.typing import NDArray

from app.analysis.replay.layout.dense import FloatArray, IntArray, Layout
from app.analysis.replay.robust_statistics import mean, median
from app.analysis.trace.model import BACKWARD_COMPUTE, FORWARD_COMPUTE, WGRAD_COMPUTE

_COMPUTATIONS: Final = (FORWARD_COMPUTE, BACKWARD_COMPUTE, WGRAD_COMPUTE)
# Spells of longer sessions are looked for in stretches of this many steps' means.
_MOST_STEPS: Final = 256


@dataclass(frozen=True, slots=True)
class Thresholds:
    """What decides whether all workers are slow together."""

    slow: float = 0.05  # a worker is slow from this excess over its best stretch on
    workers: float = 0.9  # …and all are when this share of them is
    fewest: int = 3  # steps that the best stretch has, and that are slow, at least
    # The best stretch is this share of the session at least, and so are scattered slow steps.
    best: float = 0.1
    to_scatter: float = 6.0  # A spell is this many standard errors from the rest.
    # A level of scattered steps is apart from the other by this many times what either is wide.
    to_width: float = 1.0
    # Steps grow where what a line leaves is this share of what the best spell leaves, squared.
    line: float = 0.7


THRESHOLDS: Final = Thresholds()


@dataclass(frozen=True, slots=True, eq=False)
class CommonFactor:
    """How slow all workers are in each step, each against its own best stretch."""

    # (steps,): median over the workers of computing ÷ that in the worker's best stretch
    level: FloatArray
    slow: NDArray[np.bool_]  # (steps,): where nearly all workers are slow
    best: NDArray[np.bool_]  # (steps,): the best stretch
    # By what share each recorded step is longer than the one before, where they grow all along;
    # negative where they get shorter.
    growth: float | None = None

    @property
    def by_step(self) -> FloatArray:
        """Return the level of slow steps and 1 of all others, shape (steps,).

        Of what a worker computes in a step the share 1 − 1 ÷ this is lost with all others.
        """
        return np.asarray(np.where(self.slow, np.maximum(self.level, 1.0), 1.0))

    @property
    def times(self) -> float:
        """Return how slow all workers are in the slow steps, on average; 1 where none is."""
        return float(np.mean(self.level[self.slow])) if self.slow.any() else 1.0


def computing_ns(layout: Layout, recorded_ns: FloatArray) -> FloatArray:
    """Return what each worker computes in each step, shape (pp, steps, dp), ns.

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
                # neighbors: no copy
                total[stage] += recorded_ns[mine[0] : mine[-1] + 1].sum(axis=0)
    return total


def common_factor(
    computing: FloatArray, steps: IntArray, work: FloatArray | None = None
) -> CommonFactor:
    """Return in which steps all workers compute slower than in their best stretch, and how much.

    Parameters
    ----------
    computing : array, shape (pp, steps, dp)
        What each worker computes in each step, of any unit.
    steps : array, shape (steps,)
        The steps' numbers, ascending.
    work : array, shape (steps, dp), optional
        What there was to compute (tokens), where that is known; of any unit, above 0.
    """
    per_work = computing if work is None else computing / work
    count = len(steps)
    # of shape (steps, workers)
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
    grown = _growth(common, logs, steps)
    if grown is not None:
        return grown
    levels = _spells(common)
    if (levels == levels[0]).all():
        levels = _two_levels(common)
    best = levels <= np.sort(levels)[_enough(count) - 1]
    rise = common - median(common[best])
    up = logs - median(logs[best])
    slow = np.zeros(count, bool)
    for level in np.unique(levels[~best]):
        there = levels == level
        together = np.mean(median(up[there]) >= least) >= THRESHOLDS.workers
        slow |= there & together & (median(rise[there]) >= least)
    if slow.sum() < THRESHOLDS.fewest:
        return nothing
    return CommonFactor(np.exp(rise), slow, best)


def _enough(count: int) -> int:
    """Return how many steps the best stretch of a session has at least, and scattered ones."""
    return max(THRESHOLDS.fewest, round(THRESHOLDS.best * count))


def _scatter(common: FloatArray) -> float:
    """Return what neighboring steps scatter by; the few at the edges of spells do not count."""
    moves = np.sort(np.abs(np.diff(common)))
    # normal: a half and nine tenths lie within 0.6745 and 1.6449 standard deviations
    half, most = moves[len(moves) // 2] / 0.6745, moves[int(0.9 * (len(moves) - 1))] / 1.6449
    return max(float(max(half, most)) / sqrt(2), 1e-3)


def _spells(common: FloatArray) -> FloatArray:
    """Return the level of the spell that each step belongs to, shape (steps,)."""
    levels = np.empty(len(common))
    each = -(-len(common) // _MOST_STEPS)
    edges = np.arange(0, len(common), each)
    means = np.add.reduceat(common, edges) / np.diff([*edges, len(common)])
    scatter = _scatter(common) / sqrt(each)
    waiting = [(0, len(means))]
    # Not by recursion: a session may have many spells.
    while waiting:
        begin, end = waiting.pop()
        found = _spell(means[begin:end], scatter)
        if found is None:
            steps = slice(begin * each, min(end * each, len(common)))
            levels[steps] = median(common[steps])
            continue
        first, last = begin + found[0], begin + found[1]
        waiting += [
            part for part in ((begin, first), (first, last), (last, end)) if part[0] < part[1]
        ]
    return levels


def _spell(part: FloatArray, scatter: float) -> tuple[int, int] | None:
    """Return the run of steps that is furthest from the rest; None where none is beyond chance.

    A single step decides nothing: in a run of three the median is another's.
    """
    count = len(part)
    if count <= THRESHOLDS.fewest:
        return None
    sums = np.concatenate([[0.0], np.cumsum(part - mean(part))])
    length = np.arange(count + 1)[None, :] - np.arange(count + 1)[:, None]
    # shape (begin, end); the mean of all is 0, so what is inside a run is missing outside
    inside = sums[None, :] - sums[:, None]
    apart = np.abs(inside) / np.sqrt(np.maximum(length * (count - length), 1) / count)
    apart[(length < THRESHOLDS.fewest) | (length == count)] = 0.0
    begin, end = divmod(int(np.argmax(apart)), count + 1)
    return (begin, end) if apart[begin, end] > THRESHOLDS.to_scatter * scatter else None


def _two_levels(common: FloatArray) -> FloatArray:
    """Return the level of each step where steps have one of two, wherever they are."""
    in_order = np.sort(common)
    gap = int(np.argmax(np.diff(in_order))) + 1
    low, high = in_order[:gap], in_order[gap:]
    width = max(float(np.ptp(low)), float(np.ptp(high)), float(np.log1p(THRESHOLDS.slow)))
    few = min(len(low), len(high)) < _enough(len(common))
    if few or high[0] - low[-1] < THRESHOLDS.to_width * width:
        return np.zeros(len(common))
    return np.where(common > (low[-1] + high[0]) / 2, median(high), median(low))


def _growth(common: FloatArray, logs: FloatArray, steps: IntArray) -> CommonFactor | None:
    """Return the factor of steps that grow all along, by a line; None where they do not.

    Where some steps are recorded only, they may grow with each, or with their numbers.
    """
    count = len(steps)
    found: tuple[float, FloatArray, FloatArray] | None = None
    for numbers in (np.arange(count), steps):
        at = (numbers - numbers.mean()).astype(np.float64)
        line = float(at @ common / (at @ at)) * at
        left = common - mean(common) - line
        if found is None or left @ left < found[0]:
            found = float(left @ left), at, line
    assert found is not None  # noqa: S101 - two were tried
    squares, at, line = found
    rise, least = float(line[-1] - line[0]), np.log1p(THRESHOLDS.slow)
    error = sqrt(squares / count / float(at @ at)) * np.ptp(at)
    if abs(rise) < max(least, THRESHOLDS.to_scatter * error):
        return None
    if squares > THRESHOLDS.line * _left_by_spell(common):
        return None
    own = at @ logs / (at @ at) * np.ptp(at) * np.sign(rise)
    if np.mean(own >= least) < THRESHOLDS.workers:
        return None
    # Where they begin a bend tells better than the line.
    bend = np.polynomial.Polynomial.fit(at, common, 2)(at)
    lowest = int(np.argmin(line))
    best = line <= np.sort(line)[_enough(count) - 1]
    return CommonFactor(
        np.exp(common - bend[lowest]),
        np.arange(count) != lowest,
        best,
        float(np.expm1(rise / (count - 1))),
    )


def _left_by_spell(common: FloatArray) -> float:
    """Return the sum of squares that the best single change of level leaves."""
    away = common - mean(common)
    sums, count = np.cumsum(away)[:-1], np.arange(1, len(away))
    taken = sums**2 / count + sums**2 / (len(away) - count)
    return float(away @ away - taken.max())
