"""Distribution statistics of a fleet and the published values of the what-if paper.

Contains cumulative distributions, rank correlation and classes of doubling sizes, for the figures
of sections 4 and 5 of "Understanding Stragglers in Large Model Training Using What-if Analysis".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from app.analysis.quantities import FloatArray
from app.analysis.replay.metrics import STRAGGLING

# Highest number of points of a curve.
POINTS: Final = 200


@dataclass(frozen=True, slots=True)
class Point:
    """A point of a curve of the paper: the share of jobs, or of steps, with at most `value`."""

    value: float
    share: float
    words: str


# Published distribution of the waste of all jobs (section 4.1).
PAPER_WASTE: Final = (
    Point(1 - 1 / STRAGGLING, 0.575, "42.5 % of jobs straggle"),
    Point(0.213, 0.9, "10 % waste 21.3 % or more"),
    Point(0.45, 0.99, "1 % waste 45.0 % or more"),
)
# Published slowdown of the steps of straggling jobs, relative to the job's slowdown (section 4.2).
PAPER_STEPS: Final = (Point(1.0, 0.5, "median 1.00"), Point(1.06, 0.9, "90 % below 1.06"))
# Published M_W, M_S and correlation of straggling jobs (sections 5.1 to 5.3).
PAPER_M_W: Final = (Point(0.5, 0.983, "1.7 % from 0.5"),)
PAPER_M_S: Final = (Point(0.5, 0.607, "39.3 % from 0.5"),)
PAPER_CORRELATION: Final = (Point(0.9, 0.786, "21.4 % from 0.9"),)
# Published wasted share of all GPU-hours (section 4.1).
PAPER_WASTED: Final = 0.104
# Fewest GPUs of the paper's jobs (section 3.1), and most restarts of one (section 7).
PAPER_FEWEST_GPUS: Final = 128
PAPER_MOST_RESTARTS: Final = 15


def cdf(values: Sequence[float], points: int = POINTS) -> tuple[tuple[float, float], ...]:
    """Return points of a distribution: (value, share of values that are at most this value).

    Examples
    --------
    >>> cdf([3.0, 1.0, 2.0, 2.0])
    ((1.0, 0.25), (2.0, 0.75), (3.0, 1.0))
    >>> cdf([])
    ()
    """
    if not len(values):
        return ()
    distinct, counts = np.unique(np.asarray(values, dtype=float), return_counts=True)
    shares = np.cumsum(counts) / len(values)
    if len(distinct) > points:
        kept = np.unique(np.linspace(0, len(distinct) - 1, points).round().astype(int))
        distinct, shares = distinct[kept], shares[kept]
    return tuple(zip(distinct.tolist(), shares.tolist(), strict=True))


def share_from(values: Sequence[float], bound: float) -> float:
    """Return the share of values that are at least `bound`; 0 without values."""
    return sum(value >= bound for value in values) / len(values) if values else 0.0


def rank_correlation(first: FloatArray, second: FloatArray) -> float:
    """Return Spearman's coefficient; NaN without values, or if all values of a side are equal."""
    if len(first) == 0 or np.ptp(first) == 0 or np.ptp(second) == 0:
        return float("nan")
    return float(np.corrcoef(_ranks(first), _ranks(second))[0, 1])


def _ranks(values: FloatArray) -> FloatArray:
    """Return the rank of each value; equal values get their mean rank."""
    _, position, counts = np.unique(values, return_inverse=True, return_counts=True)
    return np.asarray((np.cumsum(counts) - (counts - 1) / 2)[position])


@dataclass(frozen=True, slots=True)
class Class:
    """Jobs of about the same size, or with sequences of about the same length."""

    # low, high: the class has the jobs of size `low` ≤ size < `high`
    low: float
    high: float
    jobs: int
    # median, p90: median and 90th percentile of the jobs' slowdown S
    median: float
    p90: float


def by_doubling(sizes: Sequence[float], slowdowns: Sequence[float]) -> tuple[Class, ...]:
    """Return the slowdowns S of jobs in classes whose sizes double; omit classes without jobs.

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


@dataclass(frozen=True, slots=True)
class LengthClass:
    """Sequences of about the same length, a bar of the paper's figure 10."""

    # low, high: the class has the sequences of `low` ≤ tokens < `high`
    low: int
    high: int
    share: float


def length_classes(jobs: Sequence[Sequence[tuple[int, int]]]) -> tuple[LengthClass, ...]:
    """Return the distribution of sequence lengths over jobs; each job counts alike.

    A job has the numbers of its sequences in classes of doubling length, as `count_lengths` of
    `app.analysis.report.session_verdict` returns them. Classes between the shortest and the longest
    have a share even if it is 0.

    Examples
    --------
    >>> length_classes([((8, 1), (16, 1)), ((32, 5),)])
    (LengthClass(low=8, high=16, share=0.25), LengthClass(low=16, high=32, share=0.25), \
LengthClass(low=32, high=64, share=0.5))
    """
    shares: dict[int, float] = {}
    for counts in jobs:
        total = sum(number for _, number in counts)
        for low, number in counts:
            shares[low] = shares.get(low, 0.0) + number / total / len(jobs)
    if not shares:
        return ()
    first, last = (low.bit_length() - 1 for low in (min(shares), max(shares)))
    return tuple(
        LengthClass(1 << at, 2 << at, shares.get(1 << at, 0.0)) for at in range(first, last + 1)
    )
