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


@lru_cache(maxsize=4)
def draws(count: int) -> FloatArray:
    """Return how often each draw takes each step, shape (draws, count), as shares.

    Means of all metrics are then one matrix product.
    """
    drawn = np.random.default_rng(0).integers(count, size=(DRAWS, count), dtype=np.int32)
    drawn += np.arange(DRAWS, dtype=np.int32)[:, None] * count
    weights = np.bincount(drawn.ravel(), minlength=DRAWS * count).reshape(DRAWS, count) / count
    # shared by all that asks
    weights.flags.writeable = False
    return weights


def interval(drawn: FloatArray) -> Interval:
    """Return the 95 % interval of what draws give."""
    low, high = quantiles(drawn, QUANTILES)
    return float(low), float(high)
