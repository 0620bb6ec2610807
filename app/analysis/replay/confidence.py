"""Confidence intervals of the metrics: bootstrap over the analyzed steps.

The results of single steps are resampled; no step is replayed again. Slow steps that recur at even
intervals (`EvenRuns`) are resampled as whole cycles.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from app.analysis.replay.layout.dense import FloatArray
from app.analysis.replay.metrics import Contribution, Metrics
from app.analysis.replay.robust_statistics import mean, quantiles

# Smallest distance between the mean times of slow steps and of other steps, in standard deviations
# within these two classes.
_APART: Final = 4.0
# Smallest number of complete runs from which the variance of lengths is computed; at least two runs
# of slow steps and two of other steps.
_FEWEST: Final = 4
# Largest variance of the lengths of even runs, as a share of their squared mean. Lengths of random
# runs with a mean of three steps have about 0.7: with four to eight such runs 2 % to 3 % of the
# sessions pass as even.
_EVEN: Final = 0.15


@dataclass(frozen=True, slots=True, eq=False)
class EvenRuns:
    """Runs of slow steps that recur at even intervals."""

    slow: NDArray[np.bool_]  # (steps,)
    cycle: float  # mean number of steps of a slow run and the run after it
    share: float  # slow share of a cycle
    exact: bool  # whether all slow runs are equally long, and all others


def even_runs(taken: FloatArray) -> EvenRuns | None:
    """Return the runs of slow steps; None unless they are distinct and recur at even intervals.

    Parameters
    ----------
    taken : float64 array, shape (steps,)
        Step times, in the order of steps.

    Examples
    --------
    Every fourth step writes a checkpoint:

    >>> import numpy as np
    >>> runs = even_runs(np.array([1.0, 1.0, 1.0, 3.0] * 6))
    >>> runs.cycle, runs.share, runs.exact
    (4.0, 0.25, True)
    """
    slow = taken > (taken.min() + taken.max()) / 2
    if not slow.any():
        return None
    apart = mean(taken[slow]) - mean(taken[~slow])
    within = slow.mean() * taken[slow].var() + (~slow).mean() * taken[~slow].var()
    if apart**2 < _APART**2 * within:
        return None
    bounds = np.flatnonzero(np.diff(slow)) + 1
    lengths = np.diff(np.concatenate([[0], bounds, [len(slow)]]))
    kind = slow[np.concatenate([[0], bounds])]
    # The first and the last run are left out, since the recording may have cut them off.
    inner = slice(1, -1)
    if len(lengths[inner]) < _FEWEST:
        return None
    usual = {which: float(lengths[inner][kind[inner] == which].mean()) for which in (True, False)}
    relative = lengths / np.where(kind, usual[True], usual[False])
    ends = relative[[0, -1]]
    # A cut-off run that is longer than the mean still counts, since its true length deviates from
    # the mean by at least as much.
    counted = np.concatenate([relative[inner], ends[ends > 1]])
    if ((counted - 1) ** 2).sum() > _EVEN * (len(counted) - 2):
        return None
    cycle = usual[True] + usual[False]
    return EvenRuns(slow, cycle, usual[True] / cycle, bool((counted == 1).all()))


DRAWS: Final = 1_000
QUANTILES: Final = (0.025, 0.975)

# Smallest number of steps for which single steps are drawn.
FEWEST_DRAWN: Final = 5
# Smallest number of steps for which blocks are drawn: in shorter sessions a slow spell may be as
# long as the session.
FEWEST_STEPS: Final = 20
# Number of blocks of a session, and the factor that widens intervals. The factor corrects for the
# small number of blocks (quantiles of Student's t with 4 degrees of freedom over those of the
# normal distribution, and the bias of the variance) and for spells of slow steps that span two
# blocks (`_GO_ON`). Coverage of the 95 % interval for spells of some steps: 80 to 88 % without the
# first two corrections, 89 to 91 % without the last correction, 91 to 92 % with all three.
_BLOCKS: Final = 5
_GO_ON: Final = 1.1
_WIDEN: Final = _GO_ON * 2.776 / 1.960 * (_BLOCKS / (_BLOCKS - 1)) ** 0.5
# Ratio of the scatter of blocks to the scatter expected from single steps. From `_AT_RANDOM` on,
# intervals are widened fully. Below `_EVENLY`, slow steps recur evenly, as checkpoints do, and full
# widening would make intervals too wide. The factor is interpolated between these ratios; most
# sessions of independent steps lie there.
_AT_RANDOM: Final = 1.0
_EVENLY: Final = 0.8
_WIDEN_EVEN: Final = 1.2
# Smallest width of an interval relative to the interval from single steps: if blocks are as long as
# a cycle, all blocks are equal and the width would be 0.
_LEAST_OF_SINGLE: Final = 0.7
# Smallest relative width of an interval from whole cycles. Two equal cycles would otherwise give
# the width 0.
_LEAST_OF_CYCLES: Final = 0.1
# Quantiles of the draws of whole cycles. The draws scatter around the slowdown of the job, not of
# the recorded steps, which may begin and end within a cycle. Coverage: 97 % between these
# quantiles, 98 to 99 % between 2.5 and 97.5 %.
_OF_CYCLES: Final = (0.1, 0.9)
# Factor that widens intervals of even but not exact cycles, since a session has few cycles:
# coverage 92 % without it, 97 % with it, in simulated sessions.
_WIDEN_CYCLES: Final = 1.4
# Coefficients of the 97.5 % quantile of Student's t as a polynomial in 1 / degrees of freedom.
_STUDENT: Final = (2.556, 2.823, 2.372, 1.960)
# Smallest denominator, which avoids a division by zero.
_NOTHING: Final = 1e-300

Interval = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Intervals:
    """95 % intervals of the metrics; None with too few steps, or if the metric has no value."""

    slowdown: Interval | None
    waste: Interval | None
    m_w: Interval | None
    published_m_w: Interval | None
    m_s: Interval | None
    workers: tuple[Interval | None, ...]


def bootstrap(metrics: Metrics, workers: tuple[tuple[int, int], ...]) -> Intervals:
    """Return bootstrap intervals of the metrics from steps drawn with replacement.

    All metrics use the same draws, which are the same in every run. With fewer than `FEWEST_DRAWN`
    steps there are no intervals.

    Parameters
    ----------
    workers : tuple of (DP rank, stage)
        The workers whose slowdown S_w gets an interval.
    """
    if len(metrics.simulated_s) < FEWEST_DRAWN:
        return Intervals(None, None, None, None, None, (None,) * len(workers))
    weights = draws(len(metrics.simulated_s))
    simulated, ideal = weights @ metrics.simulated_s, weights @ metrics.ideal_s
    slowdown = interval(simulated / ideal)

    def share(contribution: Contribution) -> Interval | None:
        if not metrics.attributable:
            return None
        recovered = simulated - weights @ contribution.removed_s
        # A draw without lost time has no share of lost time.
        loses = simulated > ideal
        return interval(recovered[loses] / (simulated - ideal)[loses])

    chosen = metrics.by_worker[:, [dp for dp, _ in workers], [pp for _, pp in workers]]
    low, high = quantiles((weights @ chosen) / ideal[:, None], QUANTILES)
    return Intervals(
        slowdown=slowdown,
        waste=(1 - 1 / slowdown[0], 1 - 1 / slowdown[1]),
        m_w=share(metrics.worst_workers),
        published_m_w=share(metrics.published_worst_workers),
        m_s=share(metrics.last_stage) if metrics.by_pp.shape[1] > 1 else None,
        workers=tuple(zip(low.tolist(), high.tolist(), strict=True)),
    )


def spread_by_blocks(
    times_s: FloatArray, reference_s: FloatArray, cycle: int | None = None
) -> Interval | None:
    """Return the uncertainty of Σ times ÷ Σ reference as an estimate of the whole job's ratio.

    Slow steps come in spells, so neighboring steps are correlated and an interval from single steps
    is too narrow. A few long blocks of steps are drawn instead (circular block bootstrap, Politis
    and Romano 1992), and the interval is widened as by Student's t for so few blocks. If blocks
    scatter less than single steps, slow steps recur evenly and the interval is narrower. If the
    cycle is known, or slow steps recur evenly (`even_runs`), blocks of one cycle are drawn. If
    cycles are exact, the interval is computed from the scatter within the slow steps and within the
    other steps.

    Parameters
    ----------
    times_s, reference_s : float64 arrays, shape (steps,)
        Recorded and reference time of each step, in the order of steps.
    cycle : int or None
        Number of steps of a cycle; None if there is no cycle or it is unknown.

    Returns
    -------
    (float, float) or None
        Distances from the logarithm of the ratio to the lower and the upper end of its 95 %
        interval. None with fewer than `FEWEST_STEPS` steps.
    """
    count = len(times_s)
    if count < FEWEST_STEPS:
        return None
    log_ratio = float(np.log(times_s.sum() / reference_s.sum()))

    def drawn(block: int) -> FloatArray:
        weights = draws(count, block)
        return np.asarray(np.log((weights @ times_s) / (weights @ reference_s)))

    single = interval(drawn(1))

    def halves(block: int, given: tuple[float, float], widen: float, least: float) -> Interval:
        below, above = (
            max(least * abs(log_ratio - of_single), widen * abs(log_ratio - of_blocks))
            for of_single, of_blocks in zip(
                single, map(float, quantiles(drawn(block), given)), strict=True
            )
        )
        return below, above

    if cycle is not None:
        return halves(min(cycle, count // 2), _OF_CYCLES, 1.0, _LEAST_OF_CYCLES)
    even = even_runs(times_s / reference_s)
    if even is not None and even.exact:
        return _of_cycle(times_s, reference_s, even)
    if even is not None:
        block = min(round(even.cycle), count // 2)
        return halves(block, QUANTILES, _WIDEN_CYCLES, _LEAST_OF_CYCLES)
    block = count // _BLOCKS
    blocks = interval(drawn(block))
    single_width = max(single[1] - single[0], _NOTHING)
    share = ((blocks[1] - blocks[0]) / single_width - _EVENLY) / (_AT_RANDOM - _EVENLY)
    widen = _WIDEN_EVEN + (_WIDEN - _WIDEN_EVEN) * min(max(share, 0.0), 1.0)
    return halves(block, QUANTILES, widen, _LEAST_OF_SINGLE)


def _of_cycle(times_s: FloatArray, reference_s: FloatArray, even: EvenRuns) -> Interval:
    """Return the uncertainty for steps with exact cycles; see `spread_by_blocks`.

    The recording may begin and end within a cycle, and both slow and other steps scatter.
    """
    log_ratio = float(np.log(times_s.sum() / reference_s.sum()))
    takes, square = 0.0, 0.0
    for mine, share in ((even.slow, even.share), (~even.slow, 1 - even.share)):
        own, count = times_s[mine], int(mine.sum())
        takes += share * float(own.mean())
        square += (share * student_half(count)) ** 2 * float(own.var(ddof=1)) / count
    offset = float(np.log(takes / reference_s.mean())) - log_ratio
    half = square**0.5 / takes
    return half + max(-offset, 0.0), half + max(offset, 0.0)


def student_half(count: int) -> float:
    """Return the half width of a 95 % interval of a mean of `count` values, in standard errors.

    Examples
    --------
    >>> round(student_half(5), 2), round(student_half(10**6), 2)
    (2.77, 1.96)
    """
    # Cornish-Fisher expansion of Student's t, 3 % off at two degrees of freedom.
    return float(np.polyval(_STUDENT, 1 / (count - 1)))


@lru_cache(maxsize=8)
def draws(count: int, block: int = 1) -> FloatArray:
    """Return the weight of each step in each bootstrap draw, shape (draws, count).

    The weights of a draw add up to 1, so the means of all draws are one matrix product.

    Parameters
    ----------
    block : int
        Number of neighboring steps that are drawn together, circularly.
    """
    rng = np.random.default_rng(0)
    blocks = -(-count // block)
    first = rng.integers(count, size=(DRAWS, blocks, 1), dtype=np.int32)
    drawn = ((first + np.arange(block, dtype=np.int32)) % count).reshape(DRAWS, -1)[:, :count]
    drawn += np.arange(DRAWS, dtype=np.int32)[:, None] * count
    weights = np.bincount(drawn.ravel(), minlength=DRAWS * count).reshape(DRAWS, count) / count
    # The array is read-only, since the cache shares it between callers.
    weights.flags.writeable = False
    return weights


def interval(drawn: FloatArray) -> Interval:
    """Return the 95 % interval of a metric from its values in all draws."""
    low, high = quantiles(drawn, QUANTILES)
    return float(low), float(high)
