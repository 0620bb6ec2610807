"""Types of ``paceline.plan/1`` for the plan of a whole job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from app.analysis.json_text import OMITTED
from app.analysis.planning.job.spec import Parallelism, Recompute


@dataclass(frozen=True, slots=True)
class JobTimes:
    """Time of one iteration of the slowest pipeline, ms."""

    t_std: float
    """ΣC + (n − 1)·max C with synchronization and optimizer, ms; minimized by the search."""
    simulated: float
    """Schedule executed event by event, with synchronization and optimizer, ms."""


@dataclass(frozen=True, slots=True)
class MemoryParts:
    """Memory of one device by part, bytes."""

    weights: float
    """Bytes of weights."""
    gradients: float
    """Bytes of gradients."""
    optimizer: float
    """Bytes of the optimizer's state."""
    activations: float
    """Bytes of stored activations of the microbatches in flight."""
    other: float
    """Bytes of logits and of recomputed activations of one block at a time."""
    margin: float
    """Bytes left free for contexts, communication buffers and fragmentation."""

    @property
    def total(self) -> float:
        """Return the sum of all parts."""
        parts = (self.weights, self.gradients, self.optimizer, self.activations)
        return sum(parts) + self.other + self.margin


@dataclass(frozen=True, slots=True)
class JobStageDocument:
    """Stage of a template: the model's blocks that one TP group runs."""

    layers: tuple[int, int]
    """First and last layer, both included; 0 is the embedding, the last one the head."""
    device: str
    """Type of the stage's devices."""
    gpus: int
    """Number of devices: the tensor-parallel size."""
    forward_ms: float
    """Forward time for one microbatch, with transfers and TP communication, ms."""
    backward_ms: float
    """Backward time for one microbatch, with recomputation, transfers and TP communication, ms."""
    memory: MemoryParts
    """Memory of one device."""
    memory_limit_bytes: float | None
    """Memory that one device has, bytes; None without a limit."""

    @property
    def time_ms(self) -> float:
        """Return the stage's time for one microbatch, ms."""
        return self.forward_ms + self.backward_ms


@dataclass(frozen=True, slots=True)
class JobTemplateDocument:
    """Template shared by equal pipelines."""

    stages: tuple[JobStageDocument, ...]
    """Stages in the order of the layers."""
    nodes: Mapping[str, int]
    """Number of whole nodes, by type."""
    pipelines_per_node_set: int
    """Number of pipelines that share these nodes."""


@dataclass(frozen=True, slots=True)
class PlacedNode:
    """Node of the cluster that a pipeline uses."""

    device: str
    """Type of the node's devices."""
    node: int
    """Number of the node among those of its type, from 0."""


@dataclass(frozen=True, slots=True)
class PipelineDocument:
    """A pipeline of a plan."""

    template: int
    """Index of the pipeline's template in `templates`."""
    microbatches: int
    """Number of microbatches in an iteration: the pipeline's share of the batch."""
    nodes: tuple[PlacedNode, ...]
    """Nodes in the order of the pipeline."""
    time_ms: float
    """Time of an iteration by t_std, ms."""


@dataclass(frozen=True, slots=True)
class TimeShares:
    """Shares of the devices' time in an iteration; the shares add up to 1."""

    computing: float
    """Computation of blocks, embedding and head, recomputation included."""
    tensor_parallel: float
    """Exposed collectives of tensor-parallel groups."""
    transfers: float
    """Activations and gradients between stages."""
    bubble: float
    """Waiting for other stages, and for slower pipelines."""
    synchronization: float
    """Synchronization of gradients not hidden by the backward pass."""
    optimizer: float
    """Step of the optimizer."""


@dataclass(frozen=True, slots=True)
class JobAlternative:
    """Best plan with other parallel sizes."""

    parallelism: Parallelism
    """Parallel sizes of the alternative."""
    iteration_time_ms: JobTimes
    """Time of an iteration, ms."""
    memory_bytes: float
    """Memory of the fullest device, bytes."""
    relative: float
    """t_std of the alternative ÷ that of the plan."""


@dataclass(frozen=True, slots=True)
class SimplerJob:
    """Simpler way to run the job, for comparison with the plan."""

    parallelism: Parallelism | None
    """Parallel sizes of the best plan run this way; None if no plan fits."""
    iteration_time_ms: JobTimes | None
    """Time of an iteration, ms; None if no plan fits."""
    relative: float | None
    """t_std of the best plan run this way ÷ t_std of the plan; None if no plan fits."""


@dataclass(frozen=True, slots=True)
class AsItRunsDocument:
    """Measured job as it runs today, described in the specification."""

    iteration_time_ms: float
    """Measured iteration, ms."""
    relative: float
    """Measured iteration ÷ the plan's executed one."""
    tp: int | None
    """Tensor-parallel size; null where unknown, as are the other sizes."""
    pp: int | None
    """Number of stages."""
    dp: int | None
    """Number of pipelines."""
    microbatch: int | None
    """Sequences of a microbatch."""
    recompute: Recompute | None
    """Recomputation in the backward pass."""
    interleave: int | None
    """Model chunks a stage."""
    session: str | None
    """The measured session."""


@dataclass(frozen=True, slots=True)
class AfterLossDocument:
    """Plan after the loss of nodes."""

    device: str
    """Type of the lost nodes."""
    nodes: int
    """Number of lost nodes."""
    iteration_time_ms: float | None
    """Time of an iteration by t_std, ms; None if the remaining nodes do not hold the model."""
    dp: int
    """Number of pipelines after the loss."""
    kept: int
    """Number of pipelines that keep their nodes; only their shares of the batch change."""
    moved_bytes: float
    """Weights and optimizer states copied to new pipelines, bytes."""


@dataclass(frozen=True, slots=True)
class FrameworkFlags:
    """Flags of a training framework that set up the plan."""

    framework: Literal["Megatron-Core", "TorchTitan", "DeepSpeed"]
    """Name of the framework."""
    flags: str
    """Command line or configuration."""
    unsaid: tuple[str, ...]
    """Parts of the plan that its flags cannot express, with its own behavior instead."""


@dataclass(frozen=True)
class _Versioned:
    """Mixin that puts `schema` before the other fields of a document."""

    __slots__ = ()

    schema: Literal["paceline.plan/1"]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobDocument(_Versioned):
    """The plan of a whole job, schema ``paceline.plan/1``."""

    parallelism: Parallelism
    """Parallel sizes of the plan; pp is the number of stages of the longest pipeline."""
    iteration_time_ms: JobTimes
    """Time of an iteration, ms."""
    tokens_per_s: float
    """Tokens of a batch ÷ the executed iteration."""
    model_flops_utilization: float
    """FLOPs of forward and backward without recomputation ÷ FLOPs of all devices at their peaks."""
    gpu_hours_per_billion_tokens: float
    """GPU-hours of all GPUs of the specification, idle ones included."""
    cost_per_billion_tokens: float | None = field(default=None, metadata=OMITTED)
    """Cost in the currency of the specified prices; no key unless every type has a price."""
    optimal: bool
    """Whether the least t_std found is proven optimal. The plan is the fastest executed plan among
    the plans within 1 % of it.
    """
    lower_bound_ms: float
    """Proven lower bound of every plan's t_std, ms."""
    gap: float
    """Optimality gap of the least t_std found, a fraction."""
    planning_time_s: float
    """Duration of the search, s."""
    global_batch: int
    """Sequences of an iteration."""
    sequence: int
    """Tokens of a sequence."""
    layers: int
    """Blocks of the model, embedding and head not counted."""
    gpus: int
    """GPUs of the cluster."""
    templates: tuple[JobTemplateDocument, ...]
    """Distinct templates of the pipelines."""
    pipelines: tuple[PipelineDocument, ...]
    """All pipelines."""
    memory: MemoryParts
    """Memory of the fullest device."""
    time: TimeShares
    """Shares of the time of the GPUs in pipelines."""
    idle: Mapping[str, int]
    """Number of devices in no pipeline, by type."""
    alternatives: tuple[JobAlternative, ...]
    """Best plans of the best other parallel sizes, the fastest first."""
    comparison: Mapping[str, SimplerJob]
    """Simpler ways to run the job by name: ``same_sizes`` (of a job as it runs, with the best cut);
    ``one_pipeline``; on several types ``slowest_everywhere`` (all nodes as the slowest type),
    ``without_`` the slowest type, and each type with ``_alone``."""
    after_losses: tuple[AfterLossDocument, ...]
    """For each type, the plan after the loss of one node, of two, … up to the specified number."""
    flags: tuple[FrameworkFlags, ...]
    """Flags of each framework."""
    as_it_runs: AsItRunsDocument | None = field(default=None, metadata=OMITTED)
    """The job as it runs today; no key unless the specification has it."""
