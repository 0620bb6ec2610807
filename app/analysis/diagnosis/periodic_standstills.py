"""Steps that begin much later than others, and the interval between them in steps.

A job that stops every n steps does work of its own there, such as a checkpoint. A job that waits
for data begins every step late, and some steps later still.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import comb, gcd
from typing import Final

import numpy as np
from numpy.typing import NDArray

from app.analysis.diagnosis.observation import Observation
from app.analysis.diagnosis.session_view import Signs
from app.analysis.replay.layout.dense import FloatArray, IntArray
from app.analysis.replay.robust_statistics import median

# ---- Steps that something strikes again and again, at even intervals ---------------------------


_NAMED: Final = 6
# Any two steps are some number apart: of fewer an interval is no period.
FEWEST: Final = 3


def interval(steps: IntArray, struck: NDArray[np.bool_]) -> int:
    """Return how many steps apart those are that are struck, or what divides that; 0 if not evenly.

    Every recorded step at that interval is struck as well. Of a single one nothing is known.

    Parameters
    ----------
    steps : int64 array, shape (steps,)
        Those of which it is known, ascending.
    struck : bool array, shape (steps,)
    """
    if struck.sum() < 2:  # noqa: PLR2004 - a pair
        return 0
    apart = gcd(*np.diff(steps[struck]).tolist())
    evenly = apart > 1 and (struck == (steps % apart == steps[struck][0] % apart)).all()
    return apart if evenly else 0


def listed(steps: Sequence[int]) -> str:
    """Return the first ones of some steps in words.

    Examples
    --------
    >>> listed([12])
    'step 12'
    >>> listed([12, 20, 28])
    'steps 12, 20, 28'
    """
    text = ", ".join(map(str, steps[:_NAMED])) + ("…" if len(steps) > _NAMED else "")
    return f"step {text}" if len(steps) == 1 else f"steps {text}"


# ---- Steps that begin far later than others, and how many steps they are apart -----------------
# A job that stands still at a fixed interval of steps does something of its own there; where it
# also waits for its data, each step begins late, and some beyond that.


@dataclass(frozen=True, slots=True)
class Thresholds:
    """What decides whether steps stand still."""

    standstill: float = 0.05  # A step stands still when it begins late by this share of a step.
    # A step is struck when its standstill is this share of the longest: a job does about as much
    # each time.
    alike: float = 0.5
    others: float = 0.25  # other steps begin late by this share of a standstill at most
    # …and beyond what steps usually do, where the standstills are at even intervals for sure.
    others_beyond: float = 0.5
    # …or however late, where the latest steps would be so far apart with this probability; up to
    # the second one it may be as well that they are.
    by_chance: float = 0.01
    may_be: float = 0.2
    # …or by this share, where one or two steps may be something else than data that is late.
    others_beyond_few: float = 0.35
    fewest_others: int = 2  # steps that are not struck; with fewer there is no period
    sure_from: int = 3  # standstills that are not in doubt: any two steps are some number apart


THRESHOLDS: Final = Thresholds()

# Shape (steps,), which are struck; and what their numbers are apart, or several times that: 0 of a
# single one.
Struck = tuple[NDArray[np.bool_], int]


def by_stage(observation: Observation, first: dict[int, FloatArray]) -> dict[int, FloatArray]:
    """Return how late each stage begins, shape (steps, dp): by what it launches latest."""
    stages = observation.layout.nodes.pp
    found: dict[int, FloatArray] = {}
    for node, delay in first.items():
        stage = int(stages[node])
        found[stage] = np.maximum(found.get(stage, 0.0), delay)
    return found


def together_ns(stages: Mapping[int, FloatArray]) -> FloatArray:
    """Return how late each step begins: the earliest stage's median over the DP ranks, (steps,)."""
    return np.asarray(np.min([median(delay.T) for delay in stages.values()], axis=0))


def stands_still(signs: Signs, late_ns: FloatArray) -> bool:
    """Return whether any step begins so late that it stands still."""
    return bool(late_ns.max() >= THRESHOLDS.standstill * signs.step_ns)


def at_intervals(observation: Observation, late_ns: FloatArray) -> Struck | None:
    """Return the steps that stand still, given how late each begins; None where none do.

    A single one, or some at even intervals. Where all steps wait for their data as well, some stand
    still beyond that; few do by chance.
    """
    found = _beyond(observation, late_ns, THRESHOLDS.others)
    if found is None:
        found = _beyond_others(observation, late_ns)
        if found is not None and found[0].sum() < THRESHOLDS.sure_from:
            return None
    return found


def may_stand_still(signs: Signs, first: dict[int, FloatArray]) -> NDArray[np.bool_] | None:
    """Return the steps, shape (steps,), that begin latest, perhaps for another reason; or None.

    One or two that begin far later than others, or some that are evenly apart, perhaps by chance;
    on all DP ranks or on the slowest one. Nothing tells them from data that is
    late there.
    """
    observation = signs.observation
    if any(node in observation.explained.late_ns for node in first):
        # what stands still is known
        return None
    stages = by_stage(observation, first)
    if not stages:
        return None
    of_rank = np.min(list(stages.values()), axis=0)
    slowest = int(np.argmax(of_rank.sum(axis=0)))
    for late_ns in (together_ns(stages), of_rank[:, slowest]):
        if not stands_still(signs, late_ns):
            continue
        beyond_ns = late_ns - np.quantile(late_ns, 0.25)
        found = _beyond(observation, beyond_ns, THRESHOLDS.others_beyond_few)
        if found is None or found[0].sum() >= THRESHOLDS.sure_from:
            found = _by_period(observation, beyond_ns, THRESHOLDS.may_be)
        if found is not None:
            return found[0]
    return None


def _beyond_others(observation: Observation, late_ns: FloatArray) -> Struck | None:
    """Return what `_beyond` does of what steps begin later than they all do."""
    # at most every other step is struck
    beyond_ns = late_ns - np.quantile(late_ns, 0.25)
    found = _beyond(observation, beyond_ns, THRESHOLDS.others_beyond)
    if found is not None:
        return found
    return _by_period(observation, beyond_ns, THRESHOLDS.by_chance)


def _by_period(observation: Observation, beyond_ns: FloatArray, chance: float) -> Struck | None:
    """Return the steps that begin latest, and what they are apart, where that is hardly chance.

    However different their lateness is: all steps of a period are among the latest, and no others.
    """
    steps = observation.layout.steps
    latest, count = np.argsort(-beyond_ns, kind="stable"), len(steps)
    most = count // 2
    for size in range(THRESHOLDS.sure_from, most + 1):
        struck = np.zeros(count, dtype=bool)
        struck[latest[:size]] = True
        apart = _apart(observation, struck)
        # as many sets of steps would do, of all that are as large
        if apart and most * _periods(steps, size, apart) / comb(count, size) <= chance:
            return struck, apart
    return None


def _apart(observation: Observation, struck: NDArray[np.bool_]) -> int:
    """Return how many steps apart some are, all of them; 0 where they are not."""
    steps = observation.layout.steps
    if observation.group.graph.chained and not struck[0]:
        # steps that begin with the end of the one before: when the first one could is not known
        return interval(steps[1:], struck[1:])
    return interval(steps, struck)


def _periods(steps: IntArray, size: int, longest: int) -> int:
    """Return how many sets of `size` of some steps are all that are a number of steps apart."""
    return sum(int((np.bincount(steps % apart) == size).sum()) for apart in range(2, longest + 1))


def _beyond(observation: Observation, late_ns: FloatArray, others: float) -> Struck | None:
    """Return which steps stand still, and what they are apart; else None.

    Other steps begin late by a share `others` of that at most.
    """
    struck = late_ns >= THRESHOLDS.alike * late_ns.max()
    if (~struck).sum() < THRESHOLDS.fewest_others:
        return None
    if late_ns[~struck].max() > others * late_ns[struck].min():
        return None
    if struck.sum() == 1:
        return struck, 0
    apart = _apart(observation, struck)
    return (struck, apart) if apart else None
