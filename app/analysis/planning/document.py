"""Types of ``paceline.plan/1``, the document of a plan (built in `app.analysis.planning.build`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from app.analysis.json_text import OMITTED

SCHEMA: Final = "paceline.plan/1"


@dataclass(frozen=True, slots=True)
class IterationTimes:
    """Time of one iteration according to each objective, ms."""

    t_std: float
    """ΣL + (N − 1)·max L, the objective of Alpa and Metis, ms."""
    t_oobleck: float | None
    """Oobleck's estimate, ms; None if its steady state has less than one microbatch."""
    simulated: float
    """1F1B executed event by event, ms."""

    def by(self, objective: str) -> float | None:
        """Return the time according to one of `OBJECTIVES`, ms."""
        time_ms: float | None = getattr(self, objective)
        return time_ms


@dataclass(frozen=True, slots=True)
class StageReplica:
    """Whole node that runs one replica of a replicated stage."""

    device: str
    """Type of the node's devices."""
    gpus: int
    """Devices of the node."""
    node: int
    """Number of the node among the nodes of its type, from 0."""
    share: float
    """Share of each batch, a fraction; shares of a stage add up to 1."""


@dataclass(frozen=True, slots=True)
class PlannedStage:
    """A stage of a template."""

    layers: tuple[int, int]
    """First and last layer, from 0, both included."""
    device: str
    """Type of the stage's devices; for a replicated stage, the type of its first replica."""
    gpus: int
    """Number of devices; for a replicated stage, the number of its first replica."""
    node: int
    """Number of the node among the nodes of its type, from 0; for a replicated stage, the node of
    its first replica.
    """
    forward_ms: float
    """Forward time for one microbatch, ms."""
    backward_ms: float
    """Backward time for one microbatch, ms."""
    transfer_ms: float
    """Time to receive activations and gradients of one microbatch, which is part of the stage's
    time, ms."""
    memory_bytes: float
    """Memory that one device needs, bytes; the maximum over the replicas."""
    memory_limit_bytes: float | None
    """Memory of one device, bytes, the minimum over the replicas; None if the specification has no
    limit.
    """
    replicas: tuple[StageReplica, ...] = field(default=(), metadata=OMITTED)
    """Nodes of a replicated stage; empty if the stage is in a single node."""

    @property
    def time_ms(self) -> float:
        """Return the stage's time for one microbatch including transfers, ms."""
        return self.forward_ms + self.backward_ms + self.transfer_ms

    @property
    def places(self) -> tuple[PlannedStage | StageReplica, ...]:
        """Return the nodes of the stage: its replicas, or the stage itself if it has none."""
        return self.replicas or (self,)


@dataclass(frozen=True, slots=True)
class FoldedCluster:
    """Virtual homogeneous cluster that Ditto plans for."""

    weakest: str
    """Device type of the virtual cluster: the weakest of the real one."""
    factors: Mapping[str, int]
    """Number of weakest devices that one device is worth, by type."""
    virtual_nodes: int
    """Nodes of the virtual cluster."""
    virtual_gpus_per_node: int
    """Devices of each virtual node."""


@dataclass(frozen=True, slots=True)
class VirtualStage:
    """A stage on the virtual cluster."""

    layers: tuple[int, int]
    """First and last layer, from 0, both included."""
    gpus: int
    """Number of virtual devices."""


@dataclass(frozen=True, slots=True)
class VirtualPlan:
    """A template of the virtual cluster."""

    t_oobleck_ms: float
    """Oobleck's estimate of its iteration, ms."""
    stages: tuple[VirtualStage, ...]
    """Stages in the order of the layers."""


@dataclass(frozen=True, slots=True)
class PlanAlternative:
    """Near-optimal alternative to the plan's template."""

    iteration_time_ms: IterationTimes
    """Time of an iteration, ms."""
    stages: tuple[PlannedStage, ...]
    """Stages in the order of the layers."""


@dataclass(frozen=True, slots=True)
class BoundProof:
    """Proof of a lower bound: bounds for all intervals of the slowest stage's time.

    Described in `app.analysis.planning.search.best_first`.
    """

    objective: str
    """Objective of the bounds, ``t_std`` or ``t_oobleck``."""
    lower_bound_ps: int
    """Proven lower bound of the cost of every template, ps."""
    upper_bound_ps: int
    """Cost of the best template found, ps."""
    closed: bool
    """Whether the upper bound is proven to be the optimum."""
    intervals_explored: int
    """Number of explored intervals of the slowest stage's time."""
    leaves: tuple[tuple[int, int, int | None], ...]
    """Lowest and highest time of the slowest stage, both included, and a lower bound of the cost of
    templates in this interval, ps; the bound is None if there is no such template.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundTemplate:
    """Template that a method found."""

    method: str
    """``optimal``, ``ditto``, ``greedy`` or ``exhaustive``."""
    objective: str
    """Minimized time: ``t_std``, ``t_oobleck`` or ``simulated``."""
    iteration_time_ms: IterationTimes
    """Time of an iteration, ms."""
    planning_time_s: float
    """Duration of the search, s."""
    microbatches: int
    """Microbatches of one iteration."""
    layers: int
    """Layers of the model."""
    stages: tuple[PlannedStage, ...]
    """Stages in the order of the layers."""
    fits_memory: bool
    """Whether every stage fits its devices; Ditto and its greedy recovery ignore memory."""
    contiguous_nodes: bool
    """Whether the stages of each node are adjacent."""
    idle: Mapping[str, int]
    """Number of devices in no stage, by type."""
    folding: FoldedCluster | None = field(default=None, metadata=OMITTED)
    """The virtual cluster, for methods that fold."""
    virtual_template: VirtualPlan | None = field(default=None, metadata=OMITTED)
    """The template of the virtual cluster from which this one was recovered."""
    oobleck_templates: tuple[VirtualPlan, ...] = field(default=(), metadata=OMITTED)
    """Oobleck's templates of the virtual cluster, one for each number of stages; empty if computing
    them would take more than seconds.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedTemplate(FoundTemplate):
    """Template of another method, for comparison with the plan."""

    relative: float | None
    """Cost of the template ÷ cost of the plan by the plan's objective; None if a cost is undefined.
    """


@dataclass(frozen=True, slots=True)
class NoAnswer:
    """Reason why a method found no template."""

    reason: str
    """The reason as a sentence."""


@dataclass(frozen=True)
class _Versioned:
    """Puts `schema` in front of the fields of a document."""

    __slots__ = ()

    schema: Literal["paceline.plan/1"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanDocument(FoundTemplate, _Versioned):
    """A plan, schema ``paceline.plan/1``."""

    optimal: bool
    """Whether the template is proven optimal by the objective."""
    lower_bound_ms: float | None
    """Proven lower bound of every template's cost by the objective, ms; None for methods without a
    proof."""
    alternatives: tuple[PlanAlternative, ...]
    """At most ten templates that cost at most 2 % more than the plan by the objective, the fastest
    executed first; by ``simulated``, none is better than the plan. Empty for other methods than
    ``optimal``."""
    certificate: BoundProof | None
    """Proof of the lower bound by the objective; for ``simulated``, of the best ``t_std``, where
    the search for the fastest execution started. None for methods without a proof."""
    comparison: Mapping[str, ComparedTemplate | NoAnswer]
    """Results of Ditto and its greedy recovery on the same specification, by method."""

    @property
    def cost_ms(self) -> float | None:
        """Return the iteration's time according to the plan's objective, ms."""
        return self.iteration_time_ms.by(self.objective)

    @property
    def gap(self) -> float | None:
        """Return the optimality gap as a fraction; None if there is no proof."""
        if not self.lower_bound_ms or self.cost_ms is None:
            return None
        return max(self.cost_ms / self.lower_bound_ms - 1, 0.0)

    @property
    def others(self) -> dict[str, ComparedTemplate]:
        """Return the templates of other methods, by method."""
        return {
            name: other
            for name, other in self.comparison.items()
            if isinstance(other, ComparedTemplate)
        }

    def over(self, other: FoundTemplate | PlanAlternative) -> float:
        """Return the excess of another template's executed time over the plan's, as a fraction."""
        return other.iteration_time_ms.simulated / self.iteration_time_ms.simulated - 1


@dataclass(frozen=True, slots=True)
class Starts:
    """Start time of each computation; a stage's computations in one direction last equally long."""

    forward: tuple[tuple[float, ...], ...]
    """Starts of forwards, ms since the iteration's start, ``[stage][microbatch]``."""
    backward: tuple[tuple[float, ...], ...]
    """Starts of backwards, ms since the iteration's start, ``[stage][microbatch]``."""


@dataclass(frozen=True, slots=True)
class SimulatedIteration:
    """One iteration of a plan, executed under the 1F1B schedule."""

    iteration_time_ms: float
    """Time of the iteration, ms."""
    bubble: tuple[float, ...]
    """Idle share of each stage, a fraction of the iteration."""
    starts: Starts | None
    """Start of each computation; None if there are too many computations to draw."""
