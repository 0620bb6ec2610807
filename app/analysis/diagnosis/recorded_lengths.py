"""Sequence lengths from the metadata, and the common slowdown net of the recorded lengths."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import Final

import numpy as np

from app.analysis.budget.common_slowdown import CommonFactor, common_factor, computing_ns
from app.analysis.diagnosis.observation import Observation
from app.analysis.replay.layout.dense import FloatArray, IntArray
from app.analysis.replay.robust_statistics import median
from app.analysis.trace.model import ABSENT, BACKWARD_COMPUTE

# ---- Lengths of sequences as the metadata hold them, by the computations of their microbatches ---


# Fewer microbatches tell nothing; this number tells whether times follow lengths.
FEWEST: Final = 8
ENOUGH: Final = 4_000
# Metadata are their sender's: a length beyond this is none.
_LONGEST: Final = 1e12
_KEY: Final = "sequence_lengths"


@dataclass(frozen=True, slots=True, eq=False)
class RecordedLengths:
    """What is known of some microbatches."""

    # passes, steps, dp: (microbatches,): which they are, as indices into the times of backwards
    passes: IntArray
    steps: IntArray
    dp: IntArray
    # tokens, squares: (microbatches,): Σs and Σs² of their sequences
    tokens: FloatArray
    squares: FloatArray

    def of(self, values: np.ndarray[tuple[int, ...], np.dtype[np.float32]]) -> FloatArray:
        """Return what values of shape (passes, steps, dp) are for these microbatches."""
        return np.asarray(values[self.passes, self.steps, self.dp], dtype=np.float64)

    def explain(self, times: FloatArray) -> FloatArray:
        """Return the times that a cost linear in Σs and Σs² fits best to some."""
        scale = (max(self.tokens.max(), 1.0), max(self.squares.max(), 1.0))
        known = np.stack(
            [np.ones(len(times)), self.tokens / scale[0], self.squares / scale[1]], axis=1
        )
        return np.asarray(known @ np.linalg.lstsq(known, times, rcond=None)[0])


def recorded_lengths(observation: Observation, most: int | None = None) -> RecordedLengths | None:
    """Return the recorded lengths, where stages are comparable; None where there are too few.

    About `most` microbatches are enough; those of some steps and DP ranks are taken.
    """
    recorded = observation.trace.meta.extra.get(_KEY)
    if not isinstance(recorded, dict):
        return None
    layout = observation.layout
    numbers = layout.nodes.mb[observation.passes[BACKWARD_COMPUTE].nodes[0]].tolist()
    lanes = [(step, dp) for step in range(len(layout.steps)) for dp in range(layout.dp)]
    # An odd stride does not always meet the same DP ranks.
    every = 1 if most is None else len(lanes) * len(numbers) // most | 1
    found: list[tuple[int, int, int, float, float]] = []
    for step, dp in lanes[::every]:
        ranks = recorded.get(str(int(layout.steps[step])))
        lengths = ranks[dp] if isinstance(ranks, list) and dp < len(ranks) else None
        for position, number in enumerate(numbers):
            sums = _sums(lengths, number)
            if sums is not None:
                found.append((position, step, dp, *sums))
    if len(found) < FEWEST:
        return None
    places = np.array([item[:3] for item in found], dtype=np.int64).T
    sums_of = np.array([item[3:] for item in found]).T
    return RecordedLengths(*places, *sums_of)


def some_lengths(observation: Observation) -> RecordedLengths | None:
    """Return the recorded lengths of enough microbatches to tell whether times follow them."""
    return recorded_lengths(observation, ENOUGH)


def _sums(lengths: object, microbatch: int) -> tuple[float, float] | None:
    """Return Σs and Σs² of a microbatch, given what was recorded of its DP rank; None if nothing.

    What is no list of lengths counts as nothing.
    """
    if not isinstance(lengths, list) or not ABSENT < microbatch < len(lengths):
        return None
    sequences = lengths[microbatch]
    if not isinstance(sequences, list) or not all(_is_length(s) for s in sequences):
        return None
    return float(sum(sequences)), float(sum(s * s for s in sequences))


def _is_length(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return 0 <= value <= _LONGEST


# ---- How slow all workers are together, apart from what they have to compute by recorded lengths -


@dataclass(frozen=True, slots=True, eq=False)
class SlowTogether:
    """How slow all workers are in each step."""

    factor: CommonFactor
    # How many times as much work there is in its slow steps as in its best ones; None where
    # lengths do not tell.
    work: float | None = None


def computing_of_steps(observation: Observation) -> FloatArray:
    """Return what each worker computes in each step, shape (pp, steps, dp), ns."""
    return computing_ns(observation.layout, observation.recorded_ns)


def slow_together(observation: Observation) -> SlowTogether:
    """Return what `common_factor` finds in a session, work apart where lengths are recorded."""
    steps = observation.layout.steps
    computing = observation.once(computing_of_steps)
    found = common_factor(computing, steps)
    if not found.slow.any():
        return SlowTogether(found)
    work = work_of_steps(observation, computing)
    if work is None:
        return SlowTogether(found)
    by_step = work.mean(axis=1)
    more = float(by_step[found.slow].mean() / by_step[found.best].mean())
    return SlowTogether(common_factor(computing, steps, work), more)


def work_of_steps(observation: Observation, computing_ns: FloatArray) -> FloatArray | None:
    """Return what a DP rank's microbatches of a step cost by their lengths, shape (steps, dp).

    The cost is linear in Σs and Σs² of the step, and no part of it is negative; of that the fit is
    taken that is nearest to what was computed. None where the lengths of any step or DP rank are
    not recorded, or all are alike.

    Parameters
    ----------
    computing_ns : array, shape (pp, steps, dp)
        What each worker computed in each step.
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
    known = np.stack([np.ones(tokens.size), *(x.ravel() / x.max() for x in (tokens, squares))])
    fitted = _fit(known, median(taken).ravel())
    return None if fitted is None else fitted.reshape(shape)


def _fit(known: FloatArray, taken: FloatArray) -> FloatArray | None:
    """Return the nearest sum of some of what is known, none of it negative; None if there is none.

    `known` is of shape (terms, values).
    """
    best, found = np.inf, None
    for size in range(1, len(known) + 1):
        for chosen in combinations(range(len(known)), size):
            terms = known[list(chosen)].T
            weights = np.linalg.lstsq(terms, taken, rcond=None)[0]
            fitted = terms @ weights
            left = float(np.square(taken - fitted).sum())
            if (weights >= 0).all() and fitted.min() > 0 and left < best:
                best, found = left, fitted
    return found
