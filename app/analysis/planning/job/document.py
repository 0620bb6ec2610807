"""A whole job's plan as people and programs read it: ``paceline.plan/1`` with pipelines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from app.analysis.json_text import OMITTED
from app.analysis.planning.job.spec import Parallelism, Recompute


@dataclass(frozen=True, slots=True)
class JobTimes:
    """What one iteration takes, ms."""

    t_std: float
    """ΣC + (n − 1)·max C of the slowest pipeline with what follows it, ms; what is searched by."""
    simulated: float
    """The slowest pipeline's schedule executed event by event, with what follows it, ms."""


@dataclass(frozen=True, slots=True)
class MemoryParts:
    """What one device needs, bytes by part."""

    weights: float
    """Bytes of weights."""
    gradients: float
    """Bytes of gradients."""
    optimizer: float
    """Bytes of the optimizer's state."""
    activations: float
    """Bytes of stored activations of the microbatches in flight."""
    other: float
    """Logits, and what is recomputed of one block at a time."""
    margin: float
    """Left free for contexts, communication buffers and fragments."""

    @property
    def total(self) -> float:
        """Return the sum of all parts."""
        parts = (self.weights, self.gradients, self.optimizer, self.activations)
        return sum(parts) + self.other + self.margin


@dataclass(frozen=True, slots=True)
class JobStageDocument:
    """A stage of a template: layers on one TP group."""

    layers: tuple[int, int]
    """First and last layer, both included; 0 is the embedding, the last one the head."""
    device: str
    """Type of its devices."""
    gpus: int
    """Devices: the tensor-parallel size."""
    forward_ms: float
    """For one microbatch, with transfers and TP communication, ms."""
    backward_ms: float
    """For one microbatch, with what is computed again, transfers and TP communication, ms."""
    memory: MemoryParts
    """Of one device."""
    memory_limit_bytes: float | None
    """What one device has; None where it does not limit."""

    @property
    def time_ms(self) -> float:
        """Return what the stage takes for one microbatch."""
        return self.forward_ms + self.backward_ms


@dataclass(frozen=True, slots=True)
class JobTemplateDocument:
    """What equal pipelines have in common."""

    stages: tuple[JobStageDocument, ...]
    """From the first layer on."""
    nodes: Mapping[str, int]
    """Whole nodes by type."""
    pipelines_per_node_set: int
    """Pipelines that share these nodes."""


@dataclass(frozen=True, slots=True)
class PlacedNode:
    """A node of a type, from 0."""

    device: str
    """Type of its devices."""
    node: int
    """Its number among the nodes of its type, from 0."""


@dataclass(frozen=True, slots=True)
class PipelineDocument:
    """A pipeline of a plan."""

    template: int
    """Position in `templates`."""
    microbatches: int
    """Of one iteration: its share of the batch."""
    nodes: tuple[PlacedNode, ...]
    """As the pipeline passes them."""
    time_ms: float
    """What its iteration takes by t_std, ms."""


@dataclass(frozen=True, slots=True)
class TimeShares:
    """Where the time of the devices goes, fractions of the iteration; they add up to 1."""

    computing: float
    """Blocks, embedding and head, with what is computed again."""
    tensor_parallel: float
    """Collectives of tensor-parallel groups that nothing hides."""
    transfers: float
    """Activations and gradients between stages."""
    bubble: float
    """Waiting for other stages, and for slower pipelines."""
    synchronization: float
    """Gradients' synchronization that the backward pass does not hide."""
    optimizer: float
    """The optimizer's step."""


@dataclass(frozen=True, slots=True)
class JobAlternative:
    """The best plan of other sizes."""

    parallelism: Parallelism
    """Its sizes."""
    iteration_time_ms: JobTimes
    """What its iteration takes, ms."""
    memory_bytes: float
    """What the fullest device needs, bytes."""
    relative: float
    """Its t_std ÷ the plan's."""


@dataclass(frozen=True, slots=True)
class SimplerJob:
    """A simpler way to run the job."""

    parallelism: Parallelism | None
    """Sizes of its best plan; None where nothing fits."""
    iteration_time_ms: JobTimes | None
    """What its iteration takes, ms; None where nothing fits."""
    relative: float | None
    """Its t_std ÷ the plan's; None where nothing fits."""


@dataclass(frozen=True, slots=True)
class AsItRunsDocument:
    """The job as it runs today, where the specification says so."""

    iteration_time_ms: float
    """The measured iteration, ms."""
    relative: float
    """The measured iteration ÷ the plan's executed one."""
    tp: int | None
    """Tensor-parallel size; null, as the others, where it is not known."""
    pp: int | None
    """Stages."""
    dp: int | None
    """Pipelines."""
    microbatch: int | None
    """Sequences of a microbatch."""
    recompute: Recompute | None
    """What is computed again in the backward pass."""
    interleave: int | None
    """Model chunks a stage."""
    session: str | None
    """The session that was measured."""


@dataclass(frozen=True, slots=True)
class AfterLossDocument:
    """The plan after nodes are lost."""

    device: str
    """Their type."""
    nodes: int
    """How many."""
    iteration_time_ms: float | None
    """By t_std; None where the rest does not hold the model."""
    dp: int
    """Pipelines that are left."""
    kept: int
    """Pipelines among them that stay as they are; their share of the batch changes only."""
    moved_bytes: float
    """Weights and optimizer states that new pipelines need."""


@dataclass(frozen=True, slots=True)
class FrameworkFlags:
    """How a framework is told."""

    framework: Literal["Megatron-Core", "TorchTitan", "DeepSpeed"]
    """Its name."""
    flags: str
    """As a command line or configuration."""
    unsaid: tuple[str, ...]
    """What of the plan it cannot express, and what it runs instead."""


@dataclass(frozen=True)
class _Versioned:
    """Puts `schema` in front of the fields of a document."""

    __slots__ = ()

    schema: Literal["paceline.plan/1"]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobDocument(_Versioned):
    """The plan of a whole job, schema ``paceline.plan/1``."""

    parallelism: Parallelism
    """Sizes of the plan; pp is that of the longest pipeline."""
    iteration_time_ms: JobTimes
    """What an iteration takes, ms."""
    tokens_per_s: float
    """Tokens of a batch ÷ the executed iteration."""
    model_flops_utilization: float
    """Operations of forward and backward without recomputation ÷ what all devices' peaks do."""
    gpu_hours_per_billion_tokens: float
    """Of all GPUs of the specification, idle ones counted."""
    cost_per_billion_tokens: float | None = field(default=None, metadata=OMITTED)
    """Where the specification has a price for every type."""
    optimal: bool
    """Whether it is proven that no plan has a lower t_std than the least that was found. The plan
    is the fastest to execute of those within 1 % of it."""
    lower_bound_ms: float
    """No plan takes less by t_std, ms."""
    gap: float
    """How far above the bound the least t_std is that was found, a fraction."""
    planning_time_s: float
    """What the search took, s."""
    global_batch: int
    """Sequences of an iteration."""
    sequence: int
    """Tokens of a sequence."""
    layers: int
    """Blocks of the model, embedding and head not counted."""
    gpus: int
    """Of the cluster."""
    templates: tuple[JobTemplateDocument, ...]
    """What pipelines are like."""
    pipelines: tuple[PipelineDocument, ...]
    """All pipelines."""
    memory: MemoryParts
    """Of the fullest device."""
    time: TimeShares
    """Where the time of the GPUs in pipelines goes."""
    idle: Mapping[str, int]
    """By type, devices in no pipeline."""
    alternatives: tuple[JobAlternative, ...]
    """The best plan of other sizes, the fastest first."""
    comparison: Mapping[str, SimplerJob]
    """Simpler ways by name: ``same_sizes`` (of a job as it runs, with the best cut);
    ``one_pipeline``; on several types ``slowest_everywhere`` (all nodes as
    the slowest type), ``without_`` the slowest type, and each type with ``_alone``."""
    after_losses: tuple[AfterLossDocument, ...]
    """For each type, the plan after one node and more are lost, as many as was asked for."""
    flags: tuple[FrameworkFlags, ...]
    """For each framework."""
    as_it_runs: AsItRunsDocument | None = field(default=None, metadata=OMITTED)
    """The job as it runs today; no key where the specification does not say so."""
