"""Synthetic training jobs: sizes, schedule, costs of operations, and random healthy jobs.

Each purpose draws from a random stream of its own, so that one parameter does not move others.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

import numpy as np

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

MS: Final = 1e6  # nanoseconds of a millisecond

# Operation types that a job may lack. Forwards, backwards and pipeline transfers are always
# present.
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
# Types in the published traces, which reduce gradients only after the whole backward pass.
USUAL_OP_TYPES: Final[frozenset[str]] = OPTIONAL_OP_TYPES - {SEPARATE_ALL_REDUCE}


class Schedule(StrEnum):
    """The order in which a stage runs the forwards and backwards of its microbatches."""

    GPIPE = "gpipe"
    ONE_F_ONE_B = "1f1b"
    INTERLEAVED = "interleaved-1f1b"


@dataclass(frozen=True, slots=True)
class CostModel:
    """Durations of the operations of a healthy job, nanoseconds, and their random variation."""

    # forward_ns, backward_ns: time of one microbatch on one whole stage (all of its model chunks
    # together)
    forward_ns: float = 40e6
    backward_ns: float = 80e6
    # Share by which the loss layer lengthens forwards and backwards of the last stage.
    loss_fraction: float = 0.0
    # Share by which the embedding lengthens forwards and backwards of the first stage.
    embedding_fraction: float = 0.0
    # compute_noise, worker_noise: standard deviations of the logarithms of each computation's
    # duration, and of each worker's constant speed
    compute_noise: float = 0.012
    worker_noise: float = 0.003
    # hiccup_probability, hiccup_fraction: share of computations that take longer without a lasting
    # cause, and the mean share by which they take longer
    hiccup_probability: float = 0.0
    hiccup_fraction: float = 0.2
    # p2p_ns, params_ns, grads_ns, separate_ns, layernorm_ns, embedding_ns, clip_ns: median duration
    # of a transfer; `params_ns` and `grads_ns` are for one whole stage
    p2p_ns: float = 0.6e6
    params_ns: float = 24e6
    grads_ns: float = 55e6
    separate_ns: float = 1e6
    layernorm_ns: float = 40e3
    embedding_ns: float = 5e6
    clip_ns: float = 3e6
    optimizer_ns: float = 20e6  # optimizer step of one worker
    # transfer_noise, link_noise: standard deviations of the logarithms of each transfer's duration,
    # and of each link's constant speed
    transfer_noise: float = 0.08
    link_noise: float = 0.0
    # tail_probability, tail_shape: share of transfers whose duration has the factor ``1 +
    # Pareto(tail_shape)``
    tail_probability: float = 0.004
    tail_shape: float = 2.5
    # Mean time from the end of a transfer to the end of a member's operation.
    member_jitter_ns: float = 10e3
    # Mean time from the moment at which an operation may run to its launch by the host; 0 for none.
    launch_overhead_ns: float = 25e3
    data_loading_ns: float = 1.5e6  # mean time a step's first operation waits for its batch
    # host_stall_probability, host_stall_ns: share of computations whose launch waits for unrecorded
    # work on the CPU, and the mean wait
    host_stall_probability: float = 0.002
    host_stall_ns: float = 3e6
    step_gap_ns: float = 0.0  # mean time between two steps in which nothing is recorded
    # Share by which a computation takes longer while its worker transfers data at the same time.
    contention: float = 0.03
    # Share of a computation that its collectives over tensor-parallel ranks take.
    tensor_share: float = 0.12


@dataclass(frozen=True, slots=True)
class Profiler:
    """Errors and extra content of a recording; none by default."""

    clock_skew_ns: float = 0.0  # spread (sigma) of the hosts' clocks around the true time
    clock_drift_ppm: float = 0.0  # spread of the clocks' rates, in microseconds a second
    lost_share: float = 0.0  # share of operations that are never written
    # Whether all tensor-parallel ranks record their collectives, which needs TP > 1.
    tensor_ranks: bool = False
    context_ranks: bool = False  # Whether every context-parallel rank does; not both. Needs CP > 1.
    # Whether the metadata list the sequence lengths of each microbatch if they vary.
    sequence_lengths: bool = False


@dataclass(frozen=True, slots=True)
class JobModel:
    """A training job without faults.

    Raises
    ------
    ValueError
        The sizes or the schedule contradict each other.
    """

    sizes: Sizes  # one rank of each (DP, PP) cell is traced, that of tensor and context rank 0
    # microbatches, steps: number of microbatches of a DP rank in one step; number of recorded
    # training steps of full size
    microbatches: int
    steps: int
    # Whether the recorded steps are consecutive. Otherwise they come in groups of near steps with
    # long gaps.
    consecutive: bool = False
    warm_up_steps: int = 0  # steps before them with half as many microbatches
    evaluation_steps: int = 0  # steps among them that only do forwards
    schedule: Schedule = Schedule.ONE_F_ONE_B
    costs: CostModel = field(default_factory=CostModel)
    # The optional operation types that the job executes. Embedding gradients need PP > 1. With
    # ``separate-grads-all-reduce``, the reduce-scatters of the gradients overlap the backward pass.
    op_types: frozenset[str] = USUAL_OP_TYPES
    # Optional types that the job executes but the trace lacks.
    unrecorded: frozenset[str] = frozenset()
    buckets: int = 1  # parameter and gradient collectives of one model chunk
    # Whether parameters are gathered after the optimizer for the next step, as by Megatron's
    # distributed optimizer without overlap, instead of before the first forward.
    gathers_at_end: bool = False
    # Whether the first and last stage also record receives and sends that have no peer.
    edge_transfers: bool = False
    # Number of DP ranks that share the experts of each layer and record their all-to-alls; 1 for
    # none.
    experts_over: int = 1
    gpus_per_host: int = 8
    # Number of layers of each stage in the metadata; empty if the metadata have none.
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
        """Return the global rank at a place: ranks count TP first, then CP, DP and PP."""
        return ((pp * self.sizes.dp + dp) * self.sizes.cp + cp) * self.sizes.tp + tp


# Random jobs.


@dataclass(frozen=True, slots=True)
class Range:
    """Ranges of the sizes of random jobs; jobs with too many operations are drawn again."""

    dp: tuple[int, ...] = (1, 2, 3, 4, 6, 8, 12, 16)
    pp: tuple[int, ...] = (1, 1, 2, 2, 3, 4, 4, 6, 8)
    most_microbatches: int = 16
    most_steps: int = 24
    operations: int = 40_000


USUAL: Final = Range()


LARGER: Final = Range(
    dp=(2, 3, 5, 8, 12, 16, 20, 24, 32),
    pp=(1, 2, 3, 4, 5, 8, 10, 12, 16),
    most_microbatches=24,
    most_steps=40,
    operations=100_000,
)


@dataclass(frozen=True, slots=True)
class Needs:
    """Minimum sizes and features that a job needs to show a cause."""

    dp: int = 1
    pp: int = 1
    tensor_ranks: bool = False
    context_ranks: bool = False
    experts: bool = False
    interleaved: bool = False
    workers: int = 2


def draw_job(rng: np.random.Generator, needs: Needs, sizes: Range = USUAL) -> JobModel:
    """Return a random healthy job that meets the requirements of a cause."""
    while True:
        job = _draw_job(rng, needs, sizes)
        rows = job.sizes.workers * job.steps * job.microbatches * job.sizes.vpp
        profiler, cells = job.profiler, job.sizes
        recording = cells.tp * profiler.tensor_ranks + cells.cp * profiler.context_ranks
        rows *= 6 + 4 * recording + (4 if job.experts_over > 1 else 0)
        if job.sizes.workers >= needs.workers and rows <= sizes.operations:
            return job


def _draw_job(rng: np.random.Generator, needs: Needs, sizes: Range) -> JobModel:
    pp = max(int(rng.choice(sizes.pp)), needs.pp)
    dp = max(int(rng.choice(sizes.dp)), needs.dp)
    tensor = bool(needs.tensor_ranks or rng.random() < 0.1)  # noqa: PLR2004 - few profile them
    # A recording of all ranks has the collectives of either tensor-parallel or context-parallel
    # groups.
    tensor = tensor and not needs.context_ranks
    tp = int(rng.choice([2, 4, 8] if tensor else [1, 2, 4, 8]))
    interleaved = bool(pp > 1 and (needs.interleaved or rng.random() < 0.2))  # noqa: PLR2004 - some
    microbatches = int(rng.integers(4, sizes.most_microbatches + 1))
    schedule, vpp = Schedule.ONE_F_ONE_B, 1
    types = USUAL_OP_TYPES
    if interleaved:
        schedule, vpp = Schedule.INTERLEAVED, int(rng.integers(2, 4))
        microbatches = pp * max(1, round(microbatches / pp))
        if needs.interleaved or rng.random() < 0.5:  # noqa: PLR2004 - half of them
            types |= {SEPARATE_ALL_REDUCE}
    elif rng.random() < 0.1:  # noqa: PLR2004 - few
        schedule = Schedule.GPIPE
    # Recorders differ in which operations at the end of a step they record.
    unrecorded = {
        name
        for name in (LAYERNORM_ALL_REDUCE, EMBEDDING_ALL_REDUCE, OPTIMIZER_CLIP, OPTIMIZER, GC)
        if rng.random() < 0.1  # noqa: PLR2004 - few leave out any
    }
    job = JobModel(
        sizes=Sizes(dp=dp, pp=pp, tp=tp, cp=int(rng.choice([1, 1, 1, 2])), vpp=vpp),
        microbatches=microbatches,
        steps=int(rng.integers(12, sizes.most_steps + 1)),
        schedule=schedule,
        costs=draw_costs(rng),
        op_types=types - unrecorded,
        buckets=int(rng.integers(1, 3)),
        edge_transfers=bool(vpp == 1 and rng.random() < 0.2),  # noqa: PLR2004 - some recorders do
        profiler=Profiler(tensor_ranks=tensor),
        name=f"job-{int(rng.integers(1_000_000)):06d}",
    )
    if needs.context_ranks:
        cp = int(rng.choice([2, 4]))
        job = replace(job, sizes=replace(job.sizes, cp=cp), profiler=Profiler(context_ranks=True))
    if needs.experts:
        shared = [over for over in (2, 4, 8) if dp % over == 0] or [dp]
        job = replace(job, experts_over=int(rng.choice(shared)))
    return job


def draw_costs(rng: np.random.Generator) -> CostModel:
    """Return random costs of the operations of a job."""
    forward = float(np.exp(rng.uniform(np.log(15), np.log(180)))) * MS
    return CostModel(
        forward_ns=forward,
        backward_ns=forward * float(rng.uniform(1.8, 2.3)),
        loss_fraction=float(rng.uniform(0, 0.04)),
        embedding_fraction=float(rng.uniform(0, 0.02)),
        compute_noise=float(rng.uniform(0.004, 0.03)),
        worker_noise=float(rng.uniform(0.001, 0.01)),
        p2p_ns=forward * float(rng.uniform(0.005, 0.04)),
        params_ns=forward * float(rng.uniform(0.2, 0.8)),
        grads_ns=forward * float(rng.uniform(0.4, 1.4)),
        embedding_ns=forward * float(rng.uniform(0.03, 0.15)),
        optimizer_ns=forward * float(rng.uniform(0.2, 0.6)),
        hiccup_probability=float(rng.uniform(0.0, 0.001)),
        hiccup_fraction=float(rng.uniform(0.1, 0.4)),
        transfer_noise=float(rng.uniform(0.03, 0.15)),
        link_noise=float(rng.uniform(0.0, 0.15)),
        tail_probability=float(rng.uniform(0.001, 0.008)),
        # The replays of the paper deviate by 1.3 % (median), mostly because of late launches.
        launch_overhead_ns=forward * float(np.exp(rng.uniform(np.log(0.0005), np.log(0.02)))),
        data_loading_ns=forward * float(rng.uniform(0.005, 0.06)),
        host_stall_probability=float(rng.uniform(0.0, 0.01)),
        host_stall_ns=forward * float(rng.uniform(0.02, 0.2)),
        contention=float(rng.uniform(0.0, 0.06)),
        tensor_share=float(rng.uniform(0.06, 0.2)),
    )


# Random numbers.
def stream(seed: int, *purpose: str | int) -> np.random.Generator:
    """Return the random generator for a purpose; generators of other purposes are independent."""
    words = [zlib.crc32(str(word).encode()) for word in purpose]
    return np.random.default_rng([seed, *words])
