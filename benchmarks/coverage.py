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

_TEXT: Final = """\
## The interval of the headline

The interval is about the whole job, of which a session records some steps. Its width has four
sources.

**How often slow phases occur.** They last several steps, so the bootstrap draws blocks of steps and
not single steps: five blocks, widened by Student's *t* for five and by a tenth for phases that
continue in the next block; less where blocks vary less than single steps. Where slow phases and
the time between them are about equally long, blocks of a whole cycle are drawn. A cause that recurs
at a fixed interval of steps, such as checkpoints, has the share that it has in a whole cycle. Heat
comes in cycles, too: where all steps are consecutive and contain at least two cycles, blocks of a
cycle are drawn; for cycles that are all alike, the width is at least a tenth of that of
single steps.

**What the job would take without the cause.** The durations of a healthy worker in place of the
slow one follow from its peers: the width depends on their number and on how much they differ in
this trace. It is weighted with the share of DP ranks at fault, because a step follows the slowest
DP rank. Special cases:

- Ranks that delay their group: without the cause, the group waits as healthy groups do, ± half of
  that, and less than ± half for several groups. If no group is healthy, the wait is 0.3 % and can
  be longer by up to twice its uncertainty.
- Ranks of evenly divided sequences wait for the differences between one collective and the next.
  Ranks whose experts receive the same number of tokens wait for the differences of the
  computation before the experts, weighted with the experts' share of it.
- Hosts that wait for each transfer before they launch the dependent operation do so when
  healthy, too. Where other hosts of the job show how long this takes, all replays of the diagnosis
  include it. Where all hosts are slow, 4 % of the computation is assumed, and the interval covers
  1 % to 10 %.
- Two context-parallel ranks do not show whether one is slow or has more work: the interval
  then extends down to the slowdown of an even division.
- Constants where a trace contains no information: 0.4 % for stages that differ although they are
  evenly divided; 1.5 % for the launch time of healthy hosts, half of that for a single host that
  launches after transfers as the others do when it is healthy; 0.7 % for computations that are no
  longer delayed.

**Late launches without a known cause.** They make the recorded steps longer than the replayed ones.
They remain in the job without its causes, which lowers the slowdown. Causes that keep workers
waiting also hide late launches, in proportion to the share of these workers: for a slow worker the
workers of other DP ranks or, if these are more, of other stages; for uneven experts half of that,
because before the experts the group waits with and without the cause. The interval extends further
down for such launches, not up; only where hosts wait for transfers it does both, because
the causes may have delayed these launches.

**The model.** 0.06 % for transfers, which vary, and 0.03 % for the rest.

All parts add up as variances do, except the launches that remain. No job takes longer without
what makes it slow, so no interval extends below 1.

The table has {jobs} jobs of {steps} steps for each kind of fault, with {sessions} sessions of
{session_steps} steps from each job. The error of a job is nearly the same in all of its sessions,
so a share is accurate to one or two percentage points. *Holds* is the share of intervals that
contain the slowdown of all {steps} steps; *below* and *above* are the shares for which that
slowdown is below or above the interval. Sessions of fewer than 20 analyzed steps have no interval,
and the report says why. Sessions with heat have no gaps between their steps, because the
synthesizer's heat follows the recorded steps. With gaps, any number of heat cycles may lie between
the steps; heat is then treated as other slow phases, with an interval that is too wide (25 %) and
nearly always contains the truth. A fault that begins at some step or that grows has no slowdown of
the job to compare with. Seeds from {seed} on.

| fault | sessions | with causes | holds | below | above | width, median |
| --- | ---: | ---: | ---: | ---: | ---: | ---: |
"""

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
    yield from _TEXT.format(
        jobs=JOBS, steps=_STEPS, sessions=_SESSIONS, session_steps=SESSION_STEPS, seed=first_seed
    ).splitlines()
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
