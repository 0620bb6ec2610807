"""What the optimal search minimizes: how its passes price stages, and what bounds an interval."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from app.analysis.planning.problem import PlanningProblem
from app.analysis.planning.search.kernels import FAR
from app.analysis.planning.search.passes import SearchGoal, Variant, cheapest_within
from app.analysis.planning.template import (
    Template,
    compute_times,
    stage_times,
    t_oobleck,
    t_std,
)


class SearchObjective(Protocol):
    """What differs between objectives."""

    @property
    def name(self) -> str:
        """Return the objective's name."""

    @property
    def with_transfers(self) -> bool:
        """Return whether the intervals are of stages' times with their transfers."""

    def bound(self, cheapest: int, low_ps: int) -> int:
        """Return what no template costs less than, with its slowest stage at least low_ps."""

    def goal(self, low_ps: int, high_ps: int, best: int) -> SearchGoal:
        """Return what to look for in an interval."""

    def value(self, problem: PlanningProblem, template: Template) -> int:
        """Return the true cost."""


@dataclass(frozen=True, slots=True)
class StandardTime:
    """ΣL + (N − 1)·max L."""

    microbatches: int
    name: str = "t_std"
    with_transfers: bool = True

    def bound(self, cheapest: int, low_ps: int) -> int:
        """Return what no template costs less than, with its slowest stage at least low_ps."""
        return cheapest + (self.microbatches - 1) * low_ps

    def goal(self, low_ps: int, high_ps: int, best: int) -> SearchGoal:
        """Return what to look for in an interval."""
        return cheapest_within(high_ps, min(best - (self.microbatches - 1) * low_ps, FAR))

    def value(self, problem: PlanningProblem, template: Template) -> int:
        """Return the true cost."""
        return t_std(stage_times(problem, template), self.microbatches)


@dataclass(frozen=True, slots=True)
class OobleckEstimate:
    """With the slowest stage's time t: ΣL before it, (N_b + 2)·t, Σ(2·L − t) behind it."""

    microbatches: int
    most_stages: int
    name: str = "t_oobleck"
    with_transfers: bool = True

    def bound(self, cheapest: int, low_ps: int) -> int:
        """Return what no template costs less than, with its slowest stage at least low_ps."""
        steady = max(self.microbatches - self.most_stages + 1, 1)
        return cheapest + (steady + 1) * low_ps

    def goal(self, low_ps: int, high_ps: int, best: int) -> SearchGoal:
        """Return what to look for in an interval."""
        variants = (
            Variant(0, 0, 2, -high_ps, 0, high_ps - 1),
            Variant(0, 1, self.microbatches + 2, 0, low_ps, high_ps),
            Variant(1, 1, 1, 0, 0, high_ps),
        )
        return SearchGoal(high_ps, variants, min(best, FAR))

    def value(self, problem: PlanningProblem, template: Template) -> int:
        """Return the true cost."""
        value = t_oobleck(stage_times(problem, template), self.microbatches)
        return FAR if value is None else value


@dataclass(frozen=True, slots=True)
class ExecutedBound:
    """What no execution is shorter than, from the stages' computations C and transfers.

    A slowest stage k takes N·C_k for its computations. Before the first of them a microbatch
    passes the stages before k, and after the last one its gradient does. Between its first forward
    and its first backward the stages behind k work for X = ΣC and their transfers, while k has
    computations of n microbatches to fill the time with, n ≤ the number of these stages: it waits
    X − n·F or longer, and between its last ones X − n·B. Of fewer stages than microbatches both
    waits count, Σ(2·C − C_k); else the two can be one, of at least half.

    `fewer` says of which templates this is a bound: those with fewer stages than microbatches, or
    the others. Of the others each stage is granted a quarter of the slowest one, which is charged
    N times: there are at least N stages, so this takes nothing from the bound.
    """

    microbatches: int
    fewer: bool
    name: str = "executed"
    with_transfers: bool = False

    def bound(self, cheapest: int, low_ps: int) -> int:
        """Return what no template costs less than, with its slowest stage at least low_ps."""
        return max(cheapest, self.microbatches * low_ps)

    def goal(self, low_ps: int, high_ps: int, best: int) -> SearchGoal:
        """Return what to look for in an interval."""
        waits, granted = self._waits, self._granted(high_ps)
        short = -((waits * high_ps + 1) // 2) - granted
        charged = (self.microbatches - 1) * granted
        variants = (
            Variant(0, 0, waits, short, 0, high_ps, counted=0, apart=waits),
            Variant(0, 1, self.microbatches, charged, low_ps, high_ps, counted=0, apart=1),
            Variant(1, 1, 1, -granted, 0, high_ps, counted=0, apart=1),
        )
        # What stages are granted is not in the bound of what is left to do.
        return SearchGoal(high_ps, variants, min(best, FAR) if self.fewer else FAR)

    def value(self, problem: PlanningProblem, template: Template) -> int:
        """Return what a pass finds for the template."""
        computing = compute_times(problem, template)
        whole = stage_times(problem, template)
        slowest = max(computing)
        k = max(i for i, time in enumerate(computing) if time == slowest)
        least = sum(whole[: k + 1]) + (self.microbatches - 1) * slowest
        short = (self._waits * slowest + 1) // 2
        waits = sum(self._waits * time - short for time in whole[k + 1 :])
        spare = (self.microbatches - len(template)) * self._granted(slowest)
        return max(least + waits + spare, self.microbatches * slowest)

    @property
    def _waits(self) -> int:
        return 2 if self.fewer else 1

    def _granted(self, slowest_ps: int) -> int:
        return 0 if self.fewer else slowest_ps // 4


def objective_of(name: str, problem: PlanningProblem) -> SearchObjective:
    """Return ``t_std`` or ``t_oobleck``."""
    microbatches = problem.spec.microbatches
    if name == "t_oobleck":
        return OobleckEstimate(microbatches, most_stages(problem))
    return StandardTime(microbatches)


def most_stages(problem: PlanningProblem) -> int:
    """Return how many stages a template has at most."""
    return min(problem.spec.gpus, problem.layers)
