"""Distribution statistics of a fleet and the published values of the what-if paper.

Cumulative distributions, rank correlation and classes by doubling, for the figures of sections 4
and 5 of "Understanding Stragglers in Large Model Training Using What-if Analysis".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from app.analysis.replay.metrics import STRAGGLING

Floats = NDArray[np.float64]

# A curve has that many points at most, whatever it is of.
POINTS: Final = 200


@dataclass(frozen=True, slots=True)
class Point:
    """A point of the paper's curve: this share of jobs, or of steps, is at most at `value`."""

    value: float
    share: float
    words: str


# Of all jobs: section 4.1.
PAPER_WASTE: Final = (
    Point(1 - 1 / STRAGGLING, 0.575, "42.5 % of jobs straggle"),
    Point(0.213, 0.9, "10 % waste 21.3 % or more"),
    Point(0.45, 0.99, "1 % waste 45.0 % or more"),
)
# Of the steps of jobs that straggle: section 4.2.
PAPER_STEPS: Final = (Point(1.0, 0.5, "median 1.00"), Point(1.06, 0.9, "90 % below 1.06"))
# Of jobs that straggle: sections 5.1 to 5.3.
PAPER_M_W: Final = (Point(0.5, 0.983, "1.7 % from 0.5"),)
PAPER_M_S: Final = (Point(0.5, 0.607, "39.3 % from 0.5"),)
PAPER_CORRELATION: Final = (Point(0.9, 0.786, "21.4 % from 0.9"),)
# Of all GPU-hours: section 4.1.
PAPER_WASTED: Final = 0.104


def cdf(values: Sequence[float], points: int = POINTS) -> tuple[tuple[float, float], ...]:
    """Return points of a distribution: (value, share of values that are at most so large).

    Examples
    --------
    >>> cdf([3.0, 1.0, 2.0, 2.0])
    ((1.0, 0.25), (2.0, 0.75), (3.0, 1.0))
    >>> cdf([])
    ()
    """
    if not len(values):
        return ()
    found, counts = np.unique(np.asarray(values, dtype=float), return_counts=True)
    shares = np.cumsum(counts) / len(values)
    if len(found) > points:
        kept = np.unique(np.linspace(0, len(found) - 1, points).round().astype(int))
        found, shares = found[kept], shares[kept]
    return tuple(zip(found.tolist(), shares.tolist(), strict=True))


def share_from(values: Sequence[float], bound: float) -> float:
    """Return the share of values from a bound on; 0 of none."""
    return sum(value >= bound for value in values) / len(values) if values else 0.0


def rank_correlation(first: Floats, second: Floats) -> float:
    """Return Spearman's coefficient; NaN where there is nothing to correlate."""
    if len(first) == 0 or np.ptp(first) == 0 or np.ptp(second) == 0:
        return float("nan")
    return float(np.corrcoef(_ranks(first), _ranks(second))[0, 1])


def _ranks(values: Floats) -> Floats:
    """Return ranks, the mean one for equal values."""
    _, position, counts = np.unique(values, return_inverse=True, return_counts=True)
    return np.asarray((np.cumsum(counts) - (counts - 1) / 2)[position])


@dataclass(frozen=True, slots=True)
class Class:
    """Jobs that are about as large, or have about as long sequences."""

    # low, high: from `low` on, below `high`
    low: float
    high: float
    jobs: int
    # median, p90: of their S: the median, and the 90th percentile
    median: float
    p90: float


def by_doubling(sizes: Sequence[float], slowdowns: Sequence[float]) -> tuple[Class, ...]:
    """Return S of jobs in classes of sizes that double; those without jobs are left out.

    Examples
    --------
    >>> by_doubling([100, 120, 300], [1.0, 1.2, 1.5])
    (Class(low=64.0, high=128.0, jobs=2, median=1.1, p90=1.18), \
Class(low=256.0, high=512.0, jobs=1, median=1.5, p90=1.5))
    """
    if not len(sizes):
        return ()
    of = np.floor(np.log2(np.asarray(sizes, dtype=float))).astype(int)
    slow = np.asarray(slowdowns, dtype=float)
    return tuple(
        Class(
            float(2.0**exponent),
            float(2.0 ** (exponent + 1)),
            int((of == exponent).sum()),
            round(float(np.quantile(slow[of == exponent], 0.5)), 12),
            round(float(np.quantile(slow[of == exponent], 0.9)), 12),
        )
        for exponent in np.unique(of).tolist()
    )
