"""Whether what slows steps down comes evenly: runs of slow steps and of others, all much alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from app.analysis.replay.layout.dense import FloatArray
from app.analysis.replay.medians import mean

# Slow steps are told from others when these two differ by that many standard deviations within.
_APART: Final = 4.0
# Runs with a beginning and an end that tell how they scatter; two of each kind at least.
_FEWEST: Final = 4
# Lengths of even runs have a variance of at most this share of their mean's square. Those of runs
# that end by chance have about 0.7 where they last three steps on average: of four to eight of
# these 2 % to 3 % of the sessions look even.
_EVEN: Final = 0.15


@dataclass(frozen=True, slots=True, eq=False)
class EvenRuns:
    """Slow steps that come evenly."""

    slow: NDArray[np.bool_]  # (steps,)
    cycle: float  # steps of a slow run and of the one after it, on average
    share: float  # of a cycle that is slow
    exact: bool  # whether all runs of a kind are as long


def even_runs(taken: FloatArray) -> EvenRuns | None:
    """Return the runs of slow steps, if these are told from the others and come evenly.

    Parameters
    ----------
    taken : float64 array, shape (steps,)
        How long steps take, in their order.

    Examples
    --------
    Every fourth step writes a checkpoint:

    >>> import numpy as np
    >>> runs = even_runs(np.array([1.0, 1.0, 1.0, 3.0] * 6))
    >>> runs.cycle, runs.share, runs.exact
    (4.0, 0.25, True)
    """
    slow = taken > (taken.min() + taken.max()) / 2
    if not slow.any():
        return None
    apart = mean(taken[slow]) - mean(taken[~slow])
    within = slow.mean() * taken[slow].var() + (~slow).mean() * taken[~slow].var()
    if apart**2 < _APART**2 * within:
        return None
    bounds = np.flatnonzero(np.diff(slow)) + 1
    lengths = np.diff(np.concatenate([[0], bounds, [len(slow)]]))
    kind = slow[np.concatenate([[0], bounds])]
    # The first and the last run may have begun before, or end later.
    inner = slice(1, -1)
    if len(lengths[inner]) < _FEWEST:
        return None
    usual = {which: float(lengths[inner][kind[inner] == which].mean()) for which in (True, False)}
    relative = lengths / np.where(kind, usual[True], usual[False])
    ends = relative[[0, -1]]
    # What is cut off tells something where it is longer than others all the same.
    told = np.concatenate([relative[inner], ends[ends > 1]])
    if ((told - 1) ** 2).sum() > _EVEN * (len(told) - 2):
        return None
    cycle = usual[True] + usual[False]
    return EvenRuns(slow, cycle, usual[True] / cycle, bool((told == 1).all()))
