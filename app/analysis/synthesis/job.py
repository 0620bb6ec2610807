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
    """What operations of a healthy job cost, in nanoseconds, and how much that varies.

    Parameters
    ----------
    forward_ns, backward_ns : float
        Computation of one microbatch on one whole stage (all of its model chunks together).
    loss_fraction : float
        Share by which the loss layer lengthens forward and backward of the last stage.
    embedding_fraction : float
        Share by which the embedding lengthens forward and backward of the first stage.
    compute_noise, worker_noise : float
        Log-normal spread of each computation, and of the lasting speed of each worker.
    p2p_ns, params_ns, grads_ns, separate_ns, layernorm_ns, embedding_ns, clip_ns : float
        Median transfer time; `params_ns` and `grads_ns` for one whole stage.
    optimizer_ns : float
        Optimizer step of one worker.
    transfer_noise : float
        Log-normal spread of a transfer.
    tail_probability, tail_shape : float
        Share of transfers that take ``1 + Pareto(tail_shape)`` times as long.
    member_jitter_ns : float
        Mean time by which one member of a group ends after the transfer itself.
    launch_overhead_ns : float
        Mean time the host takes to launch an operation once it may run; 0 for none.
    data_loading_ns : float
        Mean time a step's first operation waits for its batch.
    """

    forward_ns: float = 40e6
    backward_ns: float = 80e6
    loss_fraction: float = 0.0
    embedding_fraction: float = 0.0
    compute_noise: float = 0.012
    worker_noise: float = 0.003
    p2p_ns: float = 0.6e6
    params_ns: float = 24e6
    grads_ns: float = 55e6
    separate_ns: float = 1e6
    layernorm_ns: float = 40e3
    embedding_ns: float = 5e6
    clip_ns: float = 3e6
    optimizer_ns: float = 20e6
    transfer_noise: float = 0.08
    tail_probability: float = 0.004
    tail_shape: float = 2.5
    member_jitter_ns: float = 10e3
    launch_overhead_ns: float = 25e3
    data_loading_ns: float = 1.5e6


@dataclass(frozen=True, slots=True)
class JobModel:
    """A training job before anything goes wrong with it.

    Parameters
    ----------
    sizes : Sizes
        One rank of each (DP, PP) cell is traced, that of tensor and context rank 0.
    microbatches, steps : int
        Microbatches of a DP rank in one step; recorded steps.
    op_types : frozenset of str
        The optional operation types that the job executes. Embedding gradients need PP > 1.
        With ``separate-grads-all-reduce`` the gradients' reduce-scatters overlap the backward pass.
    unrecorded : frozenset of str
        Optional types that are executed but missing from the trace.
    buckets : int
        Parameter and gradient collectives of one model chunk.
    edge_transfers : bool
        Whether the ends of the pipeline also record receives and sends, which have no peer.
    gpus_per_host : int

    Raises
    ------
    ValueError
        The sizes or the schedule contradict each other.
    """

    sizes: Sizes
    microbatches: int
    steps: int
    schedule: Schedule = Schedule.ONE_F_ONE_B
    costs: CostModel = field(default_factory=CostModel)
    op_types: frozenset[str] = USUAL_OP_TYPES
    unrecorded: frozenset[str] = frozenset()
    buckets: int = 1
    edge_transfers: bool = False
    gpus_per_host: int = 8
    name: str = "synthetic"

    def __post_init__(self) -> None:
        sizes = self.sizes
        counts = (
            *(sizes.dp, sizes.pp, sizes.tp, sizes.cp, sizes.vpp),
            *(self.microbatches, self.steps, self.buckets, self.gpus_per_host),
        )
        if min(counts) < 1:
            raise ValueError("sizes, microbatches, steps, buckets and GPUs of a host start at 1")
        if (sizes.vpp > 1) != (self.schedule is Schedule.INTERLEAVED):
            raise ValueError("virtual stages and the interleaved schedule need each other")
        if sizes.vpp > 1 and (sizes.pp == 1 or self.microbatches % sizes.pp):
            raise ValueError(
                "the interleaved schedule needs PP > 1 and microbatches in groups of PP"
            )
        if unknown := (self.op_types | self.unrecorded) - OPTIONAL_OP_TYPES:
            raise ValueError(f"not optional operation types: {sorted(unknown)}")

    def traced_rank(self, dp: int, pp: int) -> int:
        """Return the global rank traced in a cell; ranks count TP, then CP, then DP, then PP."""
        return (pp * self.sizes.dp + dp) * self.sizes.cp * self.sizes.tp
