"""Computation times split into the effects of worker, microbatch and chance.

Time = typical time of the worker × factor of the microbatch (sequence lengths) × residual (a slow
spell or a single stall). The factor is nearly the same on every stage: attention takes time in
proportion to Σs² and the rest to Σs, so the times of a stage rise with the times of other stages,
each stage at its own rate.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from app.analysis.diagnosis.observation import (
    Observation,
    Passes,
    Real,
    lower_median,
    robust_deviation,
    sample,
)
from app.analysis.diagnosis.recorded_lengths import RecordedLengths
from app.analysis.quantities import BoolArray, FloatArray, SingleArray
from app.analysis.replay.robust_statistics import MAD_TO_SD, median, peers_median, quantiles
from app.analysis.trace.model import BACKWARD_COMPUTE, FORWARD_COMPUTE

_ENOUGH: Final = 150_000  # computations that suffice to see whether lengths differ


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Thresholds that decide whether microbatches differ in length."""

    # Microbatches differ when their times scatter by this share on most DP ranks …
    least_scatter: float = 0.025
    scatter_to_noise: float = 2.0  # …and by this many times the noise of one microbatch
    least_correlation: float = 0.6  # …and forward and backward correlate by this much
    # With a single microbatch a step, microbatches differ when the times of most DP ranks scatter
    # by this share in a step …
    least_scatter_of_single: float = 0.05
    # …and from step to step, with at most this autocorrelation: a host that is slow stays slow for
    # some steps
    most_autocorrelation: float = 0.5
    fewest_ranks: int = 3  # …on at least this many DP ranks
    # Microbatches also differ when a few are long: when they exceed most microbatches of their step
    # by this share …
    long: float = 0.2
    long_to_noise: float = 8.0  # …and by this many standard deviations of the noise
    fewest_long: int = 3  # fewest long microbatches
    fewest_on_one_stage: int = 5  # …with one stage
    together: float = 0.5  # share of microbatches long in one direction that are long in both
    on_one_rank: float = 0.75  # highest share of the long ones on one DP rank, with one stage
    follow: float = 0.8  # Or when times correlate with the recorded lengths by this much.
    # A stage does not show lengths if its times rise with the microbatch by less than this share of
    # the steepest stage's rise.
    telling: float = 0.34
    least: float = 0.02  # shortest microbatch ÷ the median
    outlying: float = 4.0  # standard deviations from which a time is not due to lengths
    # Number of standard errors of a median by which a worker may seem slow because of its
    # microbatches.
    chances: float = 6.0
    # Stages agree about the microbatches of a DP rank when they differ by at most this share.
    alike: float = 0.05


THRESHOLDS: Final = Thresholds()


@dataclass(frozen=True, slots=True, eq=False)
class Microbatches:
    """The relative times of microbatches."""

    factor: SingleArray  # (passes, steps, dp): time ÷ the median
    # (pp, 3): each stage's time as a function of the factor: value at 0, slope below 1, slope above
    # 1. Empty for a single stage, whose time equals the factor.
    curves: FloatArray

    def times(self, by: FloatArray) -> Microbatches:
        """Return the microbatches with times scaled by a factor for each DP rank, shape (dp,)."""
        return replace(self, factor=self.factor * by.astype(np.float32))

    def of_stage(self, stage: int) -> SingleArray:
        """Return the relative times of microbatches on a stage, shape (passes, steps, dp)."""
        return self.on(stage, self.factor)

    def on(self, stage: int, factor: NDArray[Real]) -> NDArray[Real]:
        """Return the relative times on a stage for given factors, by the stage's curve."""
        if not len(self.curves):
            return factor
        base, below, above = self.curves[stage].astype(factor.dtype)
        under = np.minimum(factor, 1)
        times = base + below * under + above * (factor - under)
        return np.asarray(np.maximum(times, THRESHOLDS.least), dtype=factor.dtype)


@dataclass(frozen=True, slots=True, eq=False)
class Difference:
    """Whether microbatches differ in length, with the evidence."""

    differ: bool
    scatter: float  # standard deviation of the microbatches' times ÷ their mean
    correlation: float  # of forward and backward factors
    rare: bool  # whether only a few of them are long …
    long: float  # …by more than this factor
    noise: float  # standard deviation of the times of one microbatch
    # (pp,), by type: how steeply a stage's times rise with the microbatch ÷ the median stage's
    rise: Mapping[str, FloatArray]


def compare_microbatches(
    relative: Mapping[str, SingleArray],
    by_step: Mapping[str, SingleArray],
    lengths: RecordedLengths | None,
) -> Difference:
    """Return whether microbatches differ in length, by their times within a step and DP rank.

    Within a step and DP rank, a worker's slow spells cancel out, in which forwards and backwards
    take long together too. A single microbatch a step is compared with those of the other DP ranks.

    Parameters
    ----------
    relative : mapping of str to SingleArray
        Times ÷ the worker's own median, by type, shape (pp, passes, steps, dp).
    by_step : mapping of str to SingleArray
        Their `of_steps`.
    """
    several = len(relative[BACKWARD_COMPUTE]) > 1
    single = relative[BACKWARD_COMPUTE].shape[1] == 1
    if single:
        # The job's slow steps cancel out, in which all DP ranks take long.
        by_step = {
            name: np.broadcast_to(lower_median(values, axis=2)[..., None], values.shape)
            for name, values in by_step.items()
        }
    # A sample of the steps is enough here; all steps are needed only if lengths differ.
    every = max(1, relative[BACKWARD_COMPUTE].size // _ENOUGH)
    some = {
        name: values[:, :, ::every] / by_step[name][:, None, ::every]
        for name, values in relative.items()
    }
    even = {name: np.ones(len(values)) for name, values in relative.items()}
    rise = {name: _rates(values) for name, values in some.items()} if several else even
    forward, backward = (
        _common(some[name], rise[name]) for name in (FORWARD_COMPUTE, BACKWARD_COMPUTE)
    )
    noise = _noise(some, rise[BACKWARD_COMPUTE])
    lanes = backward.reshape(-1, backward.shape[-1])
    low, high = quantiles(lanes, (0.16, 0.84))
    scatter = float(backward.std() / backward.mean())
    # On the median DP rank: a single DP rank with slow spells is no difference on all ranks.
    by_lane = float(lower_median((high - low) / 2, axis=0))
    least_scatter = THRESHOLDS.least_scatter
    if single:
        by_lane = min(by_lane, _scatter_over_ranks(lanes))
        least_scatter = THRESHOLDS.least_scatter_of_single
    correlation = _correlation(forward, backward)
    long = 1 + max(THRESHOLDS.long, THRESHOLDS.long_to_noise * noise)
    if correlation >= THRESHOLDS.least_correlation and by_lane >= max(
        least_scatter, THRESHOLDS.scatter_to_noise * noise
    ):
        return Difference(True, scatter, correlation, False, long, noise, rise)  # noqa: FBT003
    # The stages' rates fitted to most microbatches do not hold for a few long microbatches.
    backward = _common(some[BACKWARD_COMPUTE], even[BACKWARD_COMPUTE])
    rare = False
    if not single and np.count_nonzero(backward > long) >= THRESHOLDS.fewest_long:
        forward = _common(some[FORWARD_COMPUTE], even[FORWARD_COMPUTE])
        rare = _few_are_long(forward > long, backward > long, several=several)
    differ = rare or _follow(lengths, relative[BACKWARD_COMPUTE])
    if differ:
        forward = _common(some[FORWARD_COMPUTE], even[FORWARD_COMPUTE])
        if forward.std() > 0 and backward.std() > 0:
            correlation = float(np.corrcoef(sample(forward), sample(backward))[0, 1])
    return Difference(differ, float(backward.std()), correlation, rare, long, noise, even)


def _scatter_over_ranks(lanes: SingleArray) -> float:
    """Return the scatter over DP ranks in the median step; 0 if it lasts for several steps.

    `lanes` has the shape (steps, dp). A single slow worker, or a single one in each step, is no
    scatter of most DP ranks.
    """
    steps, dp = lanes.shape
    apart = np.log(lanes)
    apart = apart - np.median(apart, axis=0)
    if dp < THRESHOLDS.fewest_ranks or steps == 1 or not apart.any():
        return 0.0
    lasting = float((apart[1:] * apart[:-1]).sum() / np.square(apart).sum())
    if lasting > THRESHOLDS.most_autocorrelation:
        return 0.0
    middle = np.median(apart, axis=1, keepdims=True)
    return float(np.median(MAD_TO_SD * np.median(np.abs(apart - middle), axis=1)))


def of_steps(relative: SingleArray) -> SingleArray:
    """Return the median pass of each worker in each step, shape (pp, steps, dp)."""
    return median(relative.swapaxes(0, 1))


def _rates(within: SingleArray) -> FloatArray:
    """Return the scatter of each stage's times ÷ the median stage's scatter, shape (pp,)."""
    # Computes `robust_deviation` of all stages in one call. The array is transposed so that each
    # stage's values are contiguous, as partitioning is slow otherwise.
    some = np.array([sample(of_stage) for of_stage in within]).T
    scatter = np.asarray(MAD_TO_SD * median(np.abs(some - median(some))), dtype=np.float64)
    typical = float(median(scatter))
    if typical <= 0:
        return np.ones(len(within))
    return np.asarray(np.maximum(scatter / typical, THRESHOLDS.least))


def _common(within: NDArray[Real], rise: FloatArray) -> NDArray[Real]:
    """Return the factor that all stages share, given each stage's rate, `rise`."""
    telling = (rise >= THRESHOLDS.telling * rise.max()).nonzero()[0]
    # With two stages, the lower value counts, as a burst on one worker is no long microbatch.
    aligned = [1 + (within[stage] - 1) / within.dtype.type(rise[stage]) for stage in telling]
    common = aligned[0] if len(aligned) == 1 else lower_median(np.array(aligned), axis=0)
    return np.asarray(np.maximum(common, THRESHOLDS.least), dtype=within.dtype)


def _noise(some: Mapping[str, SingleArray], rise: FloatArray) -> float:
    """Return the standard deviation of a microbatch's time over stages, or over directions."""
    backward = some[BACKWARD_COMPUTE]
    if len(backward) == 1:
        return robust_deviation(some[FORWARD_COMPUTE] / backward)
    # Stages are compared with one another, not with their lower median: with two stages, half of
    # the differences from it would be 0.
    aligned = 1 + (backward - 1) / rise.astype(np.float32)[:, None, None, None]
    return robust_deviation(aligned[1:] - aligned[:-1]) / float(np.sqrt(2))


def _correlation(forward: SingleArray, backward: SingleArray) -> float:
    """Return Pearson's r of values clipped to their 2 % and 98 % quantiles."""
    x, y = (
        np.clip(values, *quantiles(values, (0.02, 0.98)))
        for values in (sample(forward), sample(backward))
    )
    if (x == x[0]).all() or (y == y[0]).all():
        return 0.0
    return float(np.corrcoef(x, y)[0, 1])


def _few_are_long(forward: BoolArray, backward: BoolArray, *, several: bool) -> bool:
    """Return whether a few microbatches are long, given masks of these, (passes, steps, dp).

    With one stage, many DP ranks must have long microbatches: otherwise a worker has bursts.
    """
    both = forward & backward
    count = int(both.sum())
    if count < THRESHOLDS.fewest_long or count < THRESHOLDS.together * int(
        (forward | backward).sum()
    ):
        return False
    if several:
        return True
    by_rank = both.sum(axis=(0, 1))
    return bool(
        len(by_rank) > 1
        and count >= THRESHOLDS.fewest_on_one_stage
        and (by_rank > 0).sum() >= max(2, len(by_rank) / 2)
        and by_rank.max() <= THRESHOLDS.on_one_rank * count
    )


def _follow(lengths: RecordedLengths | None, relative: SingleArray) -> bool:
    """Return whether times correlate with the recorded lengths and differ because of them."""
    if lengths is None:
        return False
    times = lengths.of(lower_median(relative, axis=0))
    explained = lengths.explain(times)
    if explained.std() < THRESHOLDS.least_scatter * explained.mean() or times.std() == 0:
        return False
    return float(np.corrcoef(times, explained)[0, 1]) >= THRESHOLDS.follow


def divide_out(
    passes: Mapping[str, Passes],
    relative: dict[str, SingleArray],
    by_step: Mapping[str, SingleArray],
    difference: Difference,
) -> dict[str, Microbatches]:
    """Return the microbatches by type, and divide `relative` by their factors in place.

    A microbatch's factor is its factor within the step × the factor of the DP rank's microbatches
    in the step. With one stage both types get the factor of backwards, as no stall of the
    interpreter lengthens backwards.
    """
    error = chance_margin(difference.scatter, passes[BACKWARD_COMPUTE], lasting=False)
    if relative[BACKWARD_COMPUTE].shape[1] == 1:
        # A step of a single microbatch is as long as that, also if its length is rare.
        error = np.inf
    several = len(relative[BACKWARD_COMPUTE]) > 1
    microbatches = {}
    for name in relative if several else (BACKWARD_COMPUTE,):
        rise = difference.rise[name]
        level = by_step[name].astype(np.float64)
        own = by_step[name][:, None]
        within = _common(relative[name] / own, rise)
        curves = np.empty((0, 3))
        if several:
            curves = np.array(
                [
                    _curve(times / typical, within, by, difference.scatter)
                    for times, typical, by in zip(relative[name], own, rise.tolist(), strict=True)
                ]
            )
        longer = rank_length_factor(level, rise, error)
        microbatches[name] = Microbatches(within * longer.astype("f4"), curves)
    for name, times in relative.items():
        own_type = microbatches[name if several else BACKWARD_COMPUTE]
        for stage, of_stage in enumerate(times):
            of_stage /= own_type.of_stage(stage)  # noqa: PLW2901 - in place
    return microbatches if several else dict.fromkeys(relative, microbatches[BACKWARD_COMPUTE])


def _curve(times: SingleArray, factor: SingleArray, rise: float, scatter: float) -> FloatArray:
    """Return a stage's curve, fitted to times and factors; see `Microbatches.curves`."""
    best = np.array([1 - rise, rise, rise])
    y, x = sample(times).astype(np.float64), sample(factor).astype(np.float64)
    under = np.minimum(x, 1)
    terms = np.stack([np.ones_like(x), under, x - under], axis=-1)
    apart = y - terms @ best
    # The fit uses times without bursts and stalls.
    near = np.abs(apart) <= max(THRESHOLDS.outlying * robust_deviation(apart), scatter)
    fitted: FloatArray = np.linalg.lstsq(terms[near], y[near], rcond=None)[0]
    return fitted if (fitted[1:] >= 0).all() else best


def chance_margin(scatter: float, passes: Passes, *, lasting: bool) -> float:
    """Return how far the median of a worker's microbatches may differ from its peers' by chance.

    The margin is relative to the median: over the whole session if `lasting`, else in one step.
    """
    _, count, steps, _ = passes.times_ns.shape
    # All model chunks compute the same microbatches, so these count once.
    microbatches = count / (int(passes.chunk.max()) + 1)
    error = 1.25 * scatter / np.sqrt(microbatches * (steps if lasting else 1))
    return float(max(THRESHOLDS.chances * np.sqrt(2) * error, THRESHOLDS.least_scatter))


def rank_length_factor(times: FloatArray, rise: FloatArray, error: float) -> FloatArray:
    """Return each DP rank's microbatch length ÷ the typical length, by time, shape (…, dp).

    The ratio is common to all stages (first axis of `times`), and differs from 1 by at most
    `error`. A larger difference on some stages comes from a slow worker or slow peers; a larger and
    equal difference on all stages comes from longer microbatches.
    """
    telling = rise >= THRESHOLDS.telling * rise.max()
    by = rise[telling].reshape(-1, *[1] * (times.ndim - 1))
    aligned = np.maximum(1 + (times[telling] - 1) / by, THRESHOLDS.least)
    likely = np.maximum(aligned, 1 / aligned) <= 1 + error
    count = likely.sum(axis=0)
    in_order = np.sort(np.where(likely, aligned, np.inf), axis=0)
    typical = np.take_along_axis(in_order, (np.maximum(count, 1) - 1)[None] // 2, axis=0)[0]
    if len(aligned) == 1:
        return np.where(count > 0, typical, 1.0)
    low, high = aligned.min(axis=0), aligned.max(axis=0)
    alike = np.where(high <= (1 + THRESHOLDS.alike) * low, low, 1.0)
    return np.where(count > 0, typical, alike)


@dataclass(frozen=True, slots=True, eq=False)
class Effects:
    """Computation times split into the effects of worker, microbatch and chance."""

    difference: Difference  # whether microbatches differ in length
    microbatches: dict[str, Microbatches]  # by type; empty if they do not differ
    # (pp, steps, dp), by type: slowness of each worker in each step: its time ÷ that of its stage's
    # peers over the session (1 with one DP rank) × its time in the step ÷ its typical time
    worker: dict[str, FloatArray]
    # (pp, passes, steps, dp), by type: residuals, relative to the worker's typical time
    residual: dict[str, SingleArray]

    @property
    def noise(self) -> float:
        """Return the standard deviation of the residuals."""
        return self.difference.noise


def slowness_by_stage(observation: Observation) -> dict[str, FloatArray]:
    """Return `Effects.worker` with the times of each stage split separately.

    The result is less precise, as the effects of microbatches are found as in a job with one stage.
    """
    stages = [
        split_effects(observation.passes_of(stage)).worker for stage in range(observation.layout.pp)
    ]
    return {name: np.concatenate([worker[name] for worker in stages]) for name in stages[0]}


def split_effects(passes: Mapping[str, Passes], lengths: RecordedLengths | None = None) -> Effects:
    """Return the effects into which computation times, given by type, are split."""
    residual = {name: values.relative() for name, values in passes.items()}
    by_step = {name: of_steps(values) for name, values in residual.items()}
    difference = compare_microbatches(residual, by_step, lengths)
    microbatches = {}
    if difference.differ:
        # `divide_out` changes the residuals in place.
        microbatches = divide_out(passes, residual, by_step, difference)
        by_step = {name: of_steps(values) for name, values in residual.items()}
    worker = {}
    for name, values in passes.items():
        lasting = (values.own_ns / peers_median(values.own_ns)).mean(axis=1)
        if difference.differ:
            error = chance_margin(difference.scatter, values, lasting=True)
            longer = rank_length_factor(lasting, difference.rise[name], error)
            own = microbatches[name]
            for stage, of_stage in enumerate(lasting):
                of_stage /= own.on(stage, longer)  # noqa: PLW2901 - in place
            # Relative to the median of all DP ranks, as the peers are different for each rank.
            level = (values.own_ns / np.median(values.own_ns, axis=-1, keepdims=True)).mean(axis=1)
            microbatches[name] = own.times(rank_length_factor(level, difference.rise[name], error))
        worker[name] = lasting[:, None, :] * by_step[name].astype(np.float64)
    return Effects(difference, microbatches, worker, residual)
