"""Confidence intervals of the metrics: bootstrap over the analyzed steps.

Only means of per-step results are drawn, nothing is replayed again. Slow steps that recur evenly
(`EvenRuns`) are drawn as whole cycles.
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

# ---- Whether what slows steps down comes evenly: runs of slow steps and of others, all much alike


# Slow steps are told from others when these two differ by that many standard deviations within.
_APART: Final = 4.0
# Runs with a beginning and an end that tell how they scatter; two of each kind at least.
_FEWEST: Final = 4
# Lengths of even runs have a variance of at most this share of their mean's square. Those of runs
# that end by chance have about 0.7 where they last three steps on average: of four to eight of
# these 2 % to 3 % of the sessions look even.
_EVEN: Final = 0.15


@dataclass(frozen=True, slots=True, eq=False)
class EvenRuns:
    """Slow steps that come evenly."""

    slow: NDArray[np.bool_]  # (steps,)
    cycle: float  # steps of a slow run and of the one after it, on average
    share: float  # of a cycle that is slow
    exact: bool  # whether all runs of a kind are as long


def even_runs(taken: FloatArray) -> EvenRuns | None:
    """Return the runs of slow steps, if these are told from the others and come evenly.

    Parameters
    ----------
    taken : float64 array, shape (steps,)
        How long steps take, in their order.

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
    # The first and the last run may have begun before, or end later.
    inner = slice(1, -1)
    if len(lengths[inner]) < _FEWEST:
        return None
    usual = {which: float(lengths[inner][kind[inner] == which].mean()) for which in (True, False)}
    relative = lengths / np.where(kind, usual[True], usual[False])
    ends = relative[[0, -1]]
    # What is cut off tells something where it is longer than others all the same.
    told = np.concatenate([relative[inner], ends[ends > 1]])
    if ((told - 1) ** 2).sum() > _EVEN * (len(told) - 2):
        return None
    cycle = usual[True] + usual[False]
    return EvenRuns(slow, cycle, usual[True] / cycle, bool((told == 1).all()))


# ---- How far the metrics may be off: bootstrap over the analyzed steps -------------------------


DRAWS: Final = 1_000
QUANTILES: Final = (0.025, 0.975)

# Draws of fewer steps say nothing about the others.
FEWEST_DRAWN: Final = 5
# With fewer steps spells are as long as the session, and nothing tells how often they come.
FEWEST_STEPS: Final = 20
# The blocks that a session is taken to be, and by how much their draws are widened: by quantiles of
# Student's t (with one less) over those of the normal distribution, for the variance that means of
# so few have, and for spells that go on from one block to the next. Without the first two spells
# of some steps are held in 80 to 88 %, without the last in 89 to 91 %, with all in 91 to 92 %.
_BLOCKS: Final = 5
_GO_ON: Final = 1.1
_WIDEN: Final = _GO_ON * 2.776 / 1.960 * (_BLOCKS / (_BLOCKS - 1)) ** 0.5
# Blocks that scatter as much as single steps, or more, are that uncertain. Where they scatter less
# what slows steps down comes evenly, as every few steps, and the one reason to be wider than
# draws say is not there: so wide checkpoints would be held in nearly all sessions. Of steps without
# any order most come out in between.
_AT_RANDOM: Final = 1.0
_EVENLY: Final = 0.8
_WIDEN_EVEN: Final = 1.2
# An interval is no narrower than this share of what single steps give: blocks as long as a period
# are all the same.
_LEAST_OF_SINGLE: Final = 0.7
# Cycles that are all alike in these steps need not be so in others: two of them would make sure to
# the last digit.
_LEAST_OF_CYCLES: Final = 0.1
# Draws of whole cycles lie around the slowdown of the job, wherever in a cycle these steps begin
# and end, and not around that of the steps: fewer of them hold it. Between quantiles of 2.5 and
# 97.5 % they held it in 98 to 99 % of the sessions of two sets of seeds, between these in 97 %.
_OF_CYCLES: Final = (0.1, 0.9)
# Where spells and what is between them are all about as long, blocks of a cycle tell. There are few
# of them: without it such spells are held in 92 % of simulated sessions, with it in 97 %.
_WIDEN_CYCLES: Final = 1.4
# The 97.5 % quantile of Student's t, a polynomial of one over the degrees of freedom.
_STUDENT: Final = (2.556, 2.823, 2.372, 1.960)
# What is divided by is more than nothing.
_NOTHING: Final = 1e-300

Interval = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Intervals:
    """95 % intervals; None of too few steps, and where the metric itself has no value."""

    slowdown: Interval | None
    waste: Interval | None
    m_w: Interval | None
    m_s: Interval | None
    workers: tuple[Interval | None, ...]


def bootstrap(metrics: Metrics, workers: tuple[tuple[int, int], ...]) -> Intervals:
    """Draw the steps anew with replacement and take the spread of each metric.

    Only means of per-step results are drawn, nothing is replayed again. The same draws serve all
    metrics, and they are the same in every run. Fewer than `FEWEST_DRAWN` steps have no intervals.

    Parameters
    ----------
    workers : tuple of (DP rank, stage)
        The workers whose slowdown gets an interval.
    """
    if len(metrics.simulated_s) < FEWEST_DRAWN:
        return Intervals(None, None, None, None, (None,) * len(workers))
    weights = draws(len(metrics.simulated_s))
    simulated, ideal = weights @ metrics.simulated_s, weights @ metrics.ideal_s
    slowdown = interval(simulated / ideal)

    def share(contribution: Contribution) -> Interval | None:
        if not metrics.attributable:
            return None
        recovered = simulated - weights @ contribution.removed_s
        # Of steps that lose nothing there is no share: draws of them alone say nothing.
        loses = simulated > ideal
        return interval(recovered[loses] / (simulated - ideal)[loses])

    chosen = metrics.by_worker[:, [dp for dp, _ in workers], [pp for _, pp in workers]]
    low, high = quantiles((weights @ chosen) / ideal[:, None], QUANTILES)
    return Intervals(
        slowdown=slowdown,
        waste=(1 - 1 / slowdown[0], 1 - 1 / slowdown[1]),
        m_w=share(metrics.worst_workers),
        m_s=share(metrics.last_stage) if metrics.by_pp.shape[1] > 1 else None,
        workers=tuple(zip(low.tolist(), high.tolist(), strict=True)),
    )


def spread_by_blocks(
    times_s: FloatArray, reference_s: FloatArray, cycle: int | None = None
) -> Interval | None:
    """Return how far Σ times ÷ Σ reference of these steps may be from that of their job.

    What slows steps down comes in spells, so that neighboring steps are alike, and drawing single
    ones makes the interval too narrow. Blocks of steps are drawn (circular block bootstrap,
    Politis and Romano 1992), few and long ones: of so few a mean is as uncertain as Student's t
    says. Where blocks are more alike than single steps nothing comes in spells, but evenly: there
    the interval is narrower than that of single steps, not by much. Of what comes in cycles blocks
    of a cycle are drawn: these differ by what cycles do, and by where the steps begin and end. The
    same goes for spells that come evenly; what comes every few steps has no other share in the
    job than in a whole cycle.

    Parameters
    ----------
    times_s, reference_s : float64 arrays, shape (steps,)
        Step by step, in their order.
    cycle : int or None
        How many steps a cycle has; None of spells, or where it is not known.

    Returns
    -------
    (float, float) or None
        How far below and above, halves of a 95 % interval of the logarithm. None of fewer than
        `FEWEST_STEPS`.
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
    one = max(single[1] - single[0], _NOTHING)
    share = ((blocks[1] - blocks[0]) / one - _EVENLY) / (_AT_RANDOM - _EVENLY)
    widen = _WIDEN_EVEN + (_WIDEN - _WIDEN_EVEN) * min(max(share, 0.0), 1.0)
    return halves(block, QUANTILES, widen, _LEAST_OF_SINGLE)


def _of_cycle(times_s: FloatArray, reference_s: FloatArray, even: EvenRuns) -> Interval:
    """Return how far steps are from their job in which one of every few is slow.

    They may begin and end amid a cycle; slow ones differ, and so do others.
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
    """Return half of a 95 % interval of a mean in standard errors, after Student.

    Examples
    --------
    >>> round(student_half(5), 2), round(student_half(10**6), 2)
    (2.77, 1.96)
    """
    # The quantile's expansion after Fisher and Cornish, off by 3 % for two degrees of freedom.
    return float(np.polyval(_STUDENT, 1 / (count - 1)))


@lru_cache(maxsize=8)
def draws(count: int, block: int = 1) -> FloatArray:
    """Return how often each draw takes each step, shape (draws, count), as shares.

    Means of all metrics are then one matrix product.

    Parameters
    ----------
    block : int
        Neighboring steps that are drawn together; the first one follows the last.
    """
    rng = np.random.default_rng(0)
    blocks = -(-count // block)
    first = rng.integers(count, size=(DRAWS, blocks, 1), dtype=np.int32)
    drawn = ((first + np.arange(block, dtype=np.int32)) % count).reshape(DRAWS, -1)[:, :count]
    drawn += np.arange(DRAWS, dtype=np.int32)[:, None] * count
    weights = np.bincount(drawn.ravel(), minlength=DRAWS * count).reshape(DRAWS, count) / count
    # shared by all that asks
    weights.flags.writeable = False
    return weights


def interval(drawn: FloatArray) -> Interval:
    """Return the 95 % interval of what draws give."""
    low, high = quantiles(drawn, QUANTILES)
    return float(low), float(high)
