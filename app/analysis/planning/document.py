"""A plan as it is read by people and programs: the types behind ``paceline.plan/1``.

`app.analysis.planning.build` makes them once, `app.analysis.json_text` writes them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from app.analysis.json_text import OMITTED

SCHEMA: Final = "paceline.plan/1"


@dataclass(frozen=True, slots=True)
class IterationTimes:
    """What one iteration takes by each objective, ms."""

    t_std: float
    """ΣL + (N − 1)·max L, the objective of Alpa and Metis, ms."""
    t_oobleck: float | None
    """Oobleck's estimate, ms; None where it counts less than one microbatch in steady state."""
    simulated: float
    """1F1B executed event by event, ms."""

    def by(self, objective: str) -> float | None:
        """Return the time by one of `OBJECTIVES`."""
        time_ms: float | None = getattr(self, objective)
        return time_ms


@dataclass(frozen=True, slots=True)
class StageReplica:
    """A whole node of a replicated stage."""

    device: str
    """Type of its devices."""
    gpus: int
    """Devices of the node."""
    node: int
    """Number of the node among those of its type, from 0."""
    share: float
    """The share of each batch that it takes, a fraction; those of a stage add up to 1."""


@dataclass(frozen=True, slots=True)
class PlannedStage:
    """A stage of a template."""

    layers: tuple[int, int]
    """First and last layer, from 0, both included."""
    device: str
    """Type of its devices; of the first replica's where it is replicated."""
    gpus: int
    """Devices; of the first replica where it is replicated."""
    node: int
    """Number of the node among those of its type, from 0; of the first replica's where it is
    replicated."""
    forward_ms: float
    """For one microbatch, ms; transfers are received in the stage's own time."""
    backward_ms: float
    """For one microbatch, ms; transfers are received in the stage's own time."""
    transfer_ms: float
    """For one microbatch, ms; transfers are received in the stage's own time."""
    memory_bytes: float
    """What one device needs, bytes; the most among the replicas."""
    memory_limit_bytes: float | None
    """What one device has, bytes, the least among the replicas; None where the specification names
    no limit."""
    replicas: tuple[StageReplica, ...] = field(default=(), metadata=OMITTED)
    """Empty where the stage stays in one node."""

    @property
    def time_ms(self) -> float:
        """Return what the stage takes for one microbatch, transfers included."""
        return self.forward_ms + self.backward_ms + self.transfer_ms

    @property
    def places(self) -> tuple[PlannedStage | StageReplica, ...]:
        """Return where its devices are: its replicas, or the stage itself."""
        return self.replicas or (self,)


@dataclass(frozen=True, slots=True)
class FoldedCluster:
    """The virtual homogeneous cluster that Ditto plans for."""

    weakest: str
    """The type that all devices are counted in."""
    factors: Mapping[str, int]
    """By type, how many of the weakest one device is worth."""
    virtual_nodes: int
    """Nodes of the virtual cluster; devices of each."""
    virtual_gpus_per_node: int
    """Nodes of the virtual cluster; devices of each."""


@dataclass(frozen=True, slots=True)
class VirtualStage:
    """A stage on the virtual cluster."""

    layers: tuple[int, int]
    """First and last layer, from 0, both included."""
    gpus: int
    """Virtual devices."""


@dataclass(frozen=True, slots=True)
class VirtualPlan:
    """A template of the virtual cluster."""

    t_oobleck_ms: float
    """Oobleck's estimate of its iteration, ms."""
    stages: tuple[VirtualStage, ...]
    """From the first layer on."""


@dataclass(frozen=True, slots=True)
class PlanAlternative:
    """A near-optimal template."""

    iteration_time_ms: IterationTimes
    """What its iteration takes, ms."""
    stages: tuple[PlannedStage, ...]
    """From the first layer on."""


@dataclass(frozen=True, slots=True)
class BoundProof:
    """What proves a lower bound: every time that the slowest stage may take, in intervals.

    `app.analysis.planning.search.best_first` says more.
    """

    objective: str
    """What the bounds are by, ``t_std`` or ``t_oobleck``."""
    lower_bound_ps: int
    """No template costs less, and the best that was found costs as much; ps."""
    upper_bound_ps: int
    """No template costs less, and the best that was found costs as much; ps."""
    closed: bool
    """Whether the upper bound is proven to be the optimum."""
    intervals_explored: int
    """Intervals of the slowest stage's time that were looked into."""
    leaves: tuple[tuple[int, int, int | None], ...]
    """Lowest and highest time of the slowest stage, both included, and a bound, all in ps: no
    template whose slowest stage takes as long costs less than the bound; None where there is no
    such template."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundTemplate:
    """What a method found."""

    method: str
    """``optimal``, ``ditto``, ``greedy`` or ``exhaustive``."""
    objective: str
    """What it was sought by: ``t_std``, ``t_oobleck`` or ``simulated``."""
    iteration_time_ms: IterationTimes
    """What an iteration takes, ms."""
    planning_time_s: float
    """What the search took, s."""
    microbatches: int
    """Of one iteration."""
    layers: int
    """Of the model."""
    stages: tuple[PlannedStage, ...]
    """From the first layer on."""
    fits_memory: bool
    """Whether every stage fits its devices; Ditto and its greedy recovery do not look at memory."""
    contiguous_nodes: bool
    """Whether the stages of each node follow each other."""
    idle: Mapping[str, int]
    """By type, how many devices are in no stage."""
    folding: FoldedCluster | None = field(default=None, metadata=OMITTED)
    """The virtual cluster, for methods that fold."""
    virtual_template: VirtualPlan | None = field(default=None, metadata=OMITTED)
    """The template of the virtual cluster that this one was recovered from."""
    oobleck_templates: tuple[VirtualPlan, ...] = field(default=(), metadata=OMITTED)
    """Oobleck's templates of the virtual cluster, one for each number of stages, where making them
    takes no more than seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedTemplate(FoundTemplate):
    """What a method gives that the plan is held against."""

    relative: float | None
    """Its cost ÷ the plan's, by the plan's objective; None where one has no such time."""


@dataclass(frozen=True, slots=True)
class NoAnswer:
    """Why a method has no template."""

    reason: str
    """One sentence for a person."""


@dataclass(frozen=True)
class _Versioned:
    """Puts `schema` in front of the fields of a document."""

    __slots__ = ()

    schema: Literal["paceline.plan/1"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanDocument(FoundTemplate, _Versioned):
    """A plan, schema ``paceline.plan/1``."""

    optimal: bool
    """Whether it is proven that no template is better by the objective."""
    lower_bound_ms: float | None
    """No template costs less by the objective, ms; None where the method proves nothing."""
    alternatives: tuple[PlanAlternative, ...]
    """At most ten that cost at most 2 % more than the plan by the objective, the best simulated
    first; by ``simulated``, none is better than the plan. Empty for other methods than
    ``optimal``."""
    certificate: BoundProof | None
    """The search's proof by the objective. Where that is ``simulated``: by ``t_std``, near whose
    optimum the search for the fastest execution began. None where the method proves nothing."""
    comparison: Mapping[str, ComparedTemplate | NoAnswer]
    """By method, what Ditto and its greedy recovery give on the same specification."""

    @property
    def cost_ms(self) -> float | None:
        """Return what an iteration takes by the plan's objective."""
        return self.iteration_time_ms.by(self.objective)

    @property
    def gap(self) -> float | None:
        """Return how far above its proven bound the plan is, a fraction; None without a proof."""
        if not self.lower_bound_ms or self.cost_ms is None:
            return None
        return max(self.cost_ms / self.lower_bound_ms - 1, 0.0)

    @property
    def others(self) -> dict[str, ComparedTemplate]:
        """Return the templates that the plan is held against, by method."""
        return {
            name: other
            for name, other in self.comparison.items()
            if isinstance(other, ComparedTemplate)
        }

    def over(self, other: FoundTemplate | PlanAlternative) -> float:
        """Return how much longer than the plan another template takes, executed; a fraction."""
        return other.iteration_time_ms.simulated / self.iteration_time_ms.simulated - 1


@dataclass(frozen=True, slots=True)
class Starts:
    """When each computation starts; all of a stage in one direction take as long."""

    forward: tuple[tuple[float, ...], ...]
    """ms since the iteration started, ``[stage][microbatch]``."""
    backward: tuple[tuple[float, ...], ...]
    """ms since the iteration started, ``[stage][microbatch]``."""


@dataclass(frozen=True, slots=True)
class SimulatedIteration:
    """A plan's iteration, executed under 1F1B."""

    iteration_time_ms: float
    """What it takes, ms."""
    bubble: tuple[float, ...]
    """By stage, the share of the iteration in which it computes nothing, a fraction."""
    starts: Starts | None
    """When each computation starts; None where there are too many computations to draw."""
