"""How often the interval of the headline holds the slowdown of the job, kind of fault by kind.

A job runs for hundreds of steps; a session records a few of them. What the interval is about is the
job, not these steps: sessions are cut out of long jobs, and their intervals are held against the
slowdown of all of the job's steps.
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
    FalseKernelDependency,
    SlowDataLoading,
    SlowLink,
)
from app.analysis.synthesis.job import USUAL_OP_TYPES, JobModel, Profiler, Schedule
from app.analysis.synthesis.random_jobs import draw_costs
from app.analysis.synthesis.randomness import stream
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
    # What it does follows the recorded steps, which are neighbors, then, and have such numbers.
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
    """Sessions of a kind of fault.

    Parameters
    ----------
    kind : str
    sessions : int
    named : int
        How many have an interval of the slowdown against the job without its causes.
    below, above : int
        In how many of these the job's slowdown is less, or more, than it says.
    width : float
        Its median width ÷ the slowdown.
    """

    kind: str
    sessions: int
    named: int
    below: int
    above: int
    width: float

    @property
    def share(self) -> float:
        """Return the share of intervals that hold the truth."""
        return 1 - (self.below + self.above) / self.named if self.named else float("nan")


def cover(name: str, first_seed: int, jobs: int = JOBS, steps: int = SESSION_STEPS) -> Covered:
    """Hold the intervals of a kind's sessions against their jobs."""
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
        "## The interval of the headline",
        "",
        "It is about the job, of which a session records some steps, and it grows with what",
        "these steps do not tell:",
        "",
        "- How often spells come. They last several steps, so blocks of steps are drawn, and",
        "  not single ones: five blocks, widened as Student's t says of five, and by a tenth for",
        "  spells that go on from one to the next; less where blocks scatter less than single",
        "  steps. Where runs of slow steps and of others are all much alike blocks of a whole",
        "  cycle are drawn, and what comes at a fixed interval of steps, as checkpoints do, has a",
        "  cycle's share of the job. Heat comes in cycles, too: where all steps follow one another",
        "  and two or more are seen, blocks of a cycle are drawn; cycles that are all alike are",
        "  granted a tenth of what single steps give.",
        "- What a healthy worker in the place of the slow one would take: by how much its peers",
        "  differ in this trace, and how many there are. A step follows the slowest DP rank, so",
        "  it counts by the share of DP ranks that are at fault. Ranks that keep their group",
        "  waiting do so as those of healthy groups without the cause, give or take half of that,",
        "  and less of several groups; where there is no healthy one, 0.3 % and up to twice as",
        "  much more. Ranks of evenly divided sequences wait for what they differ by from one",
        "  collective to the next, ranks whose experts are sent as much for what they differ by",
        "  while they compute before the experts, times what the experts take of that. Where a",
        "  trace cannot tell it is a constant: 0.4 % for stages that differ although evenly",
        "  divided, 1.5 % for what healthy hosts take to launch, half of that for a single host",
        "  that launches after transfers as the others do when it is healthy, 0.7 % for",
        "  computations that are no longer held up. Hosts that wait for each transfer",
        "  before they launch what needs it do so when healthy, too: where others of the job tell",
        "  what that takes all replays of the diagnosis have it; where all are slow it is 4 % of",
        "  the computation, and the interval reaches from 1 % to 10 %. Two context-parallel ranks",
        "  do not tell a slow one from one with more to do: there it reaches down to the slowdown",
        "  of an even division.",
        "- Launches that are late for no known cause: they make the recorded steps longer than",
        "  the replayed ones. They stay without the causes, by which the slowdown would be",
        "  less, and causes that keep workers waiting hide others, as many as these workers'",
        "  share: a slow worker those of other DP ranks or, where these are more, other stages;",
        "  uneven experts half of that: before the experts the group waits with them and without",
        "  them. The interval reaches further down for such launches, not up; only where hosts",
        "  wait for transfers they may be late for the causes, and it does both.",
        "- 0.06 % for transfers, which vary, and 0.03 % for the rest. All but the launches that",
        "  stay adds up as variances do. Without what makes it slow no job takes longer: no",
        "  interval reaches below 1.",
        "",
        f"{JOBS} jobs of {_STEPS} steps of each kind, {_SESSIONS} sessions of {SESSION_STEPS}",
        "steps out of each: a job's error is much the same in all of its sessions, so that a",
        "share is sure to one or two points. *Holds* is",
        f"how often the interval holds the slowdown of all {_STEPS} steps, *below* and *above*",
        "how often that lies beyond it. Sessions of fewer than 20 analyzed steps have no",
        "interval, with the reason. Heat's sessions have no gap: the synthesizer's heat follows",
        "the recorded steps. Where steps come in stretches heat may have come any number of",
        "times in between; there it is drawn like spells, which is too wide (25 %), and holds",
        "nearly always. A fault that is there from some step on, or that grows, has no slowdown",
        "of the job to be held against.",
        f"Seeds from {first_seed} on.",
        "",
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
