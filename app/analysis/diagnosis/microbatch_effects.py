"""Separation of computation times into the effects of worker, microbatch and chance.

Time = typical time of the worker × factor of the microbatch (sequence lengths) × residual (a slow
spell or a single stall). The factor is the same on every stage, or nearly: attention takes Σs²,
the rest Σs, so each stage rises with the others by a share of its own.
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
    SingleArray,
    lower_median,
    robust_deviation,
    sample,
)
from app.analysis.diagnosis.recorded_lengths import RecordedLengths
from app.analysis.replay.layout.dense import FloatArray
from app.analysis.replay.robust_statistics import median, peers_median, quantiles
from app.analysis.trace.model import BACKWARD_COMPUTE, FORWARD_COMPUTE

# ---- What of a computation's time belongs to its microbatch: the same on every stage, or nearly --
# Stages differ in how much lengths count: attention takes Σs², a head and all else Σs. Within a
# step the times of a stage rise with those of another, each by a share of its own.


# Computations that are enough to tell whether lengths differ.
_ENOUGH: Final = 150_000


@dataclass(frozen=True, slots=True)
class Thresholds:
    """What decides whether microbatches have times of their own."""

    # Microbatches differ when their times scatter by this share on most DP ranks.
    least_scatter: float = 0.025
    # …and by this many times what one microbatch scatters over the stages.
    scatter_to_noise: float = 2.0
    # …and forward and backward follow each other with this correlation.
    least_correlation: float = 0.6
    long: float = 0.2  # or a few of them are longer than most of their step by this share
    long_to_noise: float = 8.0  # …and by this many standard deviations of what one scatters
    fewest_long: int = 3  # there are at least this many long ones
    fewest_on_one_stage: int = 5  # with one stage there are at least this many
    together: float = 0.5  # of those that are long in one direction this share is so in both
    on_one_rank: float = 0.75  # with one stage no DP rank has more than this share of them
    follow: float = 0.8  # or times follow the recorded lengths with this correlation
    # A stage whose times rise by less than this share of what those of another do tells nothing
    # of how long a microbatch is.
    telling: float = 0.34
    least: float = 0.02  # no microbatch takes less than this share of the median one
    # Times that are this many standard deviations off are not made by lengths.
    outlying: float = 4.0
    # A worker can seem slow because of its microbatches by this many standard errors of a
    # median.
    chances: float = 6.0
    # Stages agree about a DP rank's microbatches when they are at most this share apart.
    alike: float = 0.05


THRESHOLDS: Final = Thresholds()


@dataclass(frozen=True, slots=True, eq=False)
class Microbatches:
    """How long microbatches take."""

    factor: SingleArray  # (passes, steps, dp): their time ÷ the median
    # (pp, 3): how the times of each stage follow that: at 0, and by how much they rise below 1
    # and above. With one stage they are the factor, and there is no row.
    curves: FloatArray

    def times(self, by: FloatArray) -> Microbatches:
        """Return these with times longer by a factor of each DP rank, shape (dp,)."""
        return replace(self, factor=self.factor * by.astype(np.float32))

    def of_stage(self, stage: int) -> SingleArray:
        """Return how many times as long microbatches take on a stage, shape (passes, steps, dp)."""
        return self.on(stage, self.factor)

    def on(self, stage: int, factor: NDArray[Real]) -> NDArray[Real]:
        """Return what a factor is on a stage."""
        if not len(self.curves):
            return factor
        base, below, above = self.curves[stage].astype(factor.dtype)
        under = np.minimum(factor, 1)
        found = base + below * under + above * (factor - under)
        return np.asarray(np.maximum(found, THRESHOLDS.least), dtype=factor.dtype)


@dataclass(frozen=True, slots=True, eq=False)
class Difference:
    """Whether microbatches have times of their own, and what tells."""

    differ: bool
    scatter: float  # standard deviation of the microbatches' times, relative to their mean
    correlation: float  # of forward and backward factors
    rare: bool  # whether only a few of them are longer than the others…
    long: float  # …by more than this factor
    noise: float  # what the times of one microbatch scatter by
    # (pp,), by type: how much the times of a stage rise with their microbatch, against the others.
    rise: Mapping[str, FloatArray]


def compare_microbatches(
    relative: Mapping[str, SingleArray],
    by_step: Mapping[str, SingleArray],
    lengths: RecordedLengths | None,
) -> Difference:
    """Tell whether microbatches differ, by their times within a step and DP rank.

    There the spells of a worker cancel out: they would pass for lengths, because its forwards and
    backwards are long together too. `relative` has times over the worker's own median, shape (pp,
    passes, steps, dp); `by_step` is `of_steps` of these.
    """
    several = len(relative[BACKWARD_COMPUTE]) > 1
    # Some of the steps tell; only if lengths differ, all are needed.
    every = max(1, relative[BACKWARD_COMPUTE].size // _ENOUGH)
    some = {
        name: values[:, :, ::every] / by_step[name][:, None, ::every]
        for name, values in relative.items()
    }
    even = {name: np.ones(len(values)) for name, values in relative.items()}
    rise = {name: _rise(values) for name, values in some.items()} if several else even
    forward, backward = (
        _common(some[name], rise[name]) for name in (FORWARD_COMPUTE, BACKWARD_COMPUTE)
    )
    noise = _noise(some, rise[BACKWARD_COMPUTE])
    scatter, by_lane = _scatter(backward)
    correlation = _correlation(forward, backward)
    long = 1 + max(THRESHOLDS.long, THRESHOLDS.long_to_noise * noise)
    if correlation >= THRESHOLDS.least_correlation and by_lane >= max(
        THRESHOLDS.least_scatter, THRESHOLDS.scatter_to_noise * noise
    ):
        return Difference(True, scatter, correlation, False, long, noise, rise)  # noqa: FBT003
    # How much most microbatches scatter says nothing of how much a long one takes.
    backward = _common(some[BACKWARD_COMPUTE], even[BACKWARD_COMPUTE])
    rare = False
    if np.count_nonzero(backward > long) >= THRESHOLDS.fewest_long:
        forward = _common(some[FORWARD_COMPUTE], even[FORWARD_COMPUTE])
        rare = _few_are_long(forward > long, backward > long, several=several)
    differ = rare or _follow(lengths, relative[BACKWARD_COMPUTE])
    if differ:
        forward = _common(some[FORWARD_COMPUTE], even[FORWARD_COMPUTE])
        if forward.std() > 0 and backward.std() > 0:
            correlation = float(np.corrcoef(sample(forward), sample(backward))[0, 1])
    return Difference(differ, float(backward.std()), correlation, rare, long, noise, even)


def of_steps(relative: SingleArray) -> SingleArray:
    """Return the median of each worker's steps, shape (pp, steps, dp)."""
    return median(relative.swapaxes(0, 1))


def _rise(within: SingleArray) -> FloatArray:
    """Return how much the times of each stage scatter, over the median stage's."""
    scatter = _deviations(within)
    typical = float(median(scatter))
    if typical <= 0:
        return np.ones(len(within))
    return np.asarray(np.maximum(scatter / typical, THRESHOLDS.least))


def _deviations(within: SingleArray) -> FloatArray:
    """Return the `robust_deviation` of each stage, shape (pp,), in one call for all."""
    # Each stage's values are neighbors in memory: only then is partitioning quick.
    some = np.array([sample(of_stage) for of_stage in within]).T
    return np.asarray(1.4826 * median(np.abs(some - median(some))), dtype=np.float64)


def _common(within: NDArray[Real], rise: FloatArray) -> NDArray[Real]:
    """Return what the stages have in common, given by how much each rises with it."""
    telling = (rise >= THRESHOLDS.telling * rise.max()).nonzero()[0]
    # Of two stages the lower one: a worker's burst is no long microbatch.
    aligned = [1 + (within[stage] - 1) / within.dtype.type(rise[stage]) for stage in telling]
    common = aligned[0] if len(aligned) == 1 else lower_median(np.array(aligned), axis=0)
    return np.asarray(np.maximum(common, THRESHOLDS.least), dtype=within.dtype)


def _noise(some: Mapping[str, SingleArray], rise: FloatArray) -> float:
    backward = some[BACKWARD_COMPUTE]
    if len(backward) == 1:
        return robust_deviation(some[FORWARD_COMPUTE] / backward)
    # Of two stages the lower one is half of all values: held against it nothing scatters.
    aligned = 1 + (backward - 1) / rise.astype(np.float32)[:, None, None, None]
    return robust_deviation(aligned[1:] - aligned[:-1]) / float(np.sqrt(2))


def _scatter(factor: SingleArray) -> tuple[float, float]:
    """Return the scatter of a DP rank's microbatches: of the mean, and of the median DP rank.

    One DP rank whose worker has slow spells must not pass for lengths that differ everywhere.
    """
    lanes = factor.reshape(-1, factor.shape[-1])
    low, high = quantiles(lanes, (0.16, 0.84))
    by_lane = float(lower_median((high - low) / 2, axis=0))
    return float(factor.std() / factor.mean()), by_lane


def _correlation(forward: SingleArray, backward: SingleArray) -> float:
    """Return Pearson's r with outliers drawn in."""
    x, y = (
        np.clip(values, *quantiles(values, (0.02, 0.98)))
        for values in (sample(forward), sample(backward))
    )
    if (x == x[0]).all() or (y == y[0]).all():
        return 0.0
    return float(np.corrcoef(x, y)[0, 1])


def _few_are_long(
    forward: NDArray[np.bool_], backward: NDArray[np.bool_], *, several: bool
) -> bool:
    """Return whether some microbatches are far longer than most; arrays (passes, steps, dp).

    With several stages they are so on most of them. With one, many DP ranks have them: else it is
    a worker that has bursts.
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
    """Return whether times follow the recorded lengths, and differ by them."""
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
    """Return how long microbatches take, by type, and take it off relative times in place.

    Within a step, and as the microbatches of a DP rank's step happen to be. With one stage the
    backward has it, which no stall of the interpreter lengthens.
    """
    error = chance(difference.scatter, passes[BACKWARD_COMPUTE], lasting=False)
    several = len(relative[BACKWARD_COMPUTE]) > 1
    found = {}
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
        found[name] = Microbatches(within * by_chance(level, rise, error).astype("f4"), curves)
    for name, times in relative.items():
        known = found[name if several else BACKWARD_COMPUTE]
        for stage, of_stage in enumerate(times):
            of_stage /= known.of_stage(stage)  # noqa: PLW2901 - in place
    return found if several else dict.fromkeys(relative, found[BACKWARD_COMPUTE])


def _curve(times: SingleArray, factor: SingleArray, rise: float, scatter: float) -> FloatArray:
    """Return how the times of a stage follow the factor of their microbatch; see `Microbatches`."""
    best = np.array([1 - rise, rise, rise])
    y, x = sample(times).astype(np.float64), sample(factor).astype(np.float64)
    under = np.minimum(x, 1)
    known = np.stack([np.ones_like(x), under, x - under], axis=-1)
    apart = y - known @ best
    # Bursts and stalls do not bend it.
    near = np.abs(apart) <= max(THRESHOLDS.outlying * robust_deviation(apart), scatter)
    found: FloatArray = np.linalg.lstsq(known[near], y[near], rcond=None)[0]
    return found if (found[1:] >= 0).all() else best


def chance(scatter: float, passes: Passes, *, lasting: bool) -> float:
    """Return by how much the median of a worker's microbatches may be off by chance.

    That of its session against that of its peers, or that of its steps.
    """
    _, count, steps, _ = passes.times_ns.shape
    # Chunks compute the same microbatches.
    microbatches = count / (int(passes.chunk.max()) + 1)
    error = 1.25 * scatter / np.sqrt(microbatches * (steps if lasting else 1))
    return float(max(THRESHOLDS.chances * np.sqrt(2) * error, THRESHOLDS.least_scatter))


def by_chance(times: FloatArray, rise: FloatArray, error: float) -> FloatArray:
    """Return how much longer the microbatches of each DP rank happen to be, shape (…, dp).

    That is the same on all stages (the first axis), and within what their number allows. What is
    beyond that on some stages is a slow worker's, or that of its peers; where all stages
    say the same the DP rank has longer microbatches.
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


# ---- What of a computation's time belongs to its microbatch, and what to its worker ------------
# A computation takes its worker's typical time, times a factor that its microbatch has on every
# stage alike (sequence lengths), times a residual: a slow spell of the worker, or a single stall.


@dataclass(frozen=True, slots=True, eq=False)
class Effects:
    """Times taken apart."""

    difference: Difference  # whether microbatches have times of their own
    # For each type how long they take; empty where they do not differ.
    microbatches: dict[str, Microbatches]
    # (pp, steps, dp), by type: how many times as slow each worker is in each step as its stage's
    # peers are over the session; all 1 with one DP rank but for what changes over the steps.
    worker: dict[str, FloatArray]
    # (pp, passes, steps, dp): residuals of forward and backward over the worker's typical time.
    residual: dict[str, SingleArray]

    @property
    def noise(self) -> float:
        """Return the noise of the residuals."""
        return self.difference.noise


def slowness_by_stage(observation: Observation) -> dict[str, FloatArray]:
    """Return what `Effects.worker` is, each stage taken apart by itself.

    That is less: what is the microbatch's is told as with one stage.
    """
    stages = [
        split_effects(observation.passes_of(stage)).worker for stage in range(observation.layout.pp)
    ]
    return {name: np.concatenate([worker[name] for worker in stages]) for name in stages[0]}


def split_effects(passes: Mapping[str, Passes], lengths: RecordedLengths | None = None) -> Effects:
    """Separate microbatches, workers and residuals of computations, given by type."""
    residual = {name: values.relative() for name, values in passes.items()}
    by_step = {name: of_steps(values) for name, values in residual.items()}
    difference = compare_microbatches(residual, by_step, lengths)
    microbatches = {}
    if difference.differ:
        # changes the residuals
        microbatches = divide_out(passes, residual, by_step, difference)
        by_step = {name: of_steps(values) for name, values in residual.items()}
    worker = {}
    for name, values in passes.items():
        lasting = (values.own_ns / peers_median(values.own_ns)).mean(axis=1)
        if difference.differ:
            error = chance(difference.scatter, values, lasting=True)
            longer = by_chance(lasting, difference.rise[name], error)
            own = microbatches[name]
            for stage, of_stage in enumerate(lasting):
                of_stage /= own.on(stage, longer)  # noqa: PLW2901 - in place
            # One median of all DP ranks: those above it have other peers than those below.
            level = (values.own_ns / np.median(values.own_ns, axis=-1, keepdims=True)).mean(axis=1)
            microbatches[name] = own.times(by_chance(level, difference.rise[name], error))
        worker[name] = lasting[:, None, :] * by_step[name].astype(np.float64)
    return Effects(difference, microbatches, worker, residual)
