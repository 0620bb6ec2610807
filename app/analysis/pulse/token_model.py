"""How computing grows with tokens, and ranks that always have more tokens than their peers.

Computing is a constant plus a part proportional to tokens (layers) plus a part proportional to
their square (attention).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from app.analysis.pulse.control_charts import CLEARED, NOTICED
from app.analysis.pulse.measurements import Subjects
from app.analysis.pulse.medians import median_of_others
from app.analysis.pulse.notices import (
    Evidence,
    Ledger,
    Notice,
    NoticeKind,
    Part,
    cleared,
    describe_ranks,
)
from app.analysis.quantities import BoolArray, FloatArray
from app.analysis.replay.robust_statistics import MAD_TO_SD, mean, median_of_known

# Recursive least squares: prior sum of squares, and weight of the earlier data when a stretch is
# added.
_PRIOR: Final = 0.05
_REMEMBERS: Final = 0.97
# The fit ends when no share changes by more than this, or after this number of iterations.
_CONVERGED: Final = 1e-3
_MOST_ITERATIONS: Final = 12
# Lengths that differ by less than this say nothing about the growth.
_LEAST_LENGTHS: Final = 1e-3
# Tokens whose logarithm differs by less than this need no learned growth.
_UNEVEN: Final = 0.05
# Largest logarithm of tokens to the usual number that the squares of tokens can express.
_LONGEST: Final = 25.0
# Computing never falls below this share of the usual one, which keeps the logarithm finite.
_LEAST_COMPUTING: Final = 1e-3
# Residuals are clipped at this multiple of their median distance, so that hiccups count little.
_CLIPPED: Final = 4.0


def _growth(shares: FloatArray, lengths: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return computing to that of the usual tokens, and its derivatives by the shares.

    Parameters
    ----------
    lengths : float64[...]
        Logarithm of tokens to the usual number.

    Returns
    -------
    float64[...], float64[2, ...]
    """
    tokens = np.exp(np.minimum(lengths, _LONGEST))
    terms = np.stack([tokens - 1, tokens**2 - 1])
    computing = 1 + np.tensordot(shares, terms, axes=1)
    return np.maximum(computing, _LEAST_COMPUTING), terms


@dataclass(slots=True)
class TokenModel:
    """The shares of computing at the usual number of tokens that grow with tokens.

    Parameters
    ----------
    shares : float64[2]
        Share proportional to tokens, and to their square; the rest is constant.
    information : float64[2, 2]
        Precision of the shares.
    reach : float
        Largest logarithm of tokens to the usual ones from which the shares were learned.
    """

    shares: FloatArray = field(default_factory=lambda: np.array([1.0, 0.0]))
    information: FloatArray = field(default_factory=lambda: np.eye(2) * _PRIOR)
    reach: float = 0.0

    def growth(self, lengths: FloatArray) -> FloatArray:
        """Return the logarithm of computing at these tokens to computing at the usual number."""
        return np.asarray(np.log(_growth(self.shares, lengths)[0]))

    def is_unsure(self, lengths: FloatArray, uneven: FloatArray, subjects: Subjects) -> BoolArray:
        """Return which ranks have tokens outside of the fitted range: their growth is extrapolated.

        Parameters
        ----------
        lengths : float64[steps, ranks]
        uneven : float64[ranks]
            Logarithm of the usual tokens to those of the peers.
        """
        now = median_of_known(against_peers(lengths, subjects))
        return np.asarray(np.abs(now - uneven) > 2 * self.reach + _UNEVEN)

    def fit(self, logs: FloatArray, lengths: FloatArray, subjects: Subjects) -> bool:
        """Learn the shares from a stretch of steps; return whether they changed.

        Gauss-Newton steps on the logarithm of computing. Data are doubly centered, that is only
        differences between ranks in the same step and between steps of the same rank count:
        neither a slow rank nor a slow step affects the fit.

        Parameters
        ----------
        logs, lengths : float64[steps, ranks]
            Logarithm of computing, and of tokens to the usual number.
        """
        if np.ptp(lengths, axis=0).max(initial=0) < _LEAST_LENGTHS:
            return False
        self.reach = max(self.reach, float(np.abs(_centered(lengths, subjects, mean)).max()))
        before, earlier = self.shares, _REMEMBERS * self.information
        for _ in range(_MOST_ITERATIONS):
            computing, terms = _growth(self.shares, lengths)
            residuals = _centered(logs - np.log(computing), subjects, median_of_known)
            design = np.stack([_centered(term / computing, subjects, mean) for term in terms])
            seen = ~np.isnan(residuals)
            if not seen.any():
                return False
            bound = _CLIPPED * np.median(np.abs(residuals[seen])) + 1e-6
            clipped = np.clip(residuals[seen], -bound, bound)
            part = design[:, seen]
            self.information = earlier + part @ part.T
            pull = part @ clipped + earlier @ (before - self.shares)
            shares = self.shares + np.linalg.solve(self.information, pull)
            shares = _plausible(shares, self.information)
            moved = float(np.abs(shares - self.shares).max())
            self.shares = shares
            if moved < _CONVERGED:
                break
        return bool((self.shares != before).any())


def _plausible(shares: FloatArray, information: FloatArray) -> FloatArray:
    """Return the likeliest shares, of which none is negative and the sum is at most 1."""
    if shares.min() >= 0 and shares.sum() <= 1:
        return shares
    corners = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    starts, edges = corners, np.roll(corners, -1, axis=0) - corners
    weighted = edges @ information
    along = (weighted * (shares - starts)).sum(axis=1) / (weighted * edges).sum(axis=1)
    nearest = starts + np.clip(along, 0, 1)[:, None] * edges
    off = nearest - shares
    return np.asarray(nearest[np.argmin((off @ information * off).sum(axis=1))])


def _centered(
    values: FloatArray, subjects: Subjects, center: Callable[[FloatArray], FloatArray]
) -> FloatArray:
    """Subtract the center of the ranks of a stage in each step, then of the steps of each rank.

    The steps of a stage with a single rank are only compared with one another.

    Parameters
    ----------
    values : float64[steps, ranks]
    """
    values = values.copy()
    for stage in range(len(subjects.stages)):
        members = subjects.members(stage)
        if len(members) > 1:
            values[:, members] -= center(values[:, members].T)[:, None]
    return np.asarray(values - center(values))


# Half of the smallest logarithmic surplus of computing that is noticed.
_SLACK: Final = 0.1
# A stretch of steps adds at most this amount to a score.
_CAP: Final = 6.0
# Factor of the variance, because lengths have heavier tails than a normal distribution, and least
# standard deviation of a median.
_HEAVY_TAILS: Final = 1.4
_LEAST_DEVIATION: Final = 0.01
# Variance of the median of many values to that of their mean, and the median of the square of a
# standard normal value.
_OF_MEDIAN: Final = np.pi / 2
_MEDIAN_SQUARE: Final = 0.455
# Weight of a new stretch in `between`, `height` and `tokens`.
_FOLLOWS: Final = 1 / 8


def _ranks() -> FloatArray:
    return np.empty(0)


@dataclass(slots=True)
class TokenImbalance:
    """CUSUM charts of the ranks that compute longer than their peers because of their tokens.

    A stretch of steps adds the log-likelihood ratio of its median surplus.

    Parameters
    ----------
    score : float64[ranks]
        Score for having a surplus; for ranks with a notice, for no longer having one.
    surplus : float64[ranks]
        Logarithm of computing to that of the peers in the last stretch, because of tokens.
    begun : float64[ranks]
        First step of the stretch in which the score began to rise.
    height, tokens : float64[ranks]
        Usual surplus of ranks with a notice, and logarithm of their tokens to those of the peers;
        0 for ranks without a notice.
    between : float
        Variance between the medians of successive stretches.
    number : int
        Number of the open notice; -1 without one.
    """

    score: FloatArray = field(default_factory=_ranks)
    surplus: FloatArray = field(default_factory=_ranks)
    begun: FloatArray = field(default_factory=_ranks)
    height: FloatArray = field(default_factory=_ranks)
    tokens: FloatArray = field(default_factory=_ranks)
    between: float = 0.0
    number: int = -1

    def grow(self, count: int) -> None:
        """Grow the arrays for `count` new ranks."""
        for name in ("score", "surplus", "begun", "height", "tokens"):
            setattr(self, name, np.append(getattr(self, name), np.zeros(count)))

    def add(  # noqa: PLR0913, PLR0917 - the measurements of a stretch
        self,
        computing: FloatArray,
        lengths: FloatArray,
        model: TokenModel,
        uneven: FloatArray,
        subjects: Subjects,
        first_step: int,
    ) -> None:
        """Add a stretch of steps.

        Parameters
        ----------
        computing, lengths : float64[steps, ranks]
            As in `TokenModel.fit`.
        uneven : float64[ranks]
            Median logarithm of tokens to those of the peers.
        """
        grown = np.where(np.isnan(computing), np.nan, model.growth(lengths))
        expected = against_peers(grown, subjects)
        explained = median_of_known(expected)
        # A faster device may rightly have more tokens.
        surplus = np.minimum(explained, median_of_known(against_peers(computing, subjects)))
        one_step = MAD_TO_SD * float(median_of_known(median_of_known(np.abs(expected - explained))))
        moved = float(median_of_known((explained - self.surplus) ** 2)) / (2 * _MEDIAN_SQUARE)
        if np.isnan(one_step) or np.isnan(moved):
            return
        self.between += _FOLLOWS * (moved - self.between)
        variance = _HEAVY_TAILS * max(
            _OF_MEDIAN * one_step**2 / len(lengths), self.between, _LEAST_DEVIATION**2
        )
        half = np.where(self.height > 0, self.height / 2, _SLACK)
        added = np.clip(2 * half / variance * (surplus - half), -_CAP, _CAP)
        added = np.nan_to_num(np.where(self.height > 0, -added, added))
        self.begun[(self.score <= 0) & (added > 0)] = first_step
        self.score = np.maximum(self.score + added, 0.0)
        opened = (self.height == 0) & (self.score >= NOTICED)
        over = (self.height > 0) & (self.score >= CLEARED)
        lasts = (self.height > 0) & (self.score <= 0)
        for name, values in (("height", surplus), ("tokens", uneven)):
            usual = getattr(self, name)
            usual = usual + np.where(lasts, _FOLLOWS * (values - usual), 0.0)
            setattr(self, name, np.where(opened, values, np.where(over, 0.0, usual)))
        self.score[opened | over] = 0.0
        self.surplus = surplus

    def report(
        self, attempt: int, subjects: Subjects, step: int, end_ns: int, ledger: Ledger
    ) -> None:
        """Open, update or clear the notice of the ranks with a surplus after a stretch."""
        at = np.flatnonzero(self.height > 0)
        notice = ledger.open.get(self.number)
        if not len(at):
            self.end(step, ledger)
            return
        ranks = tuple(sorted(subjects.ranks[at].tolist()))
        factor, tokens = (
            float(np.exp(np.median(values[at]))) for values in (self.height, self.tokens)
        )
        sentence = (
            f"{describe_ranks(ranks, ()).capitalize()}: computing takes {factor:.2f}× as long as "
            f"that of the peers, because of {tokens:.2f}× as many tokens; the batches are "
            "imbalanced, and no machine is slow"
        )
        evidence = Evidence(sentence, grew=Part.COMPUTING)
        if notice is not None:
            ledger.update(replace(notice, ranks=ranks, factor=factor, evidence=evidence))
            return
        self.number = ledger.add(
            Notice(
                *(-1, NoticeKind.IMBALANCE, attempt, ranks, (), factor),
                *(int(self.begun[at].min()), step, end_ns, None, evidence),
            )
        )

    def end(self, step: int, ledger: Ledger) -> None:
        """Clear the open notice at the end of the process group."""
        notice = ledger.open.get(self.number)
        if notice is not None:
            ledger.update(cleared(notice, step))
        self.number = -1


def against_peers(values: FloatArray, subjects: Subjects) -> FloatArray:
    """Subtract from each rank the median of the other ranks of its stage; NaN without others."""
    against = np.full_like(values, np.nan)
    for stage in range(len(subjects.stages)):
        members = subjects.members(stage)
        part = values[:, members]
        against[:, members] = part - median_of_others(part)
    return against
