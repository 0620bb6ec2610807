"""What a synthetic training job is made of: its shape, its schedule, what its operations cost."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from app.analysis.trace.model import (
    EMBEDDING_ALL_REDUCE,
    GC,
    GRADS_REDUCE_SCATTER,
    LAYERNORM_ALL_REDUCE,
    OPTIMIZER,
    OPTIMIZER_CLIP,
    PARAMS_ALL_GATHER,
    SEPARATE_ALL_REDUCE,
    Sizes,
)

# What a job may leave out altogether; forwards, backwards and pipeline transfers are always there.
OPTIONAL_OP_TYPES: Final[frozenset[str]] = frozenset(
    {
        PARAMS_ALL_GATHER,
        GRADS_REDUCE_SCATTER,
        LAYERNORM_ALL_REDUCE,
        EMBEDDING_ALL_REDUCE,
        OPTIMIZER_CLIP,
        OPTIMIZER,
        GC,
        SEPARATE_ALL_REDUCE,
    }
)
# What the published traces hold: gradients are reduced after the whole backward pass.
USUAL_OP_TYPES: Final[frozenset[str]] = OPTIONAL_OP_TYPES - {SEPARATE_ALL_REDUCE}


class Schedule(StrEnum):
    """The order in which a stage works through its microbatches."""

    GPIPE = "gpipe"
    ONE_F_ONE_B = "1f1b"
    INTERLEAVED = "interleaved-1f1b"


@dataclass(frozen=True, slots=True)
class CostModel:
    """What operations of a healthy job cost, in nanoseconds, and how much that varies."""

    # forward_ns, backward_ns: computation of one microbatch on one whole stage (all of its model
    # chunks together)
    forward_ns: float = 40e6
    backward_ns: float = 80e6
    # Share by which the loss layer lengthens forward and backward of the last stage.
    loss_fraction: float = 0.0
    # Share by which the embedding lengthens forward and backward of the first stage.
    embedding_fraction: float = 0.0
    # compute_noise, worker_noise: log-normal spread of each computation, and of the lasting speed
    # of each worker
    compute_noise: float = 0.012
    worker_noise: float = 0.003
    # hiccup_probability, hiccup_fraction: share of computations that take longer for no lasting
    # reason, and by which share on average
    hiccup_probability: float = 0.0
    hiccup_fraction: float = 0.2
    # p2p_ns, params_ns, grads_ns, separate_ns, layernorm_ns, embedding_ns, clip_ns: median
    # transfer time; `params_ns` and `grads_ns` for one whole stage
    p2p_ns: float = 0.6e6
    params_ns: float = 24e6
    grads_ns: float = 55e6
    separate_ns: float = 1e6
    layernorm_ns: float = 40e3
    embedding_ns: float = 5e6
    clip_ns: float = 3e6
    optimizer_ns: float = 20e6  # optimizer step of one worker
    # transfer_noise, link_noise: log-normal spread of each transfer, and of the lasting speed of
    # each link
    transfer_noise: float = 0.08
    link_noise: float = 0.0
    # tail_probability, tail_shape: share of transfers that take ``1 + Pareto(tail_shape)`` times
    # as long
    tail_probability: float = 0.004
    tail_shape: float = 2.5
    # Mean time by which one member of a group ends after the transfer itself.
    member_jitter_ns: float = 10e3
    # Mean time the host takes to launch an operation once it may run; 0 for none.
    launch_overhead_ns: float = 25e3
    data_loading_ns: float = 1.5e6  # mean time a step's first operation waits for its batch
    # host_stall_probability, host_stall_ns: share of computations whose launch waits for
    # unrecorded work on the CPU, and its mean time
    host_stall_probability: float = 0.002
    host_stall_ns: float = 3e6
    turn_ns: float = 0.0  # mean time between two steps in which nothing is recorded
    # Share by which a computation takes longer while its worker also transfers.
    contention: float = 0.03
    # Share of a computation that is its collectives over the tensor-parallel ranks.
    tensor_share: float = 0.12


@dataclass(frozen=True, slots=True)
class Profiler:
    """What recording does to a trace; by default nothing."""

    clock_skew_ns: float = 0.0  # spread (sigma) of the hosts' clocks around the true time
    clock_drift_ppm: float = 0.0  # spread of the clocks' rates, in microseconds a second
    lost_share: float = 0.0  # share of operations that are never written
    # Whether every tensor-parallel rank records its collectives. Needs TP > 1.
    tensor_ranks: bool = False
    context_ranks: bool = False  # Whether every context-parallel rank does; not both. Needs CP > 1.
    # Whether the metadata list the sequence lengths of each microbatch where they vary.
    sequence_lengths: bool = False


@dataclass(frozen=True, slots=True)
class JobModel:
    """A training job before anything goes wrong with it.

    Raises
    ------
    ValueError
        The sizes or the schedule contradict each other.
    """

    sizes: Sizes  # one rank of each (DP, PP) cell is traced, that of tensor and context rank 0
    # microbatches, steps: microbatches of a DP rank in one step; recorded training steps of full
    # size
    microbatches: int
    steps: int
    # Whether recorded steps follow one another; else they are near each other, with long gaps.
    consecutive: bool = False
    warm_up_steps: int = 0  # steps before them with half as many microbatches
    evaluation_steps: int = 0  # steps among them that only do forwards
    schedule: Schedule = Schedule.ONE_F_ONE_B
    costs: CostModel = field(default_factory=CostModel)
    # The optional operation types that the job executes. Embedding gradients need PP > 1. With
    # ``separate-grads-all-reduce`` the gradients' reduce-scatters overlap the backward pass.
    op_types: frozenset[str] = USUAL_OP_TYPES
    # Optional types that are executed but missing from the trace.
    unrecorded: frozenset[str] = frozenset()
    buckets: int = 1  # parameter and gradient collectives of one model chunk
    # Whether the ends of the pipeline also record receives and sends, which have no peer.
    edge_transfers: bool = False
    # DP ranks that share the experts of each layer and record their all-to-alls; 1 for none.
    experts_over: int = 1
    gpus_per_host: int = 8
    # Layers of each stage, as the metadata name them; empty where they do not.
    layers: tuple[int, ...] = ()
    profiler: Profiler = field(default_factory=Profiler)
    name: str = "synthetic"

    def __post_init__(self) -> None:
        sizes = self.sizes
        counts = (
            *(sizes.dp, sizes.pp, sizes.tp, sizes.cp, sizes.vpp),
            *(self.microbatches, self.steps, self.buckets, self.gpus_per_host, self.experts_over),
        )
        if min(counts) < 1:
            raise ValueError("sizes, microbatches, steps, buckets and GPUs of a host start at 1")
        if min(self.warm_up_steps, self.evaluation_steps) < 0:
            raise ValueError("there cannot be fewer than no warm-up or evaluation steps")
        if self.profiler.tensor_ranks and sizes.tp == 1:
            raise ValueError("tensor-parallel collectives need TP > 1")
        if self.profiler.context_ranks and (sizes.cp == 1 or self.profiler.tensor_ranks):
            raise ValueError("context-parallel collectives need CP > 1, and none of TP")
        if sizes.dp % self.experts_over:
            raise ValueError("experts are shared by groups of DP ranks of one size")
        if (sizes.vpp > 1) != (self.schedule is Schedule.INTERLEAVED):
            raise ValueError("virtual stages and the interleaved schedule need each other")
        if sizes.vpp > 1 and (sizes.pp == 1 or self.microbatches % sizes.pp):
            raise ValueError(
                "the interleaved schedule needs PP > 1 and microbatches in groups of PP"
            )
        if unknown := (self.op_types | self.unrecorded) - OPTIONAL_OP_TYPES:
            raise ValueError(f"not optional operation types: {sorted(unknown)}")

    def traced_rank(self, dp: int, pp: int, tp: int = 0, cp: int = 0) -> int:
        """Return a global rank of a cell; ranks count TP, then CP, DP and PP."""
        return ((pp * self.sizes.dp + dp) * self.sizes.cp + cp) * self.sizes.tp + tp
