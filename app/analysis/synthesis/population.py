"""Random realistic jobs with a given cause of straggling and a given true slowdown.

Fleets are made of them, and diagnoses are scored on them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np

from app.analysis.synthesis.dials import (
    BETWEEN_STEPS,
    CHECKPOINTS_WRITTEN,
    DIALS,
    LOADER_STALLS,
    Sick,
    needs_of,
)
from app.analysis.synthesis.job import JobModel
from app.analysis.synthesis.random_jobs import USUAL, Range, draw_job
from app.analysis.synthesis.randomness import stream
from app.analysis.synthesis.synthesize import (
    SyntheticSession,
    synthesize,
    true_slowdown,
    true_turn_slowdown,
)

if TYPE_CHECKING:
    from app.analysis.synthesis.injections.base import Injection

# Strengths of an injection that are tried for a slowdown, at most.
_ROUNDS: Final = 8


class SlowdownOf(Protocol):
    """A slowdown of a job with injections, as `true_slowdown` is one."""

    def __call__(self, job: JobModel, injections: Sequence[Injection], *, seed: int) -> float:
        """Return how many times as long the job takes."""
        ...


@dataclass(frozen=True, slots=True)
class Goal:
    """The slowdown that a job shall have, by which measure, and the share it may be off."""

    slowdown: float
    slowdown_of: SlowdownOf = true_slowdown
    near: float = 0.03


def draw_session(
    causes: Sequence[str], slowdown: float, seed: int, sizes: Range = USUAL
) -> SyntheticSession:
    """Return a random job with the named causes and about the given true slowdown.

    Causes are `CAUSES`, or one of `LAST_STAGE`, `LONG_CONTEXT`, `COLLECTING`,
    `FRAGMENTED`.
    Several causes get equal strength. Without a cause the job is healthy, whatever the slowdown.
    Where no strength reaches the slowdown, the strongest that was tried is taken.
    """
    job = draw_job(stream(seed, "population"), needs_of(causes), sizes)
    return afflict(job, causes, goal_of(causes, slowdown), seed)


def goal_of(causes: Sequence[str], slowdown: float) -> Goal:
    """Return the goal that causes can reach: some lengthen no step, but the time between them."""
    between = {*BETWEEN_STEPS, LOADER_STALLS, CHECKPOINTS_WRITTEN}
    return Goal(slowdown, true_turn_slowdown if between & set(causes) else true_slowdown)


def afflict(job: JobModel, causes: Sequence[str], goal: Goal, seed: int) -> SyntheticSession:
    """Return the job with the named causes, as strong as the goal needs."""
    if not causes:
        return synthesize(job, seed=seed)

    def with_strength(strength: float) -> Sick:
        sick: Sick = (job, ())
        for cause in causes:
            changed, added = DIALS[cause][1](sick[0], strength, stream(seed, "dials", cause))
            sick = (changed, (*sick[1], *added))
        return sick

    found = _seek(with_strength, goal, seed)
    return synthesize(*found, seed=seed)


def _seek(with_strength: Callable[[float], Sick], goal: Goal, seed: int) -> Sick:
    """Return the job that is nearest to the goal; more strength is slower."""
    slowdown = goal.slowdown
    low, high, strength = 0.0, np.inf, 1.0
    best: tuple[float, Sick] | None = None
    for _ in range(_ROUNDS):
        sick = with_strength(strength)
        reached = goal.slowdown_of(*sick, seed=seed)
        off = abs(reached - slowdown)
        if best is None or off < best[0]:
            best = (off, sick)
        if off <= goal.near * slowdown and reached >= min(slowdown, 1.1):
            break
        low, high = (strength, high) if reached < slowdown else (low, strength)
        grown = (slowdown - 1) / max(reached - 1, 1e-3)
        guess = strength * min(max(grown, 0.2), 5.0)
        strength = guess if low < guess < high else (low + min(high, 4 * low + 1)) / 2
    assert best is not None  # noqa: S101 - there is at least one round
    return best[1]
