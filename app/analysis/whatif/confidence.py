"""How far the metrics may be off: bootstrap over the analyzed steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from app.analysis.whatif.layout import FloatArray
from app.analysis.whatif.metrics import Contribution, Metrics

DRAWS: Final = 2_000
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
    count = len(metrics.simulated_s)
    rng = np.random.default_rng(0)
    # How often each step is drawn: means of all metrics are then one matrix product.
    weights = rng.multinomial(count, np.full(count, 1 / count), size=DRAWS) / count
    simulated, ideal = weights @ metrics.simulated_s, weights @ metrics.ideal_s
    slowdown = _interval(simulated / ideal)

    def share(contribution: Contribution) -> Interval | None:
        if not metrics.attributable:
            return None
        lost = simulated - ideal
        return _interval((simulated - weights @ contribution.removed_s) / lost)

    chosen = metrics.by_worker[:, [dp for dp, _ in workers], [pp for _, pp in workers]]
    alone = (weights @ chosen) / ideal[:, None]
    return Intervals(
        slowdown=slowdown,
        waste=(1 - 1 / slowdown[0], 1 - 1 / slowdown[1]),
        m_w=share(metrics.worst_workers),
        m_s=share(metrics.last_stage) if metrics.by_pp.shape[1] > 1 else None,
        workers=tuple(_interval(column) for column in alone.T),
    )


def _interval(draws: FloatArray) -> Interval:
    low, high = np.quantile(draws, QUANTILES)
    return float(low), float(high)
