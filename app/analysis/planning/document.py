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
    """What one iteration takes by each objective, ms.

    Parameters
    ----------
    t_std : float
        ΣL + (N − 1)·max L, the objective of Alpa and Metis.
    t_oobleck : float or None
        Oobleck's estimate; None with fewer microbatches than stages.
    simulated : float
        1F1B executed event by event.
    """

    t_std: float
    t_oobleck: float | None
    simulated: float

    def by(self, objective: str) -> float | None:
        """Return the time by one of `OBJECTIVES`."""
        time_ms: float | None = getattr(self, objective)
        return time_ms


@dataclass(frozen=True, slots=True)
class StageReplica:
    """A whole node of a replicated stage, and the share of each batch that it takes."""

    device: str
    gpus: int
    node: int
    share: float


@dataclass(frozen=True, slots=True)
class PlannedStage:
    """A stage of a template.

    Parameters
    ----------
    layers : (int, int)
        First and last.
    device : str
        Type of its devices.
    gpus : int
        Devices; of the first replica where it is replicated.
    node : int
        Number of the node among those of its type.
    forward_ms, backward_ms, transfer_ms : float
        For one microbatch; transfers are received in the stage's own time.
    memory_bytes, memory_limit_bytes : float
        On one device; no limit where the specification names none.
    replicas : tuple of StageReplica
        Empty where the stage stays in one node.
    """

    layers: tuple[int, int]
    device: str
    gpus: int
    node: int
    forward_ms: float
    backward_ms: float
    transfer_ms: float
    memory_bytes: float
    memory_limit_bytes: float | None
    replicas: tuple[StageReplica, ...] = field(default=(), metadata=OMITTED)

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
    """The virtual homogeneous cluster that Ditto plans for.

    Parameters
    ----------
    weakest : str
        The type that all devices are counted in.
    factors : mapping of str to int
        How many of the weakest a device of each type is worth.
    """

    weakest: str
    factors: Mapping[str, int]
    virtual_nodes: int
    virtual_gpus_per_node: int


@dataclass(frozen=True, slots=True)
class VirtualStage:
    """A stage on the virtual cluster: first and last layer, and its devices."""

    layers: tuple[int, int]
    gpus: int


@dataclass(frozen=True, slots=True)
class VirtualPlan:
    """A template of the virtual cluster and Oobleck's estimate of its iteration."""

    t_oobleck_ms: float
    stages: tuple[VirtualStage, ...]


@dataclass(frozen=True, slots=True)
class Alternative:
    """A near-optimal template."""

    iteration_time_ms: IterationTimes
    stages: tuple[PlannedStage, ...]


@dataclass(frozen=True, slots=True)
class BoundProof:
    """What proves the lower bound: see `app.analysis.planning.search.certificate`.

    Parameters
    ----------
    closed : bool
        Whether the upper bound is proven to be the optimum.
    leaves : tuple of (low_ps, high_ps, bound_ps or None)
        No template whose slowest stage takes low to high costs less than its bound; without one,
        there is no such template.
    """

    objective: str
    lower_bound_ps: int
    upper_bound_ps: int
    closed: bool
    intervals_explored: int
    leaves: tuple[tuple[int, int, int | None], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundTemplate:
    """What a method found.

    Parameters
    ----------
    method, objective : str
        Of `METHODS` and `OBJECTIVES`.
    planning_time_s : float
        What the search took.
    microbatches, layers : int
        Of one iteration; of the model.
    stages : tuple of PlannedStage
        From the first layer on.
    fits_memory : bool
        Ditto and its greedy recovery do not look at memory.
    contiguous_nodes : bool
        Whether the stages of each node follow each other.
    idle : mapping of str to int
        Devices of each type that are in no stage.
    folding, virtual_template, oobleck_templates
        How Ditto came to its template; absent for methods that do not fold.
    """

    method: str
    objective: str
    iteration_time_ms: IterationTimes
    planning_time_s: float
    microbatches: int
    layers: int
    stages: tuple[PlannedStage, ...]
    fits_memory: bool
    contiguous_nodes: bool
    idle: Mapping[str, int]
    folding: FoldedCluster | None = field(default=None, metadata=OMITTED)
    virtual_template: VirtualPlan | None = field(default=None, metadata=OMITTED)
    oobleck_templates: tuple[VirtualPlan, ...] = field(default=(), metadata=OMITTED)


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedTemplate(FoundTemplate):
    """What a method gives that the plan is held against.

    Parameters
    ----------
    relative : float or None
        Its cost over the plan's, by the plan's objective.
    """

    relative: float | None


@dataclass(frozen=True, slots=True)
class NoAnswer:
    """Why a method has no template."""

    reason: str


@dataclass(frozen=True)
class _Versioned:
    """Puts `schema` in front of the fields of a document."""

    __slots__ = ()

    schema: Literal["paceline.plan/1"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanDocument(FoundTemplate, _Versioned):
    """A plan, schema ``paceline.plan/1``.

    Parameters
    ----------
    optimal : bool
        It is proven that no template is better by the objective.
    lower_bound_ms : float or None
        No template costs less by the objective; None where the method proves nothing.
    alternatives : tuple of Alternative
        Templates within 2 %, the best simulated first; the plan's own is among them.
    certificate : BoundProof or None
    comparison : mapping of str to ComparedTemplate or NoAnswer
        Ditto and its greedy recovery on the same specification.
    """

    optimal: bool
    lower_bound_ms: float | None
    alternatives: tuple[Alternative, ...]
    certificate: BoundProof | None
    comparison: Mapping[str, ComparedTemplate | NoAnswer]

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

    def over(self, other: FoundTemplate | Alternative) -> float:
        """Return how much longer than the plan another template takes, executed; a fraction."""
        return other.iteration_time_ms.simulated / self.iteration_time_ms.simulated - 1


@dataclass(frozen=True, slots=True)
class Starts:
    """When each computation starts, ms since the iteration did, (stages, microbatches).

    All computations of a stage in one direction take as long.
    """

    forward: tuple[tuple[float, ...], ...]
    backward: tuple[tuple[float, ...], ...]


@dataclass(frozen=True, slots=True)
class SimulatedIteration:
    """A plan's iteration, executed under 1F1B.

    Parameters
    ----------
    bubble : tuple of float
        The share of the iteration in which each stage computes nothing.
    starts : Starts or None
        None where there are too many computations to draw.
    """

    iteration_time_ms: float
    bubble: tuple[float, ...]
    starts: Starts | None
