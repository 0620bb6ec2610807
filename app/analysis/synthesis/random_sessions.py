"""Random sessions with a given cause of straggling and about a given true slowdown.

A cause has a severity, which is raised until the slowdown is reached. Fleets consist of such
sessions, and diagnoses are scored on them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Protocol

import numpy as np

from app.analysis.synthesis.injections.base import Injection, Spells, any_worker
from app.analysis.synthesis.injections.computations import (
    ContextParallelStraggler,
    GarbageCollection,
    MemoryFragmentation,
    RotatingWorker,
    SequenceLengths,
    SlowTogether,
    SlowWorker,
    StageImbalance,
    TensorParallelStraggler,
    ThermalThrottling,
    UnevenExperts,
    UnevenMicrobatches,
)
from app.analysis.synthesis.injections.delays import (
    Checkpoint,
    CheckpointWritten,
    Congestion,
    Evaluation,
    FalseKernelDependency,
    HostOverhead,
    LoaderStall,
    SlowDataLoading,
    SlowLink,
    Standstill,
)
from app.analysis.synthesis.job import (
    USUAL,
    USUAL_OP_TYPES,
    JobModel,
    Needs,
    Profiler,
    Range,
    Schedule,
    draw_job,
    stream,
)
from app.analysis.synthesis.synthesize import (
    SyntheticSession,
    synthesize,
    true_slowdown,
    true_turn_slowdown,
)

FaultyJob = tuple[JobModel, tuple["Injection", ...]]
# A function of a job, the strength of a fault, and a generator whose draws do not depend on the
# strength; it returns the job with the fault.
Strengthen = Callable[[JobModel, float, np.random.Generator], FaultyJob]


def _slow_worker(job: JobModel, strength: float, rng: np.random.Generator) -> FaultyJob:
    first, spells = any_worker(job, rng), _spells(job, rng)
    share = float(rng.uniform(0.7, 1.1))
    faults = [SlowWorker(first, 1 + 0.5 * strength, spells, share)]
    others, few = rng.permutation(job.sizes.workers), job.sizes.workers // 8
    # One in five of these jobs has up to two further slow workers, which are less slow than the
    # first.
    count = int(rng.integers(1, 3)) if rng.random() < 0.2 else 0  # noqa: PLR2004 - few hosts do
    for number in others[: min(count, few)].tolist():
        worker = divmod(number, job.sizes.pp)
        # If most workers of a stage were slow, the stage would be at fault instead of the workers.
        same = [other for other in faults if other.worker[1] == worker[1]]
        if worker != first and len(same) < job.sizes.dp // 4:
            faults.append(SlowWorker(worker, 1 + 0.4 * strength, spells, share))
    return job, tuple(faults)


def _heat(job: JobModel, strength: float, rng: np.random.Generator) -> FaultyJob:
    period = float(rng.uniform(0.4, 1.0)) * job.steps
    hot = ThermalThrottling(
        any_worker(job, rng), 1 + strength, period, float(rng.uniform(0, period))
    )
    return job, (hot,)


def _stage(job: JobModel, strength: float, rng: np.random.Generator) -> FaultyJob:
    backward = float(rng.uniform(0.25, 0.9))
    at = -1 if rng.random() < 0.7 else int(rng.integers(job.sizes.pp))  # noqa: PLR2004 - mostly last
    return job, (StageImbalance(1 + 0.6 * strength, 1 + 0.6 * strength * backward, at),)


def _last_stage(job: JobModel, strength: float, rng: np.random.Generator) -> FaultyJob:
    backward = float(rng.uniform(0.25, 0.9))
    return job, (StageImbalance(1 + 0.6 * strength, 1 + 0.6 * strength * backward),)


def _sequences(job: JobModel, strength: float, rng: np.random.Generator) -> FaultyJob:
    length = int(rng.choice([8_192, 16_384, 32_768, 65_536]))
    spread = float(rng.uniform(1.2, 1.8))
    median = length * float(rng.uniform(0.04, 0.12))
    backward = float(rng.uniform(0.8, 1.3))
    injection = SequenceLengths(
        length, median, spread, quadratic=0.6 * strength, backward_quadratic=backward
    )
    recorded = replace(job.profiler, sequence_lengths=bool(rng.random() < 0.3))  # noqa: PLR2004 - some
    return replace(job, profiler=recorded), (injection,)


def _long_context(job: JobModel, strength: float, rng: np.random.Generator) -> FaultyJob:
    # The share of attention grows with the context, and a longer context holds sequences of more
    # unequal lengths.
    median, spread = float(rng.uniform(800, 2_400)), float(rng.uniform(1.3, 1.8))
    length = int(min(max(float(rng.uniform(12_000, 30_000)) * strength, 4_096), 262_144))
    backward = float(rng.uniform(0.8, 1.3))
    injection = SequenceLengths(
        length, median, spread, quadratic=0.6 * strength, backward_quadratic=backward
    )
    return job, (injection,)


def _garbage(job: JobModel, strength: float, rng: np.random.Generator) -> FaultyJob:
    # The number of pauses in a step hardly depends on the size of the job: at least one on a worker
    # in five steps.
    pauses = max(0.2, float(rng.uniform(0.8, 4)) / job.sizes.workers)
    pauses = min(pauses, 0.2 * job.microbatches * job.sizes.vpp)
    growth = float(rng.choice([0.0, rng.uniform(0.3, 1.5)]))
    pause = 1.2 * strength * job.costs.forward_ns / job.sizes.vpp
    return job, (GarbageCollection(pause, pauses, growth),)


def _collecting(job: JobModel, strength: float, rng: np.random.Generator) -> FaultyJob:
    # Every interpreter collects garbage every few steps, and its heap hardly grows within a
    # session.
    pauses = min(float(rng.uniform(0.25, 0.7)), 0.2 * job.microbatches * job.sizes.vpp)
    pause = 1.2 * strength * job.costs.forward_ns / job.sizes.vpp
    return job, (GarbageCollection(pause, pauses, growth=float(rng.uniform(0, 0.2))),)


def _network(job: JobModel, strength: float, rng: np.random.Generator) -> FaultyJob:
    spells = _spells(job, rng)
    return job, (SlowLink(any_worker(job, rng), 1 + 12 * strength, spells),)


def _traffic(job: JobModel, strength: float, rng: np.random.Generator) -> FaultyJob:
    period = float(rng.uniform(0.4, 0.9)) * job.steps
    busy, offset = float(rng.uniform(0.35, 0.65)), float(rng.uniform(0, period))
    return job, (Congestion(1 + 15 * strength, period, busy, offset),)


def _loading(job: JobModel, strength: float, rng: np.random.Generator) -> FaultyJob:
    del rng
    return job, (SlowDataLoading(2 * strength * job.costs.forward_ns),)


def _saving(job: JobModel, strength: float, rng: np.random.Generator) -> FaultyJob:
    every = int(rng.integers(3, 9))
    stall = every * strength * job.costs.forward_ns
    return job, (Checkpoint(every, stall, offset=int(rng.integers(every))),)


def _standing_still(
    kind: type[Standstill], job: JobModel, strength: float, rng: np.random.Generator
) -> FaultyJob:
    # A standstill takes as long as one or several steps, and occurs at most in every third step.
    every = int(rng.integers(3, max(4, job.steps // 2)))
    step_ns = 3 * job.costs.forward_ns * (job.microbatches + job.sizes.pp - 1)
    offset = 10 + int(rng.integers(1, min(every + 1, job.steps - 1)))
    own = float(rng.choice([0.0, 0.1]))
    usual_ns = job.costs.forward_ns * float(rng.uniform(0, 0.6))
    job = replace(job, consecutive=True, costs=replace(job.costs, step_gap_ns=usual_ns))
    return job, (kind(every, 0.3 * every * strength * step_ns, offset, own=own),)


def _launching(job: JobModel, strength: float, rng: np.random.Generator) -> FaultyJob:
    launch = (1 + strength) * job.costs.forward_ns / job.sizes.vpp
    everywhere = rng.random() < 0.5  # noqa: PLR2004 - half of them
    worker = None if everywhere else any_worker(job, rng)
    return job, (HostOverhead(launch, worker),)


def _kernels(job: JobModel, strength: float, rng: np.random.Generator) -> FaultyJob:
    costs = replace(job.costs, grads_ns=2.5 * strength * job.costs.forward_ns)
    return replace(job, costs=costs), (FalseKernelDependency(int(rng.integers(1, 3))),)


def _fragmentation(job: JobModel, strength: float, rng: np.random.Generator) -> FaultyJob:
    stall = 0.4 * strength * job.costs.forward_ns / job.sizes.vpp
    share, spells = float(rng.uniform(0.4, 0.9)), Spells(share=float(rng.uniform(0.3, 0.8)))
    return job, (MemoryFragmentation(any_worker(job, rng), stall, share, spells),)


def _fragmentation_anywhere(job: JobModel, strength: float, rng: np.random.Generator) -> FaultyJob:
    # Workers with the same pattern of allocations fragment in the same way, so that many workers
    # are affected.
    stall = 0.4 * strength * job.costs.forward_ns / job.sizes.vpp
    count = max(2, job.sizes.workers // 4)
    faults = [
        MemoryFragmentation(divmod(number, job.sizes.pp), stall, 0.5, Spells(share=0.5))
        for number in rng.permutation(job.sizes.workers)[:count].tolist()
    ]
    return job, tuple(faults)


def _tensor_rank(job: JobModel, strength: float, rng: np.random.Generator) -> FaultyJob:
    rank, worker = int(rng.integers(job.sizes.tp)), any_worker(job, rng)
    return job, (TensorParallelStraggler(worker, rank, 1 + 0.6 * strength, _spells(job, rng)),)


def _context_rank(job: JobModel, strength: float, rng: np.random.Generator) -> FaultyJob:
    rank, worker = int(rng.integers(job.sizes.cp)), any_worker(job, rng)
    return job, (ContextParallelStraggler(worker, rank, 1 + 0.6 * strength, _spells(job, rng)),)


def _microbatches(job: JobModel, strength: float, rng: np.random.Generator) -> FaultyJob:
    flat = replace(
        job,
        sizes=replace(job.sizes, pp=1, vpp=1),
        schedule=Schedule.ONE_F_ONE_B,
        op_types=USUAL_OP_TYPES & job.op_types,
        profiler=Profiler(),
        experts_over=1,
        edge_transfers=False,
    )
    lasting = rng.random() < 0.5  # noqa: PLR2004 - half of them
    dp = int(rng.integers(job.sizes.dp)) if lasting else None
    most = 3 * job.microbatches if lasting else job.microbatches - 1
    more = min(max(round(0.5 * strength * job.microbatches), 1), most)
    return flat, (UnevenMicrobatches(more, dp),)


def _experts(job: JobModel, strength: float, rng: np.random.Generator) -> FaultyJob:
    # The experts with the most tokens change with the text, but some experts get more tokens of any
    # text.
    lasting = float(rng.uniform(0, 0.8))
    return job, (UnevenExperts(0.5 * strength, lasting, float(rng.uniform(0.3, 0.6))),)


def _together(job: JobModel, strength: float, rng: np.random.Generator) -> FaultyJob:
    if rng.random() < 0.3:  # noqa: PLR2004 - some grow
        return job, (SlowTogether(growth=0.05 * strength),)
    steps = int(np.ceil(rng.uniform(0.3, 0.6) * job.steps))
    begin = int(rng.integers(0, job.steps - steps + 1))
    return job, (SlowTogether(1 + strength, begin, steps),)


def _rotating(job: JobModel, strength: float, rng: np.random.Generator) -> FaultyJob:
    share = 1.0 if rng.random() < 0.7 else float(rng.uniform(0.6, 0.9))  # noqa: PLR2004 - mostly in each
    return job, (RotatingWorker(1 + 0.5 * strength, Spells(share=share)),)


_CAUSES: Final[Mapping[str, tuple[Needs, Strengthen]]] = {
    "slow_worker": (Needs(dp=2), _slow_worker),
    "thermal_throttling": (Needs(dp=2), _heat),
    "slow_together": (Needs(), _together),
    "rotating": (Needs(dp=3, workers=4), _rotating),
    "stage_imbalance": (Needs(pp=2), _stage),
    "sequence_length_imbalance": (Needs(), _sequences),
    "uneven_microbatches": (Needs(dp=3), _microbatches),
    "garbage_collection": (Needs(workers=6), _garbage),
    "memory_fragmentation": (Needs(dp=2, tensor_ranks=True), _fragmentation),
    "false_kernel_dependency": (Needs(pp=4, interleaved=True), _kernels),
    "network": (Needs(dp=2, pp=2), _network),
    "network_congestion": (Needs(dp=2, pp=2), _traffic),
    "data_loading": (Needs(), _loading),
    "checkpoint": (Needs(), _saving),
    "evaluation": (Needs(), partial(_standing_still, Evaluation)),
    "between_steps": (Needs(), partial(_standing_still, Standstill)),
    "host_overhead": (Needs(), _launching),
    "tensor_parallel_straggler": (Needs(dp=2, tensor_ranks=True), _tensor_rank),
    "context_parallel_straggler": (Needs(dp=2, context_ranks=True), _context_rank),
    "expert_parallel_imbalance": (Needs(dp=2, experts=True), _experts),
}


CAUSES: Final = tuple(_CAUSES)
# Causes that hold up the job between steps; S and the headline do not contain this time.
BETWEEN_STEPS: Final = frozenset({Evaluation.cause, Standstill.cause})


# Further causes, for fleets. A last stage with a loss layer that the division of layers ignored.
LAST_STAGE: Final = "last_stage"


# Sequence lengths that are more unequal the longer the context is.
LONG_CONTEXT: Final = "long_context"


# Garbage collection on each worker every few steps.
COLLECTING: Final = "collecting"


# Memory fragmentation on a quarter of the workers.
FRAGMENTED: Final = "fragmented"


# Recorded waiting between steps for data, and for checkpoints.
LOADER_STALLS: Final = "loader_stalls"
CHECKPOINTS_WRITTEN: Final = "checkpoints_written"


DIALS: Final[Mapping[str, tuple[Needs, Strengthen]]] = {
    **_CAUSES,
    LOADER_STALLS: (Needs(), partial(_standing_still, LoaderStall)),
    CHECKPOINTS_WRITTEN: (Needs(), partial(_standing_still, CheckpointWritten)),
    LAST_STAGE: (Needs(pp=2), _last_stage),
    LONG_CONTEXT: (Needs(), _long_context),
    COLLECTING: (Needs(workers=6), _collecting),
    FRAGMENTED: (Needs(dp=2, tensor_ranks=True), _fragmentation_anywhere),
}


def _spells(job: JobModel, rng: np.random.Generator) -> Spells:
    """Return the steps of a fault: mostly all steps, else from a step on or in spells."""
    kind = rng.random()
    since = int(rng.integers(1, max(2, int(0.6 * job.steps))))
    share = float(rng.uniform(0.3, 0.8))
    if kind < 0.6:  # noqa: PLR2004 - most last
        return Spells()
    return Spells(from_step=since) if kind < 0.8 else Spells(share=share)  # noqa: PLR2004 - half each


def needs_of(causes: Sequence[str]) -> Needs:
    """Return the requirements that all the given causes have on a job together."""
    needs = [DIALS[cause][0] for cause in causes]
    return Needs(
        dp=max((n.dp for n in needs), default=1),
        pp=max((n.pp for n in needs), default=1),
        tensor_ranks=any(n.tensor_ranks for n in needs),
        context_ranks=any(n.context_ranks for n in needs),
        experts=any(n.experts for n in needs),
        interleaved=any(n.interleaved for n in needs),
        workers=max((n.workers for n in needs), default=2),
    )


# Largest number of strengths that are tried to reach a slowdown.
_ROUNDS: Final = 8


class SlowdownOf(Protocol):
    """A measure of the slowdown of a job with injections, such as `true_slowdown`."""

    def __call__(self, job: JobModel, injections: Sequence[Injection], *, seed: int) -> float:
        """Return the slowdown: the faulty job's time divided by the healthy job's."""
        ...


@dataclass(frozen=True, slots=True)
class Goal:
    """The slowdown that a job is to have, the measure of it, and the tolerated relative error."""

    slowdown: float
    slowdown_of: SlowdownOf = true_slowdown
    near: float = 0.03


def draw_session(
    causes: Sequence[str], slowdown: float, seed: int, sizes: Range = USUAL
) -> SyntheticSession:
    """Return a session of a random job with the given causes and about the given true slowdown.

    Causes are `CAUSES`, or one of `LAST_STAGE`, `LONG_CONTEXT`, `COLLECTING`,
    `FRAGMENTED`.
    Several causes get equal strength. Without a cause the job is healthy, whatever the slowdown.
    If no strength reaches the slowdown, the nearest one is taken.
    """
    job = draw_job(stream(seed, "population"), needs_of(causes), sizes)
    return afflict(job, causes, goal_of(causes, slowdown), seed)


def goal_of(causes: Sequence[str], slowdown: float) -> Goal:
    """Return the goal for causes, measured with the time between steps if a cause lengthens it."""
    between = {*BETWEEN_STEPS, LOADER_STALLS, CHECKPOINTS_WRITTEN}
    return Goal(slowdown, true_turn_slowdown if between & set(causes) else true_slowdown)


def afflict(job: JobModel, causes: Sequence[str], goal: Goal, seed: int) -> SyntheticSession:
    """Return a session of the job with the causes, whose strength is adjusted to the goal."""
    if not causes:
        return synthesize(job, seed=seed)

    def with_strength(strength: float) -> FaultyJob:
        faulty: FaultyJob = (job, ())
        for cause in causes:
            changed, added = DIALS[cause][1](faulty[0], strength, stream(seed, "dials", cause))
            faulty = (changed, (*faulty[1], *added))
        return faulty

    return synthesize(*_seek(with_strength, goal, seed), seed=seed)


def _seek(with_strength: Callable[[float], FaultyJob], goal: Goal, seed: int) -> FaultyJob:
    """Return the faulty job nearest to the goal, by bisection on the strength."""
    slowdown = goal.slowdown
    low, high, strength = 0.0, np.inf, 1.0
    best: tuple[float, FaultyJob] | None = None
    for _ in range(_ROUNDS):
        faulty = with_strength(strength)
        reached = goal.slowdown_of(*faulty, seed=seed)
        off = abs(reached - slowdown)
        if best is None or off < best[0]:
            best = (off, faulty)
        if off <= goal.near * slowdown and reached >= min(slowdown, 1.1):
            break
        low, high = (strength, high) if reached < slowdown else (low, strength)
        grown = (slowdown - 1) / max(reached - 1, 1e-3)
        guess = strength * min(max(grown, 0.2), 5.0)
        strength = guess if low < guess < high else (low + min(high, 4 * low + 1)) / 2
    assert best is not None  # noqa: S101 - there is at least one round
    return best[1]
