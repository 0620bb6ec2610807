"""Sequence lengths in the metadata, and the slowdown of all workers net of sequence lengths."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import Final

import numpy as np

from app.analysis.budget.common_slowdown import CommonFactor, common_factor, computing_ns
from app.analysis.diagnosis.observation import Observation
from app.analysis.quantities import FloatArray, IntArray
from app.analysis.replay.robust_statistics import median
from app.analysis.trace.model import ABSENT, BACKWARD_COMPUTE

FEWEST: Final = 8  # microbatches that are needed
ENOUGH: Final = 4_000  # microbatches that suffice to see whether times follow lengths
# Longest sequence that counts as a length, as metadata come from the client unchecked.
_LONGEST: Final = 1e12
_KEY: Final = "sequence_lengths"


@dataclass(frozen=True, slots=True, eq=False)
class RecordedLengths:
    """Recorded sequence lengths of some microbatches, arrays of shape (microbatches,)."""

    # passes, steps, dp: index of each microbatch in the array of backward times, by axis
    passes: IntArray
    steps: IntArray
    dp: IntArray
    # tokens, squares: Σs and Σs² over the sequences of each microbatch
    tokens: FloatArray
    squares: FloatArray

    def of(self, values: np.ndarray[tuple[int, ...], np.dtype[np.float32]]) -> FloatArray:
        """Return the values for these microbatches from an array of shape (passes, steps, dp)."""
        return np.asarray(values[self.passes, self.steps, self.dp], dtype=np.float64)

    def explain(self, times: FloatArray) -> FloatArray:
        """Return the least-squares fit of times by a cost that is linear in Σs and Σs²."""
        scale = (max(self.tokens.max(), 1.0), max(self.squares.max(), 1.0))
        terms = np.stack(
            [np.ones(len(times)), self.tokens / scale[0], self.squares / scale[1]], axis=1
        )
        return np.asarray(terms @ np.linalg.lstsq(terms, times, rcond=None)[0])


def recorded_lengths(observation: Observation, most: int | None = None) -> RecordedLengths | None:
    """Return recorded lengths of microbatches; None if too few, or stages not comparable.

    About `most` microbatches are included, sampled by steps and DP ranks; all microbatches if
    `most` is None.
    """
    recorded = observation.trace.meta.extra.get(_KEY)
    if not isinstance(recorded, dict):
        return None
    layout = observation.layout
    numbers = layout.nodes.mb[observation.passes[BACKWARD_COMPUTE].nodes[0]].tolist()
    lanes = [(step, dp) for step in range(len(layout.steps)) for dp in range(layout.dp)]
    # An odd stride ensures that the sample contains different DP ranks.
    every = 1 if most is None else len(lanes) * len(numbers) // most | 1
    rows: list[tuple[int, int, int, float, float]] = []
    for step, dp in lanes[::every]:
        ranks = recorded.get(str(int(layout.steps[step])))
        lengths = ranks[dp] if isinstance(ranks, list) and dp < len(ranks) else None
        for position, number in enumerate(numbers):
            sums = _sums(lengths, number)
            if sums is not None:
                rows.append((position, step, dp, *sums))
    if len(rows) < FEWEST:
        return None
    places = np.array([row[:3] for row in rows], dtype=np.int64).T
    sums_of = np.array([row[3:] for row in rows]).T
    return RecordedLengths(*places, *sums_of)


def some_lengths(observation: Observation) -> RecordedLengths | None:
    """Return enough recorded lengths to see whether the times of microbatches follow them."""
    return recorded_lengths(observation, ENOUGH)


def _sums(lengths: object, microbatch: int) -> tuple[float, float] | None:
    """Return Σs and Σs² of a microbatch from its DP rank's metadata; None without lengths."""
    if not isinstance(lengths, list) or not ABSENT < microbatch < len(lengths):
        return None
    sequences = lengths[microbatch]
    if not isinstance(sequences, list) or not all(
        isinstance(s, int | float) and not isinstance(s, bool) and 0 <= s <= _LONGEST
        for s in sequences
    ):
        return None
    return float(sum(sequences)), float(sum(s * s for s in sequences))


@dataclass(frozen=True, slots=True, eq=False)
class SlowTogether:
    """Slowdown that all workers share, in each step."""

    factor: CommonFactor
    # work of the slow steps ÷ work of the best steps, by recorded lengths; None if unknown
    work: float | None = None


def computing_of_steps(observation: Observation) -> FloatArray:
    """Return the computing time of each worker in each step, shape (pp, steps, dp), ns."""
    return computing_ns(observation.layout, observation.recorded_ns)


def slow_together(observation: Observation) -> SlowTogether:
    """Return the slowdown that all workers share, net of their work if lengths are recorded."""
    steps = observation.layout.steps
    computing = observation.memoize(computing_of_steps)
    factor = common_factor(computing, steps)
    if not factor.slow.any():
        return SlowTogether(factor)
    work = work_of_steps(observation, computing)
    if work is None:
        return SlowTogether(factor)
    by_step = work.mean(axis=1)
    more = float(by_step[factor.slow].mean() / by_step[factor.best].mean())
    return SlowTogether(common_factor(computing, steps, work), more)


def work_of_steps(observation: Observation, computing_ns: FloatArray) -> FloatArray | None:
    """Return the cost of each DP rank's microbatches by their lengths, shape (steps, dp).

    The cost is linear in Σs and Σs² of the step with non-negative coefficients, fitted to the
    computing times. None if lengths of a step or DP rank are missing, or all are equal.

    Parameters
    ----------
    computing_ns : array, shape (pp, steps, dp)
        Computing time of each worker and step.
    """
    lengths = recorded_lengths(observation) if observation.comparable else None
    if lengths is None:
        return None
    shape = computing_ns.shape[1:]
    count, tokens, squares = np.zeros(shape), np.zeros(shape), np.zeros(shape)
    place = (lengths.steps, lengths.dp)
    np.add.at(count, place, 1.0)
    np.add.at(tokens, place, lengths.tokens)
    np.add.at(squares, place, lengths.squares)
    if count.min() < count.max() or tokens.min() <= 0 or np.ptp(squares) == 0:
        return None
    taken = computing_ns / np.median(computing_ns, axis=1, keepdims=True)
    terms = np.stack([np.ones(tokens.size), *(x.ravel() / x.max() for x in (tokens, squares))])
    fitted = _fit(terms, median(taken).ravel())
    return None if fitted is None else fitted.reshape(shape)


def _fit(terms: FloatArray, taken: FloatArray) -> FloatArray | None:
    """Return the non-negative least-squares fit of times by `terms`, shape (values,).

    `terms` has the shape (terms, values); as there are three terms, all subsets are tried. None if
    no fit is positive.
    """
    least, best = np.inf, None
    for size in range(1, len(terms) + 1):
        for chosen in combinations(range(len(terms)), size):
            columns = terms[list(chosen)].T
            weights = np.linalg.lstsq(columns, taken, rcond=None)[0]
            fitted = columns @ weights
            residual = float(np.square(taken - fitted).sum())
            if (weights >= 0).all() and fitted.min() > 0 and residual < least:
                least, best = residual, fitted
    return best
