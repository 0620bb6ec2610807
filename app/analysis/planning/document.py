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
        ΣL + (N − 1)·max L, the objective of Alpa and Metis, ms.
    t_oobleck : float or None
        Oobleck's estimate, ms; None where it counts less than one microbatch in steady state.
    simulated : float
        1F1B executed event by event, ms.
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
    """A whole node of a replicated stage.

    Parameters
    ----------
    device : str
        Type of its devices.
    gpus : int
        Devices of the node.
    node : int
        Number of the node among those of its type, from 0.
    share : float
        The share of each batch that it takes, a fraction; those of a stage add up to 1.
    """

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
        First and last layer, from 0, both included.
    device : str
        Type of its devices; of the first replica's where it is replicated.
    gpus : int
        Devices; of the first replica where it is replicated.
    node : int
        Number of the node among those of its type, from 0; of the first replica's where it is
        replicated.
    forward_ms, backward_ms, transfer_ms : float
        For one microbatch, ms; transfers are received in the stage's own time.
    memory_bytes : float
        What one device needs, bytes; the most among the replicas.
    memory_limit_bytes : float or None
        What one device has, bytes, the least among the replicas; None where the specification
        names no limit.
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
        By type, how many of the weakest one device is worth.
    virtual_nodes, virtual_gpus_per_node : int
        Nodes of the virtual cluster; devices of each.
    """

    weakest: str
    factors: Mapping[str, int]
    virtual_nodes: int
    virtual_gpus_per_node: int


@dataclass(frozen=True, slots=True)
class VirtualStage:
    """A stage on the virtual cluster.

    Parameters
    ----------
    layers : (int, int)
        First and last layer, from 0, both included.
    gpus : int
        Virtual devices.
    """

    layers: tuple[int, int]
    gpus: int


@dataclass(frozen=True, slots=True)
class VirtualPlan:
    """A template of the virtual cluster.

    Parameters
    ----------
    t_oobleck_ms : float
        Oobleck's estimate of its iteration, ms.
    stages : tuple of VirtualStage
        From the first layer on.
    """

    t_oobleck_ms: float
    stages: tuple[VirtualStage, ...]


@dataclass(frozen=True, slots=True)
class PlanAlternative:
    """A near-optimal template.

    Parameters
    ----------
    iteration_time_ms : IterationTimes
        What its iteration takes, ms.
    stages : tuple of PlannedStage
        From the first layer on.
    """

    iteration_time_ms: IterationTimes
    stages: tuple[PlannedStage, ...]


@dataclass(frozen=True, slots=True)
class BoundProof:
    """What proves a lower bound: every time that the slowest stage may take, in intervals.

    `app.analysis.planning.search.certificate` says more.

    Parameters
    ----------
    objective : str
        What the bounds are by, ``t_std`` or ``t_oobleck``.
    lower_bound_ps, upper_bound_ps : int
        No template costs less, and the best that was found costs as much; ps.
    closed : bool
        Whether the upper bound is proven to be the optimum.
    intervals_explored : int
        Intervals of the slowest stage's time that were looked into.
    leaves : tuple of (int, int, int or None)
        Lowest and highest time of the slowest stage, both included, and a bound, all in ps: no
        template whose slowest stage takes as long costs less than the bound; None where there is
        no such template.
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
    method : str
        ``optimal``, ``ditto``, ``greedy`` or ``exhaustive``.
    objective : str
        What it was sought by: ``t_std``, ``t_oobleck`` or ``simulated``.
    iteration_time_ms : IterationTimes
        What an iteration takes, ms.
    planning_time_s : float
        What the search took, s.
    microbatches : int
        Of one iteration.
    layers : int
        Of the model.
    stages : tuple of PlannedStage
        From the first layer on.
    fits_memory : bool
        Whether every stage fits its devices; Ditto and its greedy recovery do not look at memory.
    contiguous_nodes : bool
        Whether the stages of each node follow each other.
    idle : mapping of str to int
        By type, how many devices are in no stage.
    folding : FoldedCluster, optional
        The virtual cluster, for methods that fold.
    virtual_template : VirtualPlan, optional
        The template of the virtual cluster that this one was recovered from.
    oobleck_templates : tuple of VirtualPlan, optional
        Oobleck's templates of the virtual cluster, one for each number of stages, where making
        them takes no more than seconds.
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
        Its cost ÷ the plan's, by the plan's objective; None where one has no such time.
    """

    relative: float | None


@dataclass(frozen=True, slots=True)
class NoAnswer:
    """Why a method has no template.

    Parameters
    ----------
    reason : str
        One sentence for a person.
    """

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
        Whether it is proven that no template is better by the objective.
    lower_bound_ms : float or None
        No template costs less by the objective, ms; None where the method proves nothing.
    alternatives : tuple of PlanAlternative
        At most ten that cost at most 2 % more than the best, the best simulated first. Costs are
        by the objective, by ``t_std`` where that is ``simulated``. Empty for other methods than
        ``optimal``.
    certificate : BoundProof or None
        The search's proof by the objective, by ``t_std`` where that is ``simulated``; None where
        the method proves nothing.
    comparison : mapping of str to ComparedTemplate or NoAnswer
        By method, what Ditto and its greedy recovery give on the same specification.
    """

    optimal: bool
    lower_bound_ms: float | None
    alternatives: tuple[PlanAlternative, ...]
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

    def over(self, other: FoundTemplate | PlanAlternative) -> float:
        """Return how much longer than the plan another template takes, executed; a fraction."""
        return other.iteration_time_ms.simulated / self.iteration_time_ms.simulated - 1


@dataclass(frozen=True, slots=True)
class Starts:
    """When each computation starts; all of a stage in one direction take as long.

    Parameters
    ----------
    forward, backward : tuple of tuple of float
        ms since the iteration started, ``[stage][microbatch]``.
    """

    forward: tuple[tuple[float, ...], ...]
    backward: tuple[tuple[float, ...], ...]


@dataclass(frozen=True, slots=True)
class SimulatedIteration:
    """A plan's iteration, executed under 1F1B.

    Parameters
    ----------
    iteration_time_ms : float
        What it takes, ms.
    bubble : tuple of float
        By stage, the share of the iteration in which it computes nothing, a fraction.
    starts : Starts or None
        When each computation starts; None where there are too many computations to draw.
    """

    iteration_time_ms: float
    bubble: tuple[float, ...]
    starts: Starts | None
