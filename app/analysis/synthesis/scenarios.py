"""Named synthetic jobs with known faults, small enough for a demonstration."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from app.analysis.synthesis.host_sessions import HOST_SCENARIOS, HostScenario
from app.analysis.synthesis.injections.base import Injection, Spells, Worker, any_worker
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
    Congestion,
    Evaluation,
    FalseKernelDependency,
    HostOverhead,
    SlowDataLoading,
    SlowLink,
    Standstill,
)
from app.analysis.synthesis.job import (
    MS,
    USUAL_OP_TYPES,
    CostModel,
    JobModel,
    Profiler,
    Schedule,
    stream,
)
from app.analysis.synthesis.synthesize import SyntheticSession, synthesize
from app.analysis.trace.model import SEPARATE_ALL_REDUCE, Sizes

Draw = Callable[[JobModel, np.random.Generator], "tuple[Injection, ...]"]


@dataclass(frozen=True, slots=True)
class Scenario:
    """A synthetic job and its faults."""

    name: str  # as in ``paceline synth NAME``
    summary: str  # one sentence for a person
    job: JobModel
    draw: Draw  # returns the injections; workers at fault are drawn from the generator

    def synthesize(self, seed: int, fault_seed: int | None = None) -> SyntheticSession:
        """Return a session of the scenario; equal seeds give equal sessions.

        Parameters
        ----------
        fault_seed : int, optional
            Seed of the workers at fault, which all sessions of one job share; by default `seed`.
        """
        injections = self.faults(seed if fault_seed is None else fault_seed)
        return synthesize(self.job, injections, seed=seed)

    def faults(self, seed: int) -> tuple[Injection, ...]:
        """Return the faults of the scenario; equal seeds choose the same workers."""
        return self.draw(self.job, stream(seed, "scenario", self.name))


def _inner_worker(job: JobModel, rng: np.random.Generator) -> Worker:
    """Return a random worker on another stage than the last, whose load could explain slowness."""
    return int(rng.integers(job.sizes.dp)), int(rng.integers(job.sizes.pp - 1))


_SCENARIOS: Final = (
    Scenario(
        name="healthy",
        summary="A balanced job on good hardware.",
        job=JobModel(
            sizes=Sizes(dp=8, pp=4, tp=8),
            microbatches=8,
            steps=20,
            costs=CostModel(forward_ns=62 * MS, backward_ns=131 * MS),
            name="dense-70b",
        ),
        draw=lambda _job, _rng: (),
    ),
    Scenario(
        name="slow-worker",
        summary="One worker computes 1.7 times as slowly as its peers.",
        job=JobModel(
            sizes=Sizes(dp=8, pp=8, tp=8),
            microbatches=12,
            steps=12,
            costs=CostModel(forward_ns=48 * MS, backward_ns=97 * MS),
            layers=(12,) * 8,
            name="dense-180b",
        ),
        draw=lambda job, rng: (SlowWorker(_inner_worker(job, rng), factor=1.7),),
    ),
    Scenario(
        name="hot-device",
        summary="One worker grows hot and 1.9 times as slow, and recovers, again and again.",
        job=JobModel(
            sizes=Sizes(dp=8, pp=4, tp=8),
            microbatches=8,
            steps=24,
            costs=CostModel(forward_ns=57 * MS, backward_ns=119 * MS),
            layers=(20,) * 4,
            name="dense-72b",
        ),
        draw=lambda job, rng: (
            ThermalThrottling(_inner_worker(job, rng), 1.9, 12, float(rng.uniform(0, 12))),
        ),
    ),
    Scenario(
        name="uneven-microbatches",
        summary="One DP rank runs 9 microbatches a step, the others 6.",
        job=JobModel(
            sizes=Sizes(dp=8, pp=1),
            microbatches=6,
            steps=24,
            costs=CostModel(forward_ns=58 * MS, backward_ns=118 * MS),
            name="dense-9b",
        ),
        draw=lambda job, rng: (UnevenMicrobatches(3, int(rng.integers(job.sizes.dp))),),
    ),
    Scenario(
        name="slow-together",
        summary="All workers compute 1.8 times as slowly in eleven steps.",
        job=JobModel(
            sizes=Sizes(dp=8, pp=2, tp=2),
            microbatches=8,
            steps=32,
            costs=CostModel(forward_ns=50 * MS, backward_ns=104 * MS),
            layers=(16,) * 2,
            name="dense-14b",
        ),
        draw=lambda _job, rng: (SlowTogether(1.8, int(rng.integers(6, 16)), 11),),
    ),
    Scenario(
        name="rotating",
        summary="In each step another worker computes 1.4 times as slowly.",
        job=JobModel(
            sizes=Sizes(dp=8, pp=2, tp=2),
            microbatches=8,
            steps=32,
            costs=CostModel(forward_ns=46 * MS, backward_ns=96 * MS),
            layers=(16,) * 2,
            name="dense-12b",
        ),
        draw=lambda _job, _rng: (RotatingWorker(1.4),),
    ),
    Scenario(
        name="stage-imbalance",
        summary="The last stage has as many layers as the others and the loss layer as well.",
        job=JobModel(
            sizes=Sizes(dp=6, pp=4, tp=4),
            microbatches=16,
            steps=16,
            costs=CostModel(forward_ns=55 * MS, backward_ns=118 * MS),
            layers=(15,) * 4,
            name="dense-34b",
        ),
        draw=lambda _job, _rng: (StageImbalance(),),
    ),
    Scenario(
        name="sequence-lengths",
        summary="Microbatches of 32k tokens packed from very different sequences.",
        job=JobModel(
            sizes=Sizes(dp=8, pp=4, tp=4, cp=2),
            microbatches=8,
            steps=24,
            costs=CostModel(forward_ns=140 * MS, backward_ns=290 * MS),
            profiler=Profiler(sequence_lengths=True),
            name="long-context-32k",
        ),
        draw=lambda _job, _rng: (SequenceLengths(),),
    ),
    Scenario(
        name="garbage-collection",
        summary="The Python interpreter stops for a quarter of a second on random workers.",
        job=JobModel(
            sizes=Sizes(dp=16, pp=4, tp=4),
            microbatches=8,
            steps=18,
            costs=CostModel(forward_ns=70 * MS, backward_ns=148 * MS),
            name="moe-8x22b",
        ),
        draw=lambda _job, _rng: (GarbageCollection(250 * MS, pauses=0.12, growth=0.6),),
    ),
    Scenario(
        name="network",
        summary="One worker's network link runs at an eighth of its speed.",
        job=JobModel(
            sizes=Sizes(dp=8, pp=4, tp=8),
            microbatches=12,
            steps=16,
            costs=CostModel(forward_ns=45 * MS, backward_ns=92 * MS, p2p_ns=2.5 * MS),
            name="dense-13b",
        ),
        draw=lambda job, rng: (SlowLink(any_worker(job, rng), factor=8.0),),
    ),
    Scenario(
        name="congestion",
        summary="By the hour, other jobs use the network, too: all transfers take up to ten times "
        "as long.",
        job=JobModel(
            sizes=Sizes(dp=6, pp=4, tp=8),
            microbatches=12,
            steps=20,
            costs=CostModel(forward_ns=40 * MS, backward_ns=83 * MS, p2p_ns=2.5 * MS),
            name="dense-11b",
        ),
        draw=lambda _job, rng: (Congestion(10.0, 9, offset=float(rng.uniform(0, 9))),),
    ),
    Scenario(
        name="data-loading",
        summary="Each step waits a third of a second for its batch.",
        job=JobModel(
            sizes=Sizes(dp=16, pp=2, tp=8),
            microbatches=8,
            steps=20,
            costs=CostModel(forward_ns=66 * MS, backward_ns=137 * MS),
            name="multimodal-7b",
        ),
        draw=lambda _job, _rng: (SlowDataLoading(330 * MS),),
    ),
    Scenario(
        name="checkpoints",
        summary="Every third step all stages first write the weights out, for three seconds.",
        job=JobModel(
            sizes=Sizes(dp=8, pp=4, tp=8),
            microbatches=12,
            steps=20,
            costs=CostModel(forward_ns=52 * MS, backward_ns=109 * MS),
            name="dense-65b",
        ),
        draw=lambda _job, rng: (Checkpoint(3, 3000 * MS, offset=int(rng.integers(3))),),
    ),
    Scenario(
        name="standstills",
        summary="Before two of forty steps nothing happens for five seconds, on all workers.",
        job=JobModel(
            sizes=Sizes(dp=8, pp=1, tp=4),
            microbatches=8,
            steps=40,
            consecutive=True,
            costs=CostModel(forward_ns=38 * MS, backward_ns=79 * MS, step_gap_ns=20 * MS),
            name="dense-3b",
        ),
        draw=lambda _job, rng: (Standstill(17, 5000 * MS, 12 + int(rng.integers(15))),),
    ),
    Scenario(
        name="evaluations",
        summary="Every eighth step the job first evaluates, for six seconds.",
        job=JobModel(
            sizes=Sizes(dp=4, pp=2, tp=4),
            microbatches=8,
            steps=32,
            consecutive=True,
            costs=CostModel(forward_ns=47 * MS, backward_ns=98 * MS, step_gap_ns=15 * MS),
            name="dense-6b",
        ),
        draw=lambda _job, rng: (Evaluation(8, 6000 * MS, 12 + int(rng.integers(6))),),
    ),
    Scenario(
        name="slow-launching",
        summary="A host with two workers takes twice as long to launch forwards as they run.",
        job=JobModel(
            sizes=Sizes(dp=8, pp=4, tp=4),
            microbatches=10,
            steps=16,
            costs=CostModel(forward_ns=21 * MS, backward_ns=43 * MS),
            name="dense-8b",
        ),
        draw=lambda job, rng: (HostOverhead(46 * MS, any_worker(job, rng)),),
    ),
    Scenario(
        name="tensor-parallel",
        summary="One GPU of a tensor-parallel group is slow; the ranks' collectives show which.",
        job=JobModel(
            sizes=Sizes(dp=4, pp=4, tp=4),
            microbatches=6,
            steps=14,
            costs=CostModel(forward_ns=58 * MS, backward_ns=121 * MS),
            profiler=Profiler(tensor_ranks=True),
            name="dense-52b",
        ),
        draw=lambda job, rng: (
            TensorParallelStraggler(
                any_worker(job, rng), int(rng.integers(job.sizes.tp)), factor=1.7
            ),
        ),
    ),
    Scenario(
        name="context-parallel",
        summary="One GPU of a context-parallel group is slow; the ranks' collectives show which.",
        job=JobModel(
            sizes=Sizes(dp=3, pp=4, cp=4),
            microbatches=8,
            steps=14,
            costs=CostModel(forward_ns=95 * MS, backward_ns=201 * MS),
            profiler=Profiler(context_ranks=True),
            name="long-context-128k",
        ),
        draw=lambda job, rng: (
            ContextParallelStraggler(
                any_worker(job, rng), int(rng.integers(job.sizes.cp)), factor=1.7
            ),
        ),
    ),
    Scenario(
        name="experts",
        summary="Some experts are sent far more tokens than others, and their group waits.",
        job=JobModel(
            sizes=Sizes(dp=8, pp=4),
            microbatches=8,
            steps=16,
            experts_over=4,
            costs=CostModel(forward_ns=48 * MS, backward_ns=99 * MS),
            name="moe-16x4b",
        ),
        draw=lambda _job, _rng: (UnevenExperts(0.8, lasting=0.6),),
    ),
    Scenario(
        name="memory-fragmentation",
        summary="The allocator of one worker's GPUs keeps returning memory, by spells.",
        job=JobModel(
            sizes=Sizes(dp=6, pp=2, tp=4),
            microbatches=8,
            steps=14,
            costs=CostModel(forward_ns=52 * MS, backward_ns=107 * MS),
            profiler=Profiler(tensor_ranks=True),
            name="moe-8x7b",
        ),
        draw=lambda job, rng: (
            MemoryFragmentation(any_worker(job, rng), 60 * MS, share=0.7, spells=Spells(share=0.6)),
        ),
    ),
    Scenario(
        name="kernel-dependency",
        summary="Kernels wait for reduce-scatters that they do not need.",
        job=JobModel(
            sizes=Sizes(dp=6, pp=4, tp=4, vpp=2),
            microbatches=8,
            steps=14,
            schedule=Schedule.INTERLEAVED,
            op_types=USUAL_OP_TYPES | {SEPARATE_ALL_REDUCE},
            costs=CostModel(forward_ns=44 * MS, backward_ns=92 * MS, grads_ns=520 * MS),
            name="moe-64x3b",
        ),
        draw=lambda _job, _rng: (FalseKernelDependency(blocked=2),),
    ),
    Scenario(
        name="virtual-stages",
        summary="A slow worker in a job with two model chunks on each stage.",
        job=JobModel(
            sizes=Sizes(dp=4, pp=4, tp=8, vpp=2),
            microbatches=16,
            steps=16,
            schedule=Schedule.INTERLEAVED,
            costs=CostModel(forward_ns=80 * MS, backward_ns=165 * MS),
            name="dense-110b",
        ),
        draw=lambda job, rng: (SlowWorker(_inner_worker(job, rng), factor=1.5),),
    ),
    Scenario(
        name="mixture",
        summary="A heavy last stage, and sequences of very different lengths on top of it.",
        job=JobModel(
            sizes=Sizes(dp=8, pp=4, tp=8),
            microbatches=12,
            steps=18,
            costs=CostModel(forward_ns=90 * MS, backward_ns=185 * MS),
            name="long-context-16k",
        ),
        draw=lambda _job, _rng: (
            StageImbalance(forward_factor=1.7, backward_factor=1.3),
            SequenceLengths(max_length=16_384, spread=1.4, quadratic=0.6),
        ),
    ),
)

_RECORDINGS: Final = (
    Scenario(
        name="skewed-clocks",
        summary="A slow worker on hosts whose clocks are 20 ms apart and drift.",
        job=JobModel(
            sizes=Sizes(dp=8, pp=4, tp=4),
            microbatches=8,
            steps=24,
            costs=CostModel(forward_ns=60 * MS, backward_ns=125 * MS),
            profiler=Profiler(clock_skew_ns=20 * MS, clock_drift_ppm=50.0),
            name="dense-30b",
        ),
        draw=lambda job, rng: (SlowWorker(_inner_worker(job, rng), factor=1.6),),
    ),
    Scenario(
        name="lossy-recorder",
        summary="A heavy last stage; the recorder loses one operation in a hundred.",
        job=JobModel(
            sizes=Sizes(dp=4, pp=4, tp=4),
            microbatches=12,
            steps=20,
            costs=CostModel(forward_ns=55 * MS, backward_ns=118 * MS),
            profiler=Profiler(lost_share=0.01),
            name="dense-20b",
        ),
        draw=lambda _job, _rng: (StageImbalance(),),
    ),
    Scenario(
        name="warm-up-and-evaluation",
        summary="A slow worker; the batch size grows at first, and evaluations come in between.",
        job=JobModel(
            sizes=Sizes(dp=6, pp=4, tp=4),
            microbatches=8,
            steps=18,
            warm_up_steps=3,
            evaluation_steps=2,
            costs=CostModel(forward_ns=58 * MS, backward_ns=120 * MS),
            name="dense-40b",
        ),
        draw=lambda job, rng: (SlowWorker(_inner_worker(job, rng), factor=1.6),),
    ),
)

# Scenarios with causes of slow jobs, all of which the demonstration shows.
SCENARIOS: Final[Mapping[str, Scenario]] = {scenario.name: scenario for scenario in _SCENARIOS}
# Scenarios with recordings that are hard to read.
RECORDINGS: Final[Mapping[str, Scenario]] = {scenario.name: scenario for scenario in _RECORDINGS}
ALL_SCENARIOS: Final[Mapping[str, Scenario | HostScenario]] = {
    **SCENARIOS,
    **RECORDINGS,
    **HOST_SCENARIOS,
}
