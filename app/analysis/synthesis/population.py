"""Random realistic jobs with a given cause of straggling and a given true slowdown.

Fleets are made of them, and diagnoses are scored on them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np

from app.analysis.synthesis.injections.base import Spells
from app.analysis.synthesis.injections.computations import (
    GarbageCollection,
    MemoryFragmentation,
    SequenceLengths,
    SlowWorker,
    StageImbalance,
    TensorParallelStraggler,
)
from app.analysis.synthesis.injections.devices import ThermalThrottling
from app.analysis.synthesis.injections.hosts import Checkpoint, HostOverhead
from app.analysis.synthesis.injections.ranks import ContextParallelStraggler, UnevenExperts
from app.analysis.synthesis.injections.transfers import (
    Congestion,
    FalseKernelDependency,
    SlowDataLoading,
    SlowLink,
)
from app.analysis.synthesis.job import (
    USUAL_OP_TYPES,
    CostModel,
    JobModel,
    Profiler,
    Schedule,
)
from app.analysis.synthesis.randomness import stream
from app.analysis.synthesis.synthesize import SyntheticSession, synthesize, true_slowdown
from app.analysis.trace.model import (
    EMBEDDING_ALL_REDUCE,
    GC,
    LAYERNORM_ALL_REDUCE,
    OPTIMIZER,
    OPTIMIZER_CLIP,
    SEPARATE_ALL_REDUCE,
    Sizes,
)

if TYPE_CHECKING:
    from app.analysis.synthesis.injections.base import Injection, Worker

_MS: Final = 1e6
# Strengths of an injection that are tried for a slowdown, at most.
_ROUNDS: Final = 8

Sick = tuple[JobModel, tuple["Injection", ...]]
# Given a job, the strength of the fault and draws that do not depend on it.
Strengthen = Callable[[JobModel, float, np.random.Generator], Sick]


class SlowdownOf(Protocol):
    """A slowdown of a job with injections, as `true_slowdown` is one."""

    def __call__(self, job: JobModel, injections: Sequence[Injection], *, seed: int) -> float:
        """Return how many times as long the job takes."""
        ...


@dataclass(frozen=True, slots=True)
class Goal:
    """The slowdown that a job shall have, by which measure, and the share it may be off."""

    slowdown: float
    slowdown_of: SlowdownOf = true_slowdown
    near: float = 0.03


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


def _slow_worker(job: JobModel, strength: float, rng: np.random.Generator) -> Sick:
    first, spells = _any_worker(job, rng), _spells(job, rng)
    share = float(rng.uniform(0.7, 1.1))
    found = [SlowWorker(first, 1 + 0.5 * strength, spells, share)]
    others, few = rng.permutation(job.sizes.workers), job.sizes.workers // 8
    # Now and then a host has several; the first one is the slowest.
    count = int(rng.integers(1, 3)) if rng.random() < 0.2 else 0  # noqa: PLR2004 - few hosts do
    for number in others[: min(count, few)].tolist():
        worker = divmod(number, job.sizes.pp)
        # Were most of a stage's workers slow, the stage would be.
        same = [other for other in found if other.worker[1] == worker[1]]
        if worker != first and len(same) < job.sizes.dp // 4:
            found.append(SlowWorker(worker, 1 + 0.4 * strength, spells, share))
    return job, tuple(found)


def _heat(job: JobModel, strength: float, rng: np.random.Generator) -> Sick:
    period = float(rng.uniform(0.4, 1.0)) * job.steps
    hot = ThermalThrottling(
        _any_worker(job, rng), 1 + strength, period, float(rng.uniform(0, period))
    )
    return job, (hot,)


def _stage(job: JobModel, strength: float, rng: np.random.Generator) -> Sick:
    backward = float(rng.uniform(0.25, 0.9))
    at = -1 if rng.random() < 0.7 else int(rng.integers(job.sizes.pp))  # noqa: PLR2004 - mostly last
    return job, (StageImbalance(1 + 0.6 * strength, 1 + 0.6 * strength * backward, at),)


def _last_stage(job: JobModel, strength: float, rng: np.random.Generator) -> Sick:
    backward = float(rng.uniform(0.25, 0.9))
    return job, (StageImbalance(1 + 0.6 * strength, 1 + 0.6 * strength * backward),)


def _sequences(job: JobModel, strength: float, rng: np.random.Generator) -> Sick:
    length = int(rng.choice([8_192, 16_384, 32_768, 65_536]))
    spread = float(rng.uniform(1.2, 1.8))
    median = length * float(rng.uniform(0.04, 0.12))
    backward = float(rng.uniform(0.8, 1.3))
    injection = SequenceLengths(
        length, median, spread, quadratic=0.6 * strength, backward_quadratic=backward
    )
    recorded = replace(job.profiler, sequence_lengths=bool(rng.random() < 0.3))  # noqa: PLR2004 - some
    return replace(job, profiler=recorded), (injection,)


def _long_context(job: JobModel, strength: float, rng: np.random.Generator) -> Sick:
    # Attention weighs in proportion to the context, and a longer one holds more unequal sequences.
    median, spread = float(rng.uniform(800, 2_400)), float(rng.uniform(1.3, 1.8))
    length = int(min(max(float(rng.uniform(12_000, 30_000)) * strength, 4_096), 262_144))
    backward = float(rng.uniform(0.8, 1.3))
    injection = SequenceLengths(
        length, median, spread, quadratic=0.6 * strength, backward_quadratic=backward
    )
    return job, (injection,)


def _garbage(job: JobModel, strength: float, rng: np.random.Generator) -> Sick:
    # About as many pauses a step whatever the job's size, at least one on a worker in five steps.
    pauses = max(0.2, float(rng.uniform(0.8, 4)) / job.sizes.workers)
    pauses = min(pauses, 0.2 * job.microbatches * job.sizes.vpp)
    growth = float(rng.choice([0.0, rng.uniform(0.3, 1.5)]))
    pause = 1.2 * strength * job.costs.forward_ns / job.sizes.vpp
    return job, (GarbageCollection(pause, pauses, growth),)


def _collecting(job: JobModel, strength: float, rng: np.random.Generator) -> Sick:
    # Every interpreter collects each few steps. In one session its heap hardly grows.
    pauses = min(float(rng.uniform(0.25, 0.7)), 0.2 * job.microbatches * job.sizes.vpp)
    pause = 1.2 * strength * job.costs.forward_ns / job.sizes.vpp
    return job, (GarbageCollection(pause, pauses, growth=float(rng.uniform(0, 0.2))),)


def _network(job: JobModel, strength: float, rng: np.random.Generator) -> Sick:
    spells = _spells(job, rng)
    return job, (SlowLink(_any_worker(job, rng), 1 + 12 * strength, spells),)


def _traffic(job: JobModel, strength: float, rng: np.random.Generator) -> Sick:
    period = float(rng.uniform(0.4, 0.9)) * job.steps
    busy, offset = float(rng.uniform(0.35, 0.65)), float(rng.uniform(0, period))
    return job, (Congestion(1 + 15 * strength, period, busy, offset),)


def _loading(job: JobModel, strength: float, rng: np.random.Generator) -> Sick:
    del rng
    return job, (SlowDataLoading(2 * strength * job.costs.forward_ns),)


def _saving(job: JobModel, strength: float, rng: np.random.Generator) -> Sick:
    every = int(rng.integers(3, 9))
    stall = every * strength * job.costs.forward_ns
    return job, (Checkpoint(every, stall, offset=int(rng.integers(every))),)


def _launching(job: JobModel, strength: float, rng: np.random.Generator) -> Sick:
    launch = (1 + strength) * job.costs.forward_ns / job.sizes.vpp
    everywhere = rng.random() < 0.5  # noqa: PLR2004 - half of them
    worker = None if everywhere else _any_worker(job, rng)
    return job, (HostOverhead(launch, worker),)


def _kernels(job: JobModel, strength: float, rng: np.random.Generator) -> Sick:
    costs = replace(job.costs, grads_ns=2.5 * strength * job.costs.forward_ns)
    return replace(job, costs=costs), (FalseKernelDependency(int(rng.integers(1, 3))),)


def _fragmentation(job: JobModel, strength: float, rng: np.random.Generator) -> Sick:
    stall = 0.4 * strength * job.costs.forward_ns / job.sizes.vpp
    share, spells = float(rng.uniform(0.4, 0.9)), Spells(share=float(rng.uniform(0.3, 0.8)))
    return job, (MemoryFragmentation(_any_worker(job, rng), stall, share, spells),)


def _fragmentation_anywhere(job: JobModel, strength: float, rng: np.random.Generator) -> Sick:
    # What allocates in the same pattern fragments in the same way: not one worker, but many.
    stall = 0.4 * strength * job.costs.forward_ns / job.sizes.vpp
    count = max(2, job.sizes.workers // 4)
    found = [
        MemoryFragmentation(divmod(number, job.sizes.pp), stall, 0.5, Spells(share=0.5))
        for number in rng.permutation(job.sizes.workers)[:count].tolist()
    ]
    return job, tuple(found)


def _tensor_rank(job: JobModel, strength: float, rng: np.random.Generator) -> Sick:
    rank, worker = int(rng.integers(job.sizes.tp)), _any_worker(job, rng)
    return job, (TensorParallelStraggler(worker, rank, 1 + 0.6 * strength, _spells(job, rng)),)


def _context_rank(job: JobModel, strength: float, rng: np.random.Generator) -> Sick:
    rank, worker = int(rng.integers(job.sizes.cp)), _any_worker(job, rng)
    return job, (ContextParallelStraggler(worker, rank, 1 + 0.6 * strength, _spells(job, rng)),)


def _experts(job: JobModel, strength: float, rng: np.random.Generator) -> Sick:
    # Which experts are sent most changes with the text, and some are sent more of any.
    lasting = float(rng.uniform(0, 0.8))
    return job, (UnevenExperts(0.5 * strength, lasting, float(rng.uniform(0.3, 0.6))),)


_CAUSES: Final[Mapping[str, tuple[Needs, Strengthen]]] = {
    "slow_worker": (Needs(dp=2), _slow_worker),
    "thermal_throttling": (Needs(dp=2), _heat),
    "stage_imbalance": (Needs(pp=2), _stage),
    "sequence_length_imbalance": (Needs(), _sequences),
    "garbage_collection": (Needs(workers=6), _garbage),
    "memory_fragmentation": (Needs(dp=2, tensor_ranks=True), _fragmentation),
    "false_kernel_dependency": (Needs(pp=4, interleaved=True), _kernels),
    "network": (Needs(dp=2, pp=2), _network),
    "network_congestion": (Needs(dp=2, pp=2), _traffic),
    "data_loading": (Needs(), _loading),
    "checkpoint": (Needs(), _saving),
    "host_overhead": (Needs(), _launching),
    "tensor_parallel_straggler": (Needs(dp=2, tensor_ranks=True), _tensor_rank),
    "context_parallel_straggler": (Needs(dp=2, context_ranks=True), _context_rank),
    "expert_parallel_imbalance": (Needs(dp=2, experts=True), _experts),
}
CAUSES: Final = tuple(_CAUSES)
# Kinds of causes that fleets have. The last stage carries the loss layer that nobody counted.
LAST_STAGE: Final = "last_stage"
# Sequence lengths that are the more unequal the longer the context is.
LONG_CONTEXT: Final = "long_context"
# Garbage collection on each worker every few steps.
COLLECTING: Final = "collecting"
# Memory fragmentation on a quarter of the workers.
FRAGMENTED: Final = "fragmented"
_DIALS: Final = {
    **_CAUSES,
    LAST_STAGE: (Needs(pp=2), _last_stage),
    LONG_CONTEXT: (Needs(), _long_context),
    COLLECTING: (Needs(workers=6), _collecting),
    FRAGMENTED: (Needs(dp=2, tensor_ranks=True), _fragmentation_anywhere),
}


def draw_session(
    causes: Sequence[str], slowdown: float, seed: int, sizes: Range = USUAL
) -> SyntheticSession:
    """Return a random job with the named causes and about the given true slowdown.

    Causes are `CAUSES`, or one of `LAST_STAGE`, `LONG_CONTEXT`, `COLLECTING`,
    `FRAGMENTED`.
    Several causes get equal strength. Without a cause the job is healthy, whatever the slowdown.
    Where no strength reaches the slowdown, the strongest that was tried is taken.
    """
    job = draw_job(stream(seed, "population"), needs_of(causes), sizes)
    return afflict(job, causes, Goal(slowdown), seed)


def afflict(job: JobModel, causes: Sequence[str], goal: Goal, seed: int) -> SyntheticSession:
    """Return the job with the named causes, as strong as the goal needs."""
    if not causes:
        return synthesize(job, seed=seed)

    def with_strength(strength: float) -> Sick:
        sick: Sick = (job, ())
        for cause in causes:
            changed, added = _DIALS[cause][1](sick[0], strength, stream(seed, "dials", cause))
            sick = (changed, (*sick[1], *added))
        return sick

    found = _seek(with_strength, goal, seed)
    return synthesize(*found, seed=seed)


def needs_of(causes: Sequence[str]) -> Needs:
    """Return what a job must have for all of the causes."""
    return _all_of([_DIALS[cause][0] for cause in causes])


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
        # The paper's replays are off by 1.3 % in the middle, mostly for late launches.
        launch_overhead_ns=forward * float(np.exp(rng.uniform(np.log(0.0005), np.log(0.02)))),
        data_loading_ns=forward * float(rng.uniform(0.005, 0.06)),
        host_stall_probability=float(rng.uniform(0.0, 0.01)),
        host_stall_ns=forward * float(rng.uniform(0.02, 0.2)),
        contention=float(rng.uniform(0.0, 0.06)),
        tensor_share=float(rng.uniform(0.06, 0.2)),
    )


def _all_of(needs: Sequence[Needs]) -> Needs:
    return Needs(
        dp=max((n.dp for n in needs), default=1),
        pp=max((n.pp for n in needs), default=1),
        tensor_ranks=any(n.tensor_ranks for n in needs),
        context_ranks=any(n.context_ranks for n in needs),
        experts=any(n.experts for n in needs),
        interleaved=any(n.interleaved for n in needs),
        workers=max((n.workers for n in needs), default=2),
    )


def _any_worker(job: JobModel, rng: np.random.Generator) -> Worker:
    return int(rng.integers(job.sizes.dp)), int(rng.integers(job.sizes.pp))


def _spells(job: JobModel, rng: np.random.Generator) -> Spells:
    """Return when a fault is there: mostly always, else from a step on, or by spells."""
    kind = rng.random()
    since = int(rng.integers(1, max(2, int(0.6 * job.steps))))
    share = float(rng.uniform(0.3, 0.8))
    if kind < 0.6:  # noqa: PLR2004 - most last
        return Spells()
    return Spells(from_step=since) if kind < 0.8 else Spells(share=share)  # noqa: PLR2004 - half each


def _seek(with_strength: Callable[[float], Sick], goal: Goal, seed: int) -> Sick:
    """Return the job that is nearest to the goal; more strength is slower."""
    slowdown = goal.slowdown
    low, high, strength = 0.0, np.inf, 1.0
    best: tuple[float, Sick] | None = None
    for _ in range(_ROUNDS):
        sick = with_strength(strength)
        reached = goal.slowdown_of(*sick, seed=seed)
        off = abs(reached - slowdown)
        if best is None or off < best[0]:
            best = (off, sick)
        if off <= goal.near * slowdown and reached >= min(slowdown, 1.1):
            break
        low, high = (strength, high) if reached < slowdown else (low, strength)
        grown = (slowdown - 1) / max(reached - 1, 1e-3)
        guess = strength * min(max(grown, 0.2), 5.0)
        strength = guess if low < guess < high else (low + min(high, 4 * low + 1)) / 2
    assert best is not None  # noqa: S101 - there is at least one round
    return best[1]
