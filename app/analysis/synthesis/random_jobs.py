"""Random realistic jobs, healthy ones."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from app.analysis.synthesis.job import (
    USUAL_OP_TYPES,
    CostModel,
    JobModel,
    Profiler,
    Schedule,
)
from app.analysis.trace.model import (
    EMBEDDING_ALL_REDUCE,
    GC,
    LAYERNORM_ALL_REDUCE,
    OPTIMIZER,
    OPTIMIZER_CLIP,
    SEPARATE_ALL_REDUCE,
    Sizes,
)

_MS: Final = 1e6


@dataclass(frozen=True, slots=True)
class Range:
    """Sizes that jobs are drawn from; larger jobs than `operations`, about, are drawn again."""

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
    """What a job must have for a cause to be possible, and visible."""

    dp: int = 1
    pp: int = 1
    tensor_ranks: bool = False
    context_ranks: bool = False
    experts: bool = False
    interleaved: bool = False
    workers: int = 2


def draw_job(rng: np.random.Generator, needs: Needs, sizes: Range = USUAL) -> JobModel:
    """Return a random healthy job that has what is needed."""
    while True:
        job = _draw_job(rng, needs, sizes)
        rows = job.sizes.workers * job.steps * job.microbatches * job.sizes.vpp
        rows *= 6 + 4 * _ranks_recorded(job) + (4 if job.experts_over > 1 else 0)
        if job.sizes.workers >= needs.workers and rows <= sizes.operations:
            return job


def _ranks_recorded(job: JobModel) -> int:
    """Return how many ranks of a worker record their collectives."""
    profiler, sizes = job.profiler, job.sizes
    return sizes.tp * profiler.tensor_ranks + sizes.cp * profiler.context_ranks


def _draw_job(rng: np.random.Generator, needs: Needs, sizes: Range) -> JobModel:
    pp = max(int(rng.choice(sizes.pp)), needs.pp)
    dp = max(int(rng.choice(sizes.dp)), needs.dp)
    tensor = bool(needs.tensor_ranks or rng.random() < 0.1)  # noqa: PLR2004 - few profile them
    # A recorder of all ranks writes the collectives of one kind of group.
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
    # Recorders differ in what they write of a step's end.
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
    """Return what the operations of a random job cost."""
    forward = float(np.exp(rng.uniform(np.log(15), np.log(180)))) * _MS
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
        # The paper's replays are off by 1.3 % (median), mostly for late launches.
        launch_overhead_ns=forward * float(np.exp(rng.uniform(np.log(0.0005), np.log(0.02)))),
        data_loading_ns=forward * float(rng.uniform(0.005, 0.06)),
        host_stall_probability=float(rng.uniform(0.0, 0.01)),
        host_stall_ns=forward * float(rng.uniform(0.02, 0.2)),
        contention=float(rng.uniform(0.0, 0.06)),
        tensor_share=float(rng.uniform(0.06, 0.2)),
    )
