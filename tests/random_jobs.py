"""Small random jobs for property tests: durations differ greatly between peers.

Without launch overhead, a replay of the recorded durations has to reproduce the executed step
times to the nanosecond (`program` holds the semantics).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from app.analysis.synthesis.injections.base import Injection
from app.analysis.synthesis.injections.computations import (
    GarbageCollection,
    SequenceLengths,
    SlowWorker,
    StageImbalance,
)
from app.analysis.synthesis.injections.delays import SlowLink
from app.analysis.synthesis.job import OPTIONAL_OP_TYPES, CostModel, JobModel, Schedule, stream
from app.analysis.synthesis.synthesize import SyntheticSession, synthesize
from app.analysis.trace.model import SEPARATE_ALL_REDUCE, Sizes

if TYPE_CHECKING:
    import numpy as np

# Larger variations than on real hardware, so that each dependency is the latest one at some time.
_WILD = CostModel(
    forward_ns=20e6,
    backward_ns=40e6,
    compute_noise=0.4,
    worker_noise=0.2,
    p2p_ns=5e6,
    params_ns=20e6,
    grads_ns=20e6,
    layernorm_ns=2e6,
    transfer_noise=0.5,
    tail_probability=0.1,
    member_jitter_ns=1e6,
)


def random_job(
    seed: int,
    *,
    steps: int | None = None,
    launch_overhead: bool = False,
    interleaved: bool = False,
    overlap: bool = False,
    edge_transfers: bool = False,
    gathers_at_end: bool = False,
) -> SyntheticSession:
    """Return a random session with up to 4 DP ranks, 4 stages and 8 microbatches.

    Parameters
    ----------
    seed : int
    steps : int or None
        Recorded steps; None for 1 to 4.
    launch_overhead : bool
        Whether hosts take time to launch operations and to load data.
    interleaved : bool
        Whether the job has virtual stages (then PP > 1) instead of GPipe or 1F1B.
    overlap : bool
        Whether separate-grads-all-reduce is executed, which makes gradients overlap.
    edge_transfers : bool
        Whether the ends of the pipeline record transfers without a peer.
    gathers_at_end : bool
        Whether parameters are gathered at the end of a step instead of at its begin.
    """
    rng = stream(seed, "random job")
    pp = int(rng.integers(2 if interleaved else 1, 5))
    microbatches = int(rng.integers(1, 9))
    schedule = Schedule.GPIPE if rng.random() < 1 / 3 else Schedule.ONE_F_ONE_B
    vpp = 1
    if interleaved:
        schedule, vpp = Schedule.INTERLEAVED, int(rng.integers(2, 4))
        microbatches = pp * int(rng.integers(1, 3))
    # Half of the jobs have every type, the others a random subset.
    keep_all = rng.random() < 1 / 2
    op_types = frozenset(
        name
        for name in sorted(OPTIONAL_OP_TYPES - {SEPARATE_ALL_REDUCE})
        if rng.random() < 1 / 2 or keep_all
    )
    silent = ("launch_overhead_ns", "data_loading_ns", "host_stall_probability")
    quiet = {} if launch_overhead else dict.fromkeys(silent, 0.0)
    job = JobModel(
        sizes=Sizes(dp=int(rng.integers(1, 5)), pp=pp, tp=int(rng.integers(1, 3)), vpp=vpp),
        microbatches=microbatches,
        steps=int(rng.integers(1, 5)) if steps is None else steps,
        schedule=schedule,
        costs=replace(_WILD, **quiet),
        op_types=op_types | ({SEPARATE_ALL_REDUCE} if overlap else set()),
        buckets=int(rng.integers(1, 3)),
        edge_transfers=edge_transfers,
        gathers_at_end=gathers_at_end,
        name=f"random-{seed}",
    )
    return synthesize(job, _random_injections(job, rng), seed=seed)


def _random_injections(job: JobModel, rng: np.random.Generator) -> tuple[Injection, ...]:
    worker = (int(rng.integers(job.sizes.dp)), int(rng.integers(job.sizes.pp)))
    candidates: tuple[Injection, ...] = (
        SlowWorker(worker, factor=float(rng.uniform(1.2, 4))),
        StageImbalance(),
        SequenceLengths(),
        GarbageCollection(pause_ns=100e6, pauses=0.3),
        SlowLink(worker, factor=float(rng.uniform(2, 20))),
    )
    return tuple(injection for injection in candidates if rng.random() < 1 / 5)
