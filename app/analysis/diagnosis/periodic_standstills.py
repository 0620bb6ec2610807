"""Steps that begin much later than other steps, and their interval in steps.

A job that stops every n steps does work at these steps that is not part of a step, such as a
checkpoint. A job that waits for data begins every step late, and some steps later than others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import comb, gcd
from typing import Final

import numpy as np

from app.analysis.diagnosis.observation import Observation
from app.analysis.diagnosis.session_view import Signs
from app.analysis.quantities import BoolArray, FloatArray, IntArray
from app.analysis.replay.robust_statistics import median

_NAMED: Final = 6
# Shortest interval, in steps, that counts as a period: any two steps have some interval.
FEWEST: Final = 3


def interval(steps: IntArray, struck: BoolArray) -> int:
    """Return the interval of the struck steps, in steps; 0 if they are not periodic.

    The interval is the greatest common divisor of the distances between struck steps, if every
    recorded step at this interval is struck. A single step has no interval.

    Parameters
    ----------
    steps : int64 array, shape (steps,)
        Numbers of the recorded steps, ascending.
    struck : bool array, shape (steps,)
    """
    if struck.sum() < 2:  # noqa: PLR2004 - a pair
        return 0
    apart = gcd(*np.diff(steps[struck]).tolist())
    evenly = apart > 1 and (struck == (steps % apart == steps[struck][0] % apart)).all()
    return apart if evenly else 0


def listed(steps: Sequence[int]) -> str:
    """Return the words for steps: ``steps 12, 20, 28``, at most six of them.

    Examples
    --------
    >>> listed([12])
    'step 12'
    >>> listed([12, 20, 28])
    'steps 12, 20, 28'
    """
    text = ", ".join(map(str, steps[:_NAMED])) + ("…" if len(steps) > _NAMED else "")
    return f"step {text}" if len(steps) == 1 else f"steps {text}"


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Thresholds that decide whether steps stand still."""

    standstill: float = 0.05  # A step stands still when it begins late by this share of a step.
    # A step is struck when its standstill is this share of the longest standstill: the job's work
    # in standstills is about equal.
    alike: float = 0.5
    others: float = 0.25  # other steps are late by at most this share of a standstill
    # …or by this share beyond the usual lateness, if the standstills are certainly periodic
    others_beyond: float = 0.5
    # …or by any amount, if the probability that the latest steps are periodic by chance is at most
    # `by_chance`; from there up to `may_be`, the finding is in doubt
    by_chance: float = 0.01
    may_be: float = 0.2
    # …or by this share, if one or two steps may stand still for a reason other than late data
    others_beyond_few: float = 0.35
    fewest_others: int = 2  # steps that are not struck; with fewer there is no period
    sure_from: int = 3  # standstills that make a period: any two steps are some number apart


THRESHOLDS: Final = Thresholds()

# The struck steps, shape (steps,), and their interval in steps or a divisor of it; 0 for a single
# step.
Struck = tuple[BoolArray, int]


def by_stage(observation: Observation, first: dict[int, FloatArray]) -> dict[int, FloatArray]:
    """Return the delay of each stage's latest first operation, by stage, (steps, dp), ns."""
    stages = observation.layout.nodes.pp
    late_ns: dict[int, FloatArray] = {}
    for node, delay in first.items():
        stage = int(stages[node])
        late_ns[stage] = np.maximum(late_ns.get(stage, 0.0), delay)
    return late_ns


def together_ns(stages: Mapping[int, FloatArray]) -> FloatArray:
    """Return each step's lateness: the earliest stage's median over DP ranks, (steps,), ns."""
    return np.asarray(np.min([median(delay.T) for delay in stages.values()], axis=0))


def stands_still(signs: Signs, late_ns: FloatArray) -> bool:
    """Return whether any step begins late enough to count as standing still."""
    return bool(late_ns.max() >= THRESHOLDS.standstill * signs.step_ns)


def at_intervals(observation: Observation, late_ns: FloatArray) -> Struck | None:
    """Return the steps that stand still, given each step's lateness; None if none do.

    The result is a single step, or several steps at equal intervals. If all steps wait for their
    data too, some steps stand still for longer than this wait; then a small number of such steps is
    chance.
    """
    struck = _beyond(observation, late_ns, THRESHOLDS.others)
    if struck is None:
        # At most every other step is struck, so the lower quartile is the usual lateness.
        beyond_ns = late_ns - np.quantile(late_ns, 0.25)
        struck = _beyond(observation, beyond_ns, THRESHOLDS.others_beyond)
        if struck is None:
            struck = _by_period(observation, beyond_ns, THRESHOLDS.by_chance)
        if struck is not None and struck[0].sum() < THRESHOLDS.sure_from:
            return None
    return struck


def may_stand_still(signs: Signs, first: dict[int, FloatArray]) -> BoolArray | None:
    """Return a mask of the steps that may be standstills, shape (steps,); None if there are none.

    The result is one or two steps that begin far later than the other steps, or several steps at
    equal intervals, which may be chance; the delay is on all DP ranks, or on the slowest DP rank.
    Slow data loading would look the same.
    """
    observation = signs.observation
    if any(node in observation.explained.late_ns for node in first):
        # A cause that was found earlier already explains standstills.
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
        struck = _beyond(observation, beyond_ns, THRESHOLDS.others_beyond_few)
        if struck is None or struck[0].sum() >= THRESHOLDS.sure_from:
            struck = _by_period(observation, beyond_ns, THRESHOLDS.may_be)
        if struck is not None:
            return struck[0]
    return None


def _by_period(observation: Observation, beyond_ns: FloatArray, chance: float) -> Struck | None:
    """Return the latest steps and their interval, if periodic by chance with at most `chance`.

    The amounts of lateness do not matter: exactly the steps of a period must be the latest.
    """
    steps = observation.layout.steps
    latest, count = np.argsort(-beyond_ns, kind="stable"), len(steps)
    most = count // 2
    for size in range(THRESHOLDS.sure_from, most + 1):
        struck = np.zeros(count, dtype=bool)
        struck[latest[:size]] = True
        apart = _apart(observation, struck)
        # Number of sets of this size that are periodic; the probability by chance is corrected for
        # the number of sizes tried.
        periodic = sum(
            int((np.bincount(steps % period) == size).sum()) for period in range(2, apart + 1)
        )
        if apart and most * periodic / comb(count, size) <= chance:
            return struck, apart
    return None


def _apart(observation: Observation, struck: BoolArray) -> int:
    """Return the interval of the struck steps, in steps; 0 if they are not periodic."""
    steps = observation.layout.steps
    if observation.group.graph.chained and not struck[0]:
        # A chained step begins when the previous step ends, so the begin of the first step is
        # unknown.
        return interval(steps[1:], struck[1:])
    return interval(steps, struck)


def _beyond(observation: Observation, late_ns: FloatArray, others: float) -> Struck | None:
    """Return the steps that stand still, and their interval; None if no step stands still.

    Other steps are late by at most the share `others` of a standstill.
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
