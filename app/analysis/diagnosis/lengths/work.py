"""How slow all workers are together, apart from what they have to compute by recorded lengths."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import numpy as np

from app.analysis.budget.common_factor import CommonFactor, common_factor, computing_ns
from app.analysis.diagnosis.lengths.recorded import recorded_lengths
from app.analysis.diagnosis.observation import Observation
from app.analysis.replay.layout.dense import FloatArray
from app.analysis.replay.medians import median


@dataclass(frozen=True, slots=True, eq=False)
class Together:
    """How slow all workers are in each step."""

    factor: CommonFactor
    # How many times as much work there is in its slow steps as in its best ones; None where
    # lengths do not tell.
    work: float | None = None


def computing_of_steps(observation: Observation) -> FloatArray:
    """Return what each worker computes in each step, shape (pp, steps, dp), ns."""
    return computing_ns(observation.layout, observation.recorded_ns)


def slow_together(observation: Observation) -> Together:
    """Return what `common_factor` finds in a session, work apart where lengths are recorded."""
    steps = observation.layout.steps
    computing = observation.once(computing_of_steps)
    found = common_factor(computing, steps)
    if not found.slow.any():
        return Together(found)
    work = work_of_steps(observation, computing)
    if work is None:
        return Together(found)
    by_step = work.mean(axis=1)
    more = float(by_step[found.slow].mean() / by_step[found.best].mean())
    return Together(common_factor(computing, steps, work), more)


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
