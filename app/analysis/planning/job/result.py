"""What the search of a whole job finds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from app.analysis.planning.job.space import JobTemplate, Sizes, Space

# The time of no plan.
NO_BOUND: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class JobPipeline:
    """A pipeline: its template, its microbatches, the (type, number) of each of its nodes."""

    template: JobTemplate
    microbatches: int
    nodes: tuple[tuple[int, int], ...]

    @property
    def time_ps(self) -> int:
        """Return what an iteration of the pipeline takes, by t_std."""
        return self.template.time_ps(self.microbatches)


@dataclass(frozen=True, slots=True, eq=False)
class JobPlan:
    """Pipelines that share a batch."""

    space: Space
    pipelines: tuple[JobPipeline, ...]

    @property
    def dp(self) -> int:
        """Return the number of pipelines."""
        return len(self.pipelines)

    @property
    def pp(self) -> int:
        """Return the stages of the longest pipeline."""
        return max(len(one.template.stages) for one in self.pipelines)

    @property
    def time_ps(self) -> int:
        """Return what an iteration takes, by t_std of the slowest pipeline."""
        return max(one.time_ps for one in self.pipelines)


@dataclass(slots=True)
class BestJobs:
    """The best plan of each combination of sizes, dp and pp so far."""

    plans: dict[tuple[Sizes, int, int], JobPlan] = field(default_factory=dict)
    time_ps: int = NO_BOUND

    def offer(self, plan: JobPlan | None) -> None:
        """Keep a plan that is the best of its sizes."""
        if plan is None:
            return
        key = plan.space.sizes, plan.dp, plan.pp
        known = self.plans.get(key)
        if known is None or plan.time_ps < known.time_ps:
            self.plans[key] = plan
            self.time_ps = min(self.time_ps, plan.time_ps)


@dataclass(frozen=True, slots=True, eq=False)
class FoundJob:
    """The best plan, its proof, and the best of other sizes by t_std."""

    plan: JobPlan  # the fastest to execute of those within 1 % of the least t_std
    least_ps: int  # the least t_std that was found
    lower_bound_ps: int
    alternatives: tuple[JobPlan, ...]
    planning_time_s: float
    # simpler ways to run the job by name; None where nothing fits
    comparison: Mapping[str, JobPlan | None] = field(default_factory=dict)

    @property
    def gap(self) -> float:
        """Return how far above its bound the least t_std may be, a fraction."""
        return max(self.least_ps / self.lower_bound_ps - 1, 0.0)

    @property
    def optimal(self) -> bool:
        """Return whether it is proven that no plan has a lower t_std than the least."""
        return self.lower_bound_ps >= self.least_ps
