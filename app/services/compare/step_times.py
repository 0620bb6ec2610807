"""Whether the steps of two sessions differ, and by how much.

Two answers that need no normal distribution: the test of Mann and Whitney (Ann. Math. Statist. 18,
1947) says whether steps of one session tend to be shorter, and a bootstrap (Efron and Tibshirani,
An Introduction to the Bootstrap, 1993, section 16) how far apart their means are. Both take the
steps of a session as drawn independently of each other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

# Up to this number of steps on each side, and without ties, the distribution of U is counted.
EXACT_UP_TO: Final = 20
# Fewer steps say nothing of how steps differ.
FEWEST: Final = 3
DRAWS: Final = 2_000
# From this p on a difference is likely to be a chance finding.
SIGNIFICANT: Final = 0.05
_QUANTILES: Final = (0.025, 0.975)
_SEED: Final = 0

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Difference:
    """The step times of a later session against those of an earlier one."""

    before_s: float
    """Means."""
    after_s: float
    """Means."""
    change_s: float
    """Difference of the means; negative where the later session is faster."""
    change: float
    """The same as a share of `before_s`."""
    ci95_s: tuple[float, float] | None
    """95 % interval of `change_s`; None where one side has too few steps."""
    p: float | None
    """How likely so different ranks are where both have one distribution, two-sided."""
    steps: tuple[int, int]

    @property
    def least_p(self) -> float:
        """Return the smallest p that the test can give for this number of steps."""
        return 2.0 / math.comb(sum(self.steps), self.steps[0])

    @property
    def tells(self) -> bool:
        """Return whether the test can tell a difference from chance, however large it is."""
        return self.p is not None and self.least_p < SIGNIFICANT

    @property
    def real(self) -> bool:
        """Return whether the interval leaves out that there is no difference."""
        return self.ci95_s is not None and not self.ci95_s[0] <= 0.0 <= self.ci95_s[1]


def difference(before: Sequence[float], after: Sequence[float]) -> Difference:
    """Return how the step times of two sessions differ.

    Parameters
    ----------
    before, after : sequence of float
        Seconds; neither is empty.
    """
    a, b = np.asarray(before, np.float64), np.asarray(after, np.float64)
    enough = min(a.size, b.size) >= FEWEST
    mean_a, mean_b = float(a.mean()), float(b.mean())
    return Difference(
        before_s=mean_a,
        after_s=mean_b,
        change_s=mean_b - mean_a,
        change=mean_b / mean_a - 1.0,
        ci95_s=_interval(a, b) if enough else None,
        p=mann_whitney(a, b) if enough else None,
        steps=(a.size, b.size),
    )


def mann_whitney(a: FloatArray, b: FloatArray) -> float:
    """Return the two-sided p of the test of Mann and Whitney.

    Counted exactly for few steps without ties; else by the normal approximation with the
    correction for ties and for continuity (Hollander and Wolfe, Nonparametric Statistical Methods,
    section 4.1).

    Examples
    --------
    >>> ages_m, ages_f = np.array([19., 22, 16, 29, 24]), np.array([20., 11, 17, 12])
    >>> round(mann_whitney(ages_m, ages_f), 4)
    0.1111
    """
    # Pairs in which a is larger, ties half.
    larger = (a[:, None] > b[None, :]).sum() + 0.5 * (a[:, None] == b[None, :]).sum()
    u = float(max(larger, a.size * b.size - larger))
    _, ties = np.unique(np.concatenate((a, b)), return_counts=True)
    if ties.max() == 1 and max(a.size, b.size) <= EXACT_UP_TO:
        return _exact(u, a.size, b.size)
    return _approximate(u, a.size, b.size, ties)


def _exact(u: float, m: int, n: int) -> float:
    """Return the share of orders of m and n values with as large a U, doubled."""
    counts = np.zeros(m * n + 1)
    counts[0] = 1.0
    # The Gaussian binomial coefficient, whose terms count the orders of each U.
    for i in range(1, m + 1):
        for value in range(m * n, n + i - 1, -1):
            counts[value] -= counts[value - n - i]
        for value in range(i, m * n + 1):
            counts[value] += counts[value - i]
    return min(1.0, 2.0 * float(counts[math.ceil(u) :].sum() / counts.sum()))


def _approximate(u: float, m: int, n: int, ties: NDArray[np.intp]) -> float:
    size = m + n
    tied = float((ties.astype(np.float64) ** 3 - ties).sum()) / (size * (size - 1))
    variance = m * n / 12.0 * (size + 1 - tied)
    if variance <= 0.0:
        return 1.0
    z = max(0.0, u - m * n / 2.0 - 0.5) / math.sqrt(variance)
    return min(1.0, math.erfc(z / math.sqrt(2.0)))


def _interval(a: FloatArray, b: FloatArray) -> tuple[float, float]:
    """Return the 95 % interval of the difference of the means, by drawing both sides anew."""
    generator = np.random.default_rng(_SEED)
    drawn_a, drawn_b = (
        generator.choice(side, size=(DRAWS, side.size)).mean(axis=1) for side in (a, b)
    )
    low, high = np.quantile(drawn_b - drawn_a, _QUANTILES).tolist()
    return low, high
