"""How often the interval of the headline contains the slowdown of the job, by kind of fault.

A job runs for hundreds of steps, of which a session records a few. The interval is about the job
and not these steps: sessions are cut from long jobs, and their intervals are compared with the
slowdown of all steps of the job.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from app.analysis.report.build import analyze
from app.analysis.synthesis.injections.base import Injection, Spells
from app.analysis.synthesis.injections.computations import (
    ContextParallelStraggler,
    GarbageCollection,
    MemoryFragmentation,
    SequenceLengths,
    SlowWorker,
    StageImbalance,
    TensorParallelStraggler,
    ThermalThrottling,
    UnevenExperts,
)
from app.analysis.synthesis.injections.delays import (
    Checkpoint,
    FalseKernelDependency,
    HostOverhead,
    SlowDataLoading,
    SlowLink,
)
from app.analysis.synthesis.job import (
    USUAL_OP_TYPES,
    JobModel,
    Profiler,
    Schedule,
    draw_costs,
    stream,
)
from app.analysis.synthesis.synthesize import SyntheticSession, synthesize
from app.analysis.trace.model import SEPARATE_ALL_REDUCE, Sizes, Trace
from benchmarks.held_against import slowdown_of

# Steps of a job and of a session; sessions that are cut out of each job, and jobs of each kind.
_STEPS: Final = 360
SESSION_STEPS: Final = 24
_SESSIONS: Final = 2
JOBS: Final = 150
FIRST_SEED: Final = 10_000_000

Inject = Callable[[JobModel, np.random.Generator], Injection]


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of fault, and what its jobs need."""

    inject: Inject
    tensor: bool = False
    overlapped: bool = False
    context: bool = False
    experts: bool = False
    # The fault follows the recorded steps, so sessions have consecutive step numbers.
    cycles: bool = False


def _spells(rng: np.random.Generator) -> Spells:
    """Return spells of several steps in a third to two thirds of them."""
    return Spells(share=float(rng.uniform(0.35, 0.65)), length=float(rng.uniform(3, 5)))


def _forwards_ns(job: JobModel, rng: np.random.Generator, low: float, high: float) -> float:
    return job.costs.forward_ns / job.sizes.vpp * float(rng.uniform(low, high))


KINDS: Final[Mapping[str, Kind]] = {
    "slow worker": Kind(lambda _job, rng: SlowWorker((1, 1), rng.uniform(1.4, 2.5))),
    "slow worker by spells": Kind(
        lambda _job, rng: SlowWorker((1, 1), rng.uniform(1.6, 3), _spells(rng))
    ),
    "thermal throttling": Kind(
        lambda _job, rng: ThermalThrottling((1, 1), rng.uniform(1.6, 2.5), rng.uniform(8, 14)),
        cycles=True,
    ),
    "stage imbalance": Kind(lambda _job, rng: StageImbalance(*rng.uniform(1.3, 2, 2))),
    "sequence lengths": Kind(lambda _job, rng: SequenceLengths(spread=rng.uniform(1.2, 1.8))),
    "garbage collection": Kind(
        lambda job, rng: GarbageCollection(_forwards_ns(job, rng, 1, 3), rng.uniform(0.2, 0.6))
    ),
    "memory fragmentation": Kind(
        lambda job, rng: MemoryFragmentation(
            (1, 1), _forwards_ns(job, rng, 0.5, 1.5), spells=_spells(rng)
        ),
        tensor=True,
    ),
    "false kernel dependency": Kind(lambda _job, _rng: FalseKernelDependency(1), overlapped=True),
    "network": Kind(lambda _job, rng: SlowLink((1, 1), rng.uniform(15, 40))),
    "network by spells": Kind(
        lambda _job, rng: SlowLink((1, 1), rng.uniform(20, 50), _spells(rng))
    ),
    "data loading": Kind(lambda job, rng: SlowDataLoading(_forwards_ns(job, rng, 2, 5))),
    "checkpoint": Kind(
        lambda job, rng: Checkpoint(int(rng.integers(3, 8)), _forwards_ns(job, rng, 6, 15))
    ),
    "host overhead": Kind(lambda job, rng: HostOverhead(_forwards_ns(job, rng, 2.5, 4))),
    "tensor-parallel straggler": Kind(
        lambda _job, rng: TensorParallelStraggler((1, 1), 1, rng.uniform(1.4, 2)), tensor=True
    ),
    "tensor-parallel by spells": Kind(
        lambda _job, rng: TensorParallelStraggler((1, 1), 1, rng.uniform(1.5, 2.5), _spells(rng)),
        tensor=True,
    ),
    "context-parallel straggler": Kind(
        lambda _job, rng: ContextParallelStraggler((1, 1), 1, rng.uniform(1.4, 2)), context=True
    ),
    "context-parallel by spells": Kind(
        lambda _job, rng: ContextParallelStraggler((1, 1), 1, rng.uniform(1.5, 2.5), _spells(rng)),
        context=True,
    ),
    "favorite experts": Kind(
        lambda _job, rng: UnevenExperts(rng.uniform(0.4, 0.8), lasting=1.0), experts=True
    ),
    "experts by text": Kind(
        lambda _job, rng: UnevenExperts(rng.uniform(0.4, 0.8), lasting=0.0), experts=True
    ),
}


@dataclass(frozen=True, slots=True)
class Covered:
    """Sessions of a kind of fault."""

    kind: str
    sessions: int
    named: int  # with an interval of the slowdown relative to the job without its causes
    below: int  # of these, how often the job's slowdown is below the interval
    above: int
    width: float  # median width ÷ the slowdown

    @property
    def share(self) -> float:
        """Return the share of intervals that contain the true slowdown."""
        return 1 - (self.below + self.above) / self.named if self.named else float("nan")


def cover(name: str, first_seed: int, jobs: int = JOBS, steps: int = SESSION_STEPS) -> Covered:
    """Compare the intervals of a kind's sessions with the slowdowns of their jobs."""
    below, above, widths, count = 0, 0, [], 0
    for seed in range(first_seed, first_seed + jobs):
        session = _long_job(KINDS[name], seed)
        truth = slowdown_of(session)
        starts = np.linspace(0, _STEPS - steps, _SESSIONS).astype(int)
        for start in starts.tolist():
            count += 1
            trace = _cut(session, start, steps)
            if KINDS[name].cycles:
                numbers = np.unique(trace.step)
                trace = replace(trace, step=np.searchsorted(numbers, trace.step))
            shown = analyze(trace).report.headline
            if shown.kind == "causes" and shown.ci95 is not None:
                low, high = shown.ci95
                below += truth < low
                above += truth > high
                widths.append((high - low) / shown.slowdown)
    width = float(np.median(widths)) if widths else float("nan")
    return Covered(name, count, len(widths), below, above, width)


def _long_job(kind: Kind, seed: int) -> SyntheticSession:
    rng = stream(seed, "coverage")
    vpp = 2 if kind.overlapped else 1
    costs = draw_costs(rng)
    if kind.overlapped:
        costs = replace(costs, grads_ns=costs.forward_ns * float(rng.uniform(6, 12)))
    job = JobModel(
        sizes=Sizes(
            dp=4 if kind.experts else int(rng.integers(3, 6)),
            pp=2 * vpp,
            tp=4 if kind.tensor else 1,
            cp=4 if kind.context else 1,
            vpp=vpp,
        ),
        microbatches=4 * vpp,
        steps=_STEPS,
        schedule=Schedule.INTERLEAVED if kind.overlapped else Schedule.ONE_F_ONE_B,
        costs=costs,
        op_types=USUAL_OP_TYPES | ({SEPARATE_ALL_REDUCE} if kind.overlapped else set()),
        profiler=Profiler(tensor_ranks=kind.tensor, context_ranks=kind.context),
        experts_over=2 if kind.experts else 1,
    )
    return synthesize(job, (kind.inject(job, rng),), seed=seed)


def _cut(session: SyntheticSession, start: int, steps: int) -> Trace:
    """Return some neighboring steps of a job as a session of its own."""
    trace = session.trace
    mine = np.isin(trace.step, session.truth.steps[start : start + steps])
    columns = ("rank", "dp", "pp", "step", "op", "mb", "mc", "order", "start_ns", "duration_ns")
    return replace(trace, **{name: getattr(trace, name)[mine] for name in columns})


def section(first_seed: int = FIRST_SEED) -> Iterator[str]:
    """Yield the table for docs/fidelity.md."""
    yield from (
        "| fault | sessions | with causes | holds | below | above | width, median |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    )
    # no two kinds have the same jobs
    wanted = [(name, first_seed + number * JOBS) for number, name in enumerate(KINDS)]
    with multiprocessing.get_context("spawn").Pool(os.cpu_count()) as pool:
        covered = pool.starmap(cover, wanted, chunksize=1)
    for one in covered:
        shares = (one.share, one.below / max(one.named, 1), one.above / max(one.named, 1))
        figures = [f"{100 * share:.1f} %" for share in (*shares, one.width)]
        shown = " | ".join(figures if one.named else ["–"] * len(figures))
        yield f"| {one.kind} | {one.sessions} | {one.named} | {shown} |"
    yield ""
