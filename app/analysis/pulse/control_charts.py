"""CUSUM control charts: a score for each subject that accumulates over steps.

A step adds the log-likelihood ratio of "slow" to "as usual" (Page, 1954), with the variance of
means of several steps, so that autocorrelated noise does not add up. The amount is bounded by how
rare such a step is in this job. Scores are exact multiples of 2^-16 and do not depend on batches.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Final

import numpy as np
from numpy.typing import NDArray

from app.analysis.pulse.measurements import COMPUTING, FEW_HOSTS, OF_JOB, REST, Subjects
from app.analysis.pulse.medians import median_of_rows
from app.analysis.quantities import BoolArray, FloatArray, IntArray
from app.analysis.replay.robust_statistics import MAD_TO_SD, median_of_known

# Scores that open and clear a notice: the probability of a false alarm is about exp(-18) a step.
NOTICED: Final = 18.0
CLEARED: Final = 14.0
# Half of the smallest logarithmic slowdown that is detected, for a rank, a stage and the job.
_SLACK: Final = 0.05
_STAGE_SLACK: Final = 0.06
_JOB_SLACK: Final = 0.08
# The slack is at least this many standard deviations of the medians of stretches, because a subject
# may vary slowly without a fault.
_SLACK_DEVIATIONS: Final = 4.0
# Largest and smallest amount that one step adds to a score. The cap of the job's score is this low
# because the whole job may be slow for a dozen steps without a fault.
_JOB_CAP: Final = 1.0
_LOWEST: Final = -3.0
# Factor of the variance, because the noise of step times has heavier tails than a normal
# distribution.
_HEAVY_TAILS: Final = 1.4
# Factor of the variance of autocorrelated noise. The variance of a sum of first-order
# autocorrelated noise with coefficient r is (1 + r) / (1 - r) times that of independent noise.
# Means of blocks of eight steps show only part of this factor (r = 0.8: 4.8 of 9; r = 0.9: 6.2 of
# 19).
_LONG_MEMORY: Final = 2.0
# The slack is larger by this share after the first stretch, because the noise is hardly known then.
# The share is divided by the number of stretches.
_NEW: Final = 0.5
_LEAST_DEVIATION: Final = 0.003
# A single step is a hiccup if its residual is above this many standard deviations, and above this
# residual.
_HICCUP: Final = 4.0
_LEAST_HICCUP: Final = 0.02
# Growth since the first steps of a rank counts above this share of the slack, and above this
# multiple of the spread of the growth of all ranks: warm devices and shared hosts make healthy
# ranks slower for a while.
_GROWTH_SLACK: Final = 0.6
_GROWTH_SPREADS: Final = 4.0
# Fewer ranks show no spread.
_FEWEST: Final = 4
# Growth is steady if it passed from half of the slack to all of it in at least this number of
# stretches.
_STEADY: Final = 3
# A stretch adds at most this amount to the score of growth.
_GROWTH_CAP: Final = 6.0
# Number of steps in a block. The variance of block means shows the autocorrelation of the noise.
_BLOCK: Final = 8
_RARE: Final = (1e-3, 0.3)
# Prior counts of steps and hiccups, for the share of hiccups and for the share of hiccups that
# follow another hiccup.
_PRIOR_STEPS: Final = 500.0
_PRIOR_OWN: Final = 150.0
_PRIOR_HICCUPS: Final = 20.0
_PRIOR_FOLLOWED: Final = 0.05
_FORGETS: Final = 0.98
_FORGETS_OWN: Final = 0.9
_VARIANCE_FOLLOWS: Final = 1 / 8
# Assumed share of slow steps during spells, and lowest assumed share of slow steps without spells.
_SPELLS: Final = 0.2
_NO_SPELLS: Final = 0.02
_GRID: Final = 2.0**16
NOT_RISING: Final = -1


def _floats(value: float = 0.0) -> FloatArray:
    return np.full(0, value)


@dataclass(slots=True)
class Charts:
    """A control chart of each subject, with estimates of its noise; arrays are [subjects]."""

    # Score for being slow; for subjects with a notice, score for having recovered.
    score: FloatArray = field(default_factory=_floats)
    # Step at which `score` began to rise from 0.
    rise: IntArray = field(default_factory=lambda: np.empty(0, np.int64))
    # Score for being slow in spells.
    spells: FloatArray = field(default_factory=_floats)
    ready: BoolArray = field(default_factory=lambda: np.empty(0, np.bool_))
    noticed: BoolArray = field(default_factory=lambda: np.empty(0, np.bool_))
    # Whether the subject had a notice at any time since the last stretch ended.
    touched: BoolArray = field(default_factory=lambda: np.empty(0, np.bool_))
    # Logarithm of the slowdown of each noticed subject.
    height: FloatArray = field(default_factory=_floats)
    slack: FloatArray = field(default_factory=_floats)
    variance: FloatArray = field(default_factory=_floats)
    deviation: FloatArray = field(default_factory=_floats)
    cap: FloatArray = field(default_factory=_floats)
    one_step: FloatArray = field(default_factory=_floats)
    blocks: FloatArray = field(default_factory=_floats)
    stretches: FloatArray = field(default_factory=_floats)
    middle: FloatArray = field(default_factory=_floats)
    learned: FloatArray = field(default_factory=_floats)
    own_steps: FloatArray = field(default_factory=_floats)
    own_hiccups: FloatArray = field(default_factory=_floats)
    # Score for slow growth since the first steps, and number of stretches during which it passed
    # from half of the slack of growth to all of it.
    growth: FloatArray = field(default_factory=_floats)
    passing: FloatArray = field(default_factory=_floats)
    # Spread of the growth of the ranks.
    spread: float = 0.0
    steps: float = 0.0
    hiccups: float = 0.0
    followed: float = 0.0

    def grow(self, at: IntArray, number: int) -> None:
        """Grow the arrays to `number` subjects; earlier subjects move to the columns `at`."""
        for name in _ARRAYS:
            old = getattr(self, name)
            new: NDArray[np.generic]
            if old.dtype == np.float64:
                new = np.full(number, np.nan if name in _UNKNOWN else 0.0)
            else:
                new = np.full(number, NOT_RISING if name == "rise" else 0, old.dtype)
            new[at] = old
            setattr(self, name, new)

    def run(self, values: FloatArray, numbers: IntArray) -> ChartRun:
        """Return the scores after each of some steps, without changing the charts.

        Parameters
        ----------
        values : float64[steps, subjects]
            Residuals; NaN leaves the score as it is.
        numbers : int64[steps]
            Step numbers.
        """
        with np.errstate(invalid="ignore"):
            added = 2 * self.slack / self.variance * (values - self.slack)
            lowest = np.fmax(_LOWEST, -1.5 * self.cap)
            np.clip(added, lowest, self.cap, out=added)
            if self.noticed.any():
                half = self.height / 2
                down = np.clip(-2 * half / self.variance * (values - half), -self.cap, 5.0)
                added = np.where(self.noticed, down, added)
            slow = values > self.hiccup
            share = np.clip(3 * self.hiccup_share(), _NO_SPELLS, _SPELLS / 2)
        silent = np.isnan(added)
        silent |= ~self.ready
        added *= _GRID
        np.rint(added, out=added)
        added /= _GRID
        added[silent] = 0.0
        # Log-likelihood ratio (spells against no spells) of a slow step, and of a usual step.
        weights = np.log([_SPELLS / share, (1 - _SPELLS) / (1 - share)])
        weights = np.rint(weights * _GRID) / _GRID
        spelled = np.where(slow, weights[0], weights[1])
        silent |= self.noticed
        spelled[silent] = 0.0
        spelled[:, :OF_JOB] = 0.0
        score, spells = _summed(added, self.score), _summed(spelled, self.spells)
        needed = np.where(self.noticed, CLEARED, NOTICED)
        crossed = (score >= needed) | (spells >= NOTICED)
        return ChartRun(score, spells, crossed, self.rise, numbers)

    def take(self, run: ChartRun, step: int) -> None:
        """Adopt the scores that a run computed after the step with index `step`."""
        self.rise = run.rise(step)
        self.score = run.score[step].copy()
        self.spells = run.spells[step].copy()

    def is_cleared(self) -> IntArray:
        """Return the noticed subjects whose score shows that they recovered, as indices."""
        return np.flatnonzero(self.noticed & (self.score >= CLEARED))

    def is_noticed(self) -> IntArray:
        """Return the subjects that became slow, as indices, sorted by descending score."""
        subjects = np.flatnonzero(~self.noticed & (self.score >= NOTICED))
        return subjects[np.argsort(-self.score[subjects], kind="stable")]

    def has_spells(self) -> IntArray:
        """Return the subjects whose score shows spells, as indices."""
        return np.flatnonzero(~self.noticed & (self.spells >= NOTICED))

    def add_growth(self, means: FloatArray, subjects: Subjects) -> None:
        """Add a stretch to the scores of growth.

        Parameters
        ----------
        means : float64[subjects]
            Residuals of the stretch against the first baselines, which follow no growth.
        """
        slack = _GROWTH_SLACK * self.slack
        ranks, counts = means[subjects.of_ranks], ~np.isnan(means[subjects.of_ranks])
        hosts = np.unique(subjects.host_of)
        if 1 < len(hosts) <= FEW_HOSTS:
            grows = ranks >= slack[subjects.of_ranks] / 2
            for host in hosts:
                of_host = subjects.host_of == host
                # All ranks of a host may become slower together, which is no spread.
                counts &= ~of_host | ~grows[of_host].all()
        if np.count_nonzero(counts) < _FEWEST:
            return
        others = ranks[counts]
        spread = MAD_TO_SD * float(np.median(np.abs(others - np.median(others))))
        self.spread += _VARIANCE_FOLLOWS * (spread - self.spread)
        slack = np.maximum(slack, _GROWTH_SPREADS * max(spread, self.spread))
        with np.errstate(invalid="ignore"):
            variance = _HEAVY_TAILS * np.fmax(self.stretches, _LEAST_DEVIATION**2)
            added = np.clip(2 * slack / variance * (means - slack), -_GROWTH_CAP, _GROWTH_CAP)
            low, passes = means < slack / 2, (means >= slack / 2) & (means < slack)
        added[: subjects.first_rank] = 0.0
        self.growth = np.maximum(self.growth + np.nan_to_num(added), 0.0)
        self.growth[self.noticed | self.touched] = 0.0
        self.passing = np.where(low, 0.0, self.passing + passes)

    def is_growing(self) -> IntArray:
        """Return the subjects that have become slow steadily, sorted by descending score."""
        subjects = np.flatnonzero((self.growth >= NOTICED) & (self.passing >= _STEADY))
        return subjects[np.argsort(-self.growth[subjects], kind="stable")]

    def open(self, subject: int, height: float) -> None:
        """Mark a subject as noticed, with its slowdown; score its recovery from now on."""
        self.noticed[subject] = self.touched[subject] = True
        self.height[subject] = max(height, 1.2 * self.slack[subject])
        self.forget(subject)

    def close(self, subject: int) -> None:
        """Mark a subject as recovered, and score its next slowdown from now on."""
        self.noticed[subject] = False
        self.forget(subject)

    def forget(self, subject: int) -> None:
        """Reset the scores of a subject."""
        self.score[subject] = 0.0
        self.spells[subject] = 0.0
        self.growth[subject] = 0.0
        self.rise[subject] = NOT_RISING

    def forget_ranks(self, subjects: Subjects) -> None:
        """Reset the scores of stages and ranks that would get a notice now."""
        would = self.is_noticed().tolist() + self.has_spells().tolist()
        for subject in would:
            if subject >= subjects.of_stages.start:
                self.forget(subject)

    def postpone_spells(self, subject: int) -> bool:
        """Return whether a subject is slow now; if so, keep its spell score below the threshold.

        A lasting slowdown gets a notice by the other score.
        """
        if self.score[subject] < NOTICED / 3:
            return False
        self.spells[subject] = NOTICED - 1
        return True

    @property
    def quiet(self) -> BoolArray:
        """Return which subjects have neither a notice nor a suspicious score, bool[subjects]."""
        return ~self.noticed & ~self.touched & (self.score < NOTICED / 3)

    @property
    def hiccup(self) -> FloatArray:
        """Return the residual above which a single step is slow, float64[subjects]."""
        return np.asarray(np.fmax(1.5 * self.slack, _HICCUP * self.deviation))

    def hiccup_share(self) -> FloatArray:
        """Return the share of slow single steps by subject, at least that of the job."""
        common = (self.hiccups + _RARE[0] * _PRIOR_STEPS) / (self.steps + _PRIOR_STEPS)
        own = (self.own_hiccups + _PRIOR_OWN * common) / (self.own_steps + _PRIOR_OWN)
        return np.clip(np.maximum(own, common), *_RARE)

    def learn(
        self, values: FloatArray, middle: FloatArray, subjects: Subjects, quiet: BoolArray
    ) -> None:
        """Update the estimates of noise from a stretch of steps.

        Parameters
        ----------
        values : float64[steps, subjects]
            Residuals of the stretch; the number of steps is a multiple of eight.
        middle : float64[subjects]
            Medians of the residuals.
        quiet : bool[subjects]
            Subjects whose estimates are updated.
        """
        self.touched = self.noticed.copy()
        there = ~np.isnan(values)
        seen = there.sum(axis=0)
        enough = (seen >= len(values) // 2) & quiet
        if not enough.any():
            return
        with np.errstate(invalid="ignore"):
            variance = (MAD_TO_SD * median_of_known(np.abs(values - middle))) ** 2
            # Clip hiccups, since the rate of hiccups is modelled separately from the variance.
            bound = np.fmax(_HICCUP * np.sqrt(variance), _LEAST_HICCUP)
            clipped = np.clip(values, middle - bound, middle + bound)
            clipped[~there] = 0.0
            number = there.reshape(-1, _BLOCK, values.shape[1]).sum(axis=1)
            means = clipped.reshape(-1, _BLOCK, values.shape[1]).sum(axis=1)
            means /= np.maximum(number, 1)
            block = _BLOCK * ((means - means.mean(axis=0)) ** 2).sum(axis=0) / (len(means) - 1)
        ready = self.ready & enough
        # Variance of the medians of stretches: half of the squared difference of two successive
        # medians.
        far = (middle - self.middle) ** 2 / 2
        far = np.where(np.isnan(far), 2 * block / len(values), far)
        for kept, new in ((self.one_step, variance), (self.blocks, block), (self.stretches, far)):
            first = enough & np.isnan(kept)
            kept[first] = new[first]
            old = enough & ~first & ~np.isnan(new)
            kept[old] += _VARIANCE_FOLLOWS * (new[old] - kept[old])
        self.middle[enough] = middle[enough]
        if ready.any():
            self._count_hiccups(values, np.where(ready, seen, 0), subjects, ready)
        self.ready |= enough
        self.learned += enough
        self._weigh(subjects)

    def _count_hiccups(
        self, values: FloatArray, seen: IntArray, subjects: Subjects, ready: BoolArray
    ) -> None:
        with np.errstate(invalid="ignore"):
            slow = (values > self.hiccup) & ready
        number = slow.sum(axis=0)
        again = (slow[1:] & slow[:-1]).sum(axis=0)
        ranks = subjects.of_ranks if len(subjects.ranks) > 1 else subjects.of_stages
        self.steps = _FORGETS * self.steps + float(seen[ranks].sum())
        self.hiccups = _FORGETS * self.hiccups + float(number[ranks].sum())
        self.followed = _FORGETS * self.followed + float(again[ranks].sum())
        self.own_steps += np.where(ready, (_FORGETS_OWN - 1) * self.own_steps + seen, 0)
        self.own_hiccups += np.where(ready, (_FORGETS_OWN - 1) * self.own_hiccups + number, 0)

    def _weigh(self, subjects: Subjects) -> None:
        """Compute slack, variance and cap of the scores from the estimates of noise."""
        least = np.full(subjects.number, _SLACK)
        least[subjects.of_stages] = _STAGE_SLACK
        least[[REST, COMPUTING]] = _JOB_SLACK
        # Variances [kinds, subjects]; those of ranks are raised to the median of all ranks.
        own = np.stack([self.one_step, self.blocks, self.stretches])
        ranks = own[:, subjects.of_ranks]
        usual = median_of_rows(ranks)[:, None]
        several = ((~np.isnan(ranks)).sum(axis=1) > 1)[:, None]
        shared = own.copy()
        shared[:, subjects.of_ranks] = np.where(several, np.fmax(0.5 * ranks, usual), ranks)
        step, block, stretch = shared
        self.deviation = np.sqrt(step)
        self.slack = np.fmax(least, _SLACK_DEVIATIONS * np.sqrt(stretch))
        self.slack *= 1 + _NEW / np.maximum(self.learned, 1)
        # Autocorrelation within a block: 0 for independent steps, 1 for constant deviations.
        single = np.fmax(step, _LEAST_DEVIATION**2)
        memory = np.clip((block / single - 1) / (_BLOCK - 1), 0, 1)
        long = block * (1 + _LONG_MEMORY * memory**2)
        self.variance = _HEAVY_TAILS * np.fmax(single, long)
        again = (self.followed + _PRIOR_FOLLOWED) / (self.hiccups + _PRIOR_HICCUPS)
        rare = -np.log(self.hiccup_share())
        # A step adds at most the mean negative log-probability of a step in three successive
        # hiccups, so that a burst of hiccups alone is not noticed.
        self.cap = (rare + 2 * min(-np.log(min(again, 1.0)), 7.0)) / 3
        self.cap = np.minimum(self.cap, rare)
        self.cap[[REST, COMPUTING]] = np.minimum(self.cap[[REST, COMPUTING]], _JOB_CAP)


_ARRAYS: Final = tuple(
    f.name for f in fields(Charts) if f.name not in ("spread", "steps", "hiccups", "followed")
)
_UNKNOWN: Final = frozenset(
    {"slack", "variance", "deviation", "cap", "one_step", "blocks", "stretches", "middle"}
)


@dataclass(frozen=True, slots=True, eq=False)
class ChartRun:
    """Scores of all charts after each of some steps; arrays have shape [steps, subjects].

    Parameters
    ----------
    before : int64[subjects]
        Steps at which the scores had begun to rise before this run.
    numbers : int64[steps]
        Step numbers.
    """

    score: FloatArray
    spells: FloatArray
    crossed: BoolArray
    before: IntArray
    numbers: IntArray

    def rise(self, step: int) -> IntArray:
        """Return the step at which each score after step `step` began to rise, int64[subjects]."""
        zero = self.score[step::-1] <= 0
        was_zero, last = zero.any(axis=0), step - np.argmax(zero, axis=0)
        begun = np.where(was_zero, self.numbers[np.minimum(last + 1, step)], self.before)
        begun[~was_zero & (self.before == NOT_RISING)] = self.numbers[0]
        begun[zero[0]] = NOT_RISING
        return begun


def _summed(added: FloatArray, start: FloatArray) -> FloatArray:
    """Return cumulative sums over steps, reset to 0 whenever they would become negative."""
    total = np.cumsum(added, axis=0)
    lowest = np.minimum(total, -start)
    np.minimum.accumulate(lowest, axis=0, out=lowest)
    total -= lowest
    return total
