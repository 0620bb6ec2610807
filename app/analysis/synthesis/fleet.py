"""A random fleet with the statistics of the what-if paper (sections 3.1, 4 and 5).

42.5 % of the jobs straggle (S ≥ 1.1): workers cause 1.7 % of these, the last stage 39.3 %, sequence
lengths 21.4 %. Mean slowdown 1.28; workers 3.04, sequence lengths 1.34. GPUs: 31.7 % of the jobs
have at least 256, 18.3 % 512, 3.6 % 5,000, none under 128; 21.1 % have no pipeline. The paper gives
no shares for the other causes, and the other jobs are not all healthy: the same causes slow them by
less than 1.1. Causes, S and sizes are drawn; docs/fleet.md compares the executed jobs with the
paper.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from app.analysis.quantities import FloatArray
from app.analysis.replay.metrics import STRAGGLING
from app.analysis.synthesis.costs import COMPUTATION, healthy_work
from app.analysis.synthesis.execution import StepWork, execute
from app.analysis.synthesis.injections.base import Injection
from app.analysis.synthesis.job import (
    USUAL_OP_TYPES,
    JobModel,
    Needs,
    Profiler,
    Schedule,
    draw_costs,
    stream,
)
from app.analysis.synthesis.program import build_program
from app.analysis.synthesis.random_sessions import (
    COLLECTING,
    FRAGMENTED,
    LAST_STAGE,
    LONG_CONTEXT,
    Goal,
    afflict,
    needs_of,
)
from app.analysis.synthesis.synthesize import SyntheticSession, inject, step_numbers, true_slowdown
from app.analysis.trace.model import GC, SEPARATE_ALL_REDUCE, Sizes


@dataclass(frozen=True, slots=True)
class Scale:
    """A share of the jobs, and the numbers of GPUs that these jobs have."""

    share: float
    gpus: tuple[int, ...]


SCALES: Final = (
    Scale(0.683, (128, 128, 128, 160, 192)),
    Scale(0.134, (256, 256, 320, 384)),
    Scale(0.147, (512, 512, 640, 768, 1024, 1024, 1536, 2048, 4096)),
    Scale(0.036, (5120, 6144, 8192, 10240)),
)
WITHOUT_PIPELINE: Final = 0.211
_STAGES: Final = (2, 3, 4, 4, 6, 8, 8, 12, 16)
_TENSOR_RANKS: Final = (4, 8, 8)
_CONTEXT_RANKS: Final = (1, 1, 1, 2)
_INTERLEAVED: Final = 0.3
_FEWEST_MICROBATCHES: Final = 4
_FEWEST_STEPS, _MOST_STEPS = 6, 24
# Approximate limits of recorded operations of a job. Above the first limit, steps are left out,
# down to the fewest; above the second, the job is drawn again with another parallelism.
_OPERATIONS, _MOST_OPERATIONS = 60_000, 400_000


def draw_gpus(quantiles: FloatArray) -> list[int]:
    """Return the number of GPUs at each quantile of the jobs sorted by size."""
    every = [(scale.share / len(scale.gpus), gpus) for scale in SCALES for gpus in scale.gpus]
    ends = np.cumsum([share for share, _ in every])
    return [every[min(int(n), len(every) - 1)][1] for n in np.searchsorted(ends, quantiles)]


def draw_fleet_job(
    gpus: int, needs: Needs, rng: np.random.Generator, *, pipeline: bool
) -> JobModel:
    """Return a random healthy job with `gpus` GPUs that meets the requirements of a cause."""
    while True:
        job = _draw(gpus, needs, rng, pipeline=pipeline)
        if job is not None:
            return job


def _draw(gpus: int, needs: Needs, rng: np.random.Generator, *, pipeline: bool) -> JobModel | None:
    """Return a random job; None if its sizes do not fit the GPUs or its trace is too long."""
    tp, cp = int(rng.choice(_TENSOR_RANKS)), int(rng.choice(_CONTEXT_RANKS))
    pp = int(rng.choice(_STAGES)) if pipeline else 1
    dp, rest = divmod(gpus, tp * cp * pp)
    if rest or pp < needs.pp or dp < max(needs.dp, 2) or dp * pp < needs.workers:
        return None
    schedule, types, vpp = Schedule.ONE_F_ONE_B, USUAL_OP_TYPES, 1
    # The interleaved schedule is drawn only for more than two stages, as Megatron-LM requires.
    if pp > 2 and (needs.interleaved or rng.random() < _INTERLEAVED):  # noqa: PLR2004 - said
        schedule, types, vpp = Schedule.INTERLEAVED, types | {SEPARATE_ALL_REDUCE}, 2
    fewest = math.ceil(_FEWEST_MICROBATCHES / pp)
    microbatches = pp * int(rng.integers(fewest, fewest + (3 if pp > 1 else 13)))
    steps = int(rng.integers(_MOST_STEPS // 2, _MOST_STEPS + 1))
    in_step = dp * pp * microbatches * vpp * (6 if pp > 1 else 2)
    in_step += dp * pp * microbatches * vpp * 4 * tp if needs.tensor_ranks else 0
    steps = max(min(steps, _OPERATIONS // in_step), _FEWEST_STEPS)
    if steps * in_step > _MOST_OPERATIONS:
        return None
    costs = draw_costs(rng)
    return JobModel(
        sizes=Sizes(dp=dp, pp=pp, tp=tp, cp=cp, vpp=vpp),
        microbatches=microbatches,
        steps=steps,
        schedule=schedule,
        # The network has spare capacity in the paper's jobs (section 3.1), so that transfers are
        # made shorter and more even.
        costs=replace(costs, grads_ns=costs.grads_ns / 2, link_noise=costs.link_noise / 2),
        op_types=types,
        buckets=int(rng.integers(1, 3)),
        profiler=Profiler(tensor_ranks=needs.tensor_ranks),
        name=f"job-{int(rng.integers(1_000_000)):06d}",
    )


def published_slowdown(job: JobModel, injections: Sequence[Injection], *, seed: int) -> float:
    """Return S = T / T_ideal (paper, section 3.3), both without launch delays and contention.

    An analysis of the job's trace finds about the same S. It differs from the true slowdown: ideal
    durations contain the straggler, and late launches do not count.
    """
    work = healthy_work(job, build_program(job), seed)
    work.numbers = step_numbers(job, seed)
    inject(work, job, injections, seed)
    recorded = execute(replace(work, delay_ns=np.zeros_like(work.delay_ns)))
    # All steps and DP ranks of the ideal job are equal, so that one step of one DP rank is enough.
    ideal = execute(_ideal(work))
    return float(recorded.step_times_ns().mean() / ideal.step_times_ns().mean())


def _ideal(work: StepWork) -> StepWork:
    """Return one ideal step of a DP rank: computations take the mean, transfers the median."""
    program = work.program
    duration = np.empty((len(program), 1, 1))
    computes = program.of_types(*COMPUTATION, GC)
    for code in np.unique(program.op):
        alike = program.op == code
        average = np.mean if computes[alike].all() else np.median
        duration[alike] = average(work.duration_ns[alike])
    nothing = np.zeros_like(duration)
    return replace(work, duration_ns=duration, delay_ns=nothing)


Causes = tuple[str, ...]

STRAGGLING_SHARE: Final = 0.425

# Shares of the causes among the straggling jobs. More jobs than these show the signs by which the
# paper counts causes: sequence lengths also burden the last stage, and a slow worker also
# correlates forward and backward times.
SHARES: Final[Mapping[Causes, float]] = {
    (LAST_STAGE,): 0.333,
    (LAST_STAGE, LONG_CONTEXT): 0.048,
    (LONG_CONTEXT,): 0.158,
    ("slow_worker",): 0.012,
    ("tensor_parallel_straggler",): 0.005,
    (COLLECTING,): 0.429,
    ("network",): 0.01,
    (FRAGMENTED,): 0.005,
}
# Shares of the causes among the other jobs, which a cause slows less. S does not show the last two
# causes.
MILD: Final[Mapping[Causes, float]] = {
    (): 0.38,
    (LAST_STAGE,): 0.2,
    (LONG_CONTEXT,): 0.1,
    (COLLECTING,): 0.29,
    ("network",): 0.01,
    ("false_kernel_dependency",): 0.01,
    ("data_loading",): 0.01,
}
UNSEEN: Final = frozenset({("false_kernel_dependency",), ("data_loading",)})
# Range of quantiles by job size in which jobs with a cause lie; all sizes if a cause is not listed.
# Smaller jobs train long contexts (section 4.4), and large jobs have slow workers (section 4.1).
# Jobs that record all tensor-parallel ranks are not large, because their traces would be too long.
WORKERS: Final = frozenset({("slow_worker",), ("tensor_parallel_straggler",)})
_PLACES: Final[Mapping[Causes, tuple[float, float]]] = {
    ("slow_worker",): (0.83, 0.95),
    ("tensor_parallel_straggler",): (0.7, 0.8),
    (LONG_CONTEXT,): (0.0, 0.85),
    (LAST_STAGE, LONG_CONTEXT): (0.0, 0.85),
    (FRAGMENTED,): (0.0, 0.8),
}
# Mean and standard deviation of ln(S - 1.1) of straggling jobs, chosen so that a tenth of all jobs
# waste at least 21.3 % and a hundredth at least 45.0 %.
_BEYOND, _CONTEXT_BEYOND = (-2.35, 0.75), (-1.66, 0.5)
_WORKER, _WORKER_SPREAD = 3.04, 0.4
_MILDEST, _STRONGEST_MILD = 1.02, 1.09
# Highest S of other causes: only slow workers slow a job by a factor of three (section 4.1). In a
# short pipeline the last stage cannot cause a large S, because the ideal is the mean over all
# stages.
_SLOWEST: Final = 2.0
_LONG_PIPELINE, _LONG_PIPELINE_FROM = 4, 1.25
# The strength of a cause is adjusted until S differs from its goal by at most this share.
_NEAR: Final = 0.01


@dataclass(frozen=True, slots=True)
class FleetMember:
    """One job of a fleet that is not executed yet; `causes` is empty for a healthy job.

    `slowdown` is the S that an analysis will find, about; of `UNSEEN` causes the true one.
    """

    name: str
    causes: Causes
    slowdown: float
    gpus: int
    pipeline: bool
    seed: int

    def synthesize(self) -> SyntheticSession:
        """Return a synthetic profiling session of the job."""
        rng = stream(self.seed, "fleet job")
        needs = needs_of(self.causes)
        if LAST_STAGE in self.causes and self.slowdown > _LONG_PIPELINE_FROM:
            needs = replace(needs, pp=_LONG_PIPELINE)
        job = draw_fleet_job(self.gpus, needs, rng, pipeline=self.pipeline)
        slowdown_of = true_slowdown if self.causes in UNSEEN else published_slowdown
        return afflict(job, self.causes, Goal(self.slowdown, slowdown_of, _NEAR), self.seed)


def plan_fleet(jobs: int, seed: int) -> list[FleetMember]:
    """Return the jobs of a fleet; rounding keeps the shares of the causes as exact as possible.

    Raises
    ------
    ValueError
        There is less than one job.
    """
    if jobs < 1:
        raise ValueError("a fleet has at least one job")
    rng = stream(seed, "fleet")
    straggling = round(STRAGGLING_SHARE * jobs)
    drawn = [
        (causes, _slowdown(causes, rng, straggles=straggles))
        for straggles, total, shares in (
            (True, straggling, SHARES),
            (False, jobs - straggling, MILD),
        )
        for causes, count in zip(shares, _apportion(total, list(shares.values())), strict=True)
        for _ in range(count)
    ]
    # Jobs are ranked by size, so that the fleet has the paper's numbers of GPUs although some
    # causes occur only in small or large jobs.
    place = [rng.uniform(*_PLACES.get(causes, (0.0, 1.0))) for causes, _ in drawn]
    gpus = draw_gpus((np.argsort(np.argsort(place)) + 0.5) / len(drawn))
    one_stage = [index for index, (causes, _) in enumerate(drawn) if needs_of(causes).pp == 1]
    alone = set(rng.permutation(one_stage)[: round(WITHOUT_PIPELINE * len(drawn))].tolist())
    width = len(str(jobs))
    return [
        FleetMember(
            name=f"job-{number + 1:0{width}d}",
            causes=drawn[which][0],
            slowdown=drawn[which][1],
            gpus=gpus[which],
            pipeline=which not in alone,
            seed=int(rng.integers(2**31)),
        )
        for number, which in enumerate(rng.permutation(jobs).tolist())
    ]


def _apportion(total: int, shares: list[float]) -> list[int]:
    """Return the number of jobs for each share, rounded by the largest remainders."""
    exact = np.array(shares) / sum(shares) * total
    counts = np.floor(exact).astype(int)
    rest = total - int(counts.sum())
    counts[np.argsort(-(exact - counts), kind="stable")[:rest]] += 1
    return [int(count) for count in counts]


def _slowdown(causes: Causes, rng: np.random.Generator, *, straggles: bool) -> float:
    if not causes:
        return 1.0
    if causes in UNSEEN:
        return STRAGGLING + float(rng.lognormal(*_BEYOND))
    if not straggles:
        return float(rng.uniform(_MILDEST, _STRONGEST_MILD))
    if causes in WORKERS:
        return float(rng.normal(_WORKER, _WORKER_SPREAD))
    beyond = rng.lognormal(*(_CONTEXT_BEYOND if causes == (LONG_CONTEXT,) else _BEYOND))
    return min(STRAGGLING + float(beyond), _SLOWEST)
