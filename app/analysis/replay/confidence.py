"""How far the metrics may be off: bootstrap over the analyzed steps."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np

from app.analysis.replay.layout.dense import FloatArray
from app.analysis.replay.medians import quantiles
from app.analysis.replay.metrics import Contribution, Metrics

DRAWS: Final = 1_000
QUANTILES: Final = (0.025, 0.975)

# With fewer steps spells are as long as the session, and nothing tells how often they come.
FEWEST_STEPS: Final = 20
# The blocks that a session is taken to be, and quantiles of Student's t (with one less) and of the
# normal distribution.
_BLOCKS: Final = 5
_STUDENT, _NORMAL = 2.776, 1.960

Interval = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Intervals:
    """95 % intervals; None where the metric itself has no value."""

    slowdown: Interval
    waste: Interval
    m_w: Interval | None
    m_s: Interval | None
    workers: tuple[Interval, ...]


def bootstrap(metrics: Metrics, workers: tuple[tuple[int, int], ...]) -> Intervals:
    """Draw the steps anew with replacement and take the spread of each metric.

    Only means of per-step results are drawn, nothing is replayed again. The same draws serve all
    metrics, and they are the same in every run.

    Parameters
    ----------
    metrics : Metrics
    workers : tuple of (DP rank, stage)
        The workers whose slowdown gets an interval.
    """
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


def ratio_by_blocks(
    times_s: FloatArray, reference_s: FloatArray, *, error: float = 0.0
) -> Interval | None:
    """Return the 95 % interval of Σ times ÷ Σ reference of a job, of which these steps are some.

    What slows steps down comes in spells, so that neighboring steps are alike, and drawing single
    ones makes the interval too narrow. Blocks of steps are drawn (circular block bootstrap,
    Politis and Romano 1992), few and long ones: of so few a mean is as uncertain as Student's t
    says. The interval is no narrower than that of single steps.

    Parameters
    ----------
    times_s, reference_s : float64 arrays, shape (steps,)
        Step by step, in their order.
    error : float
        How far the ratio of these steps itself may be off, relative: half of a 95 % interval.

    Returns
    -------
    (float, float) or None
        None of fewer than `FEWEST_STEPS`.
    """
    count = len(times_s)
    if count < FEWEST_STEPS:
        return None
    middle = float(np.log(times_s.sum() / reference_s.sum()))
    below = above = 0.0
    for weights, widen in (
        (draws(count), 1.0),
        (draws(count, count // _BLOCKS), _STUDENT / _NORMAL * np.sqrt(_BLOCKS / (_BLOCKS - 1))),
    ):
        low, high = interval(np.log((weights @ times_s) / (weights @ reference_s)))
        below = max(below, widen * (middle - low))
        above = max(above, widen * (high - middle))
    return (
        float(np.exp(middle - np.hypot(below, error))),
        float(np.exp(middle + np.hypot(above, error))),
    )


@lru_cache(maxsize=8)
def draws(count: int, block: int = 1) -> FloatArray:
    """Return how often each draw takes each step, shape (draws, count), as shares.

    Means of all metrics are then one matrix product.

    Parameters
    ----------
    count : int
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
