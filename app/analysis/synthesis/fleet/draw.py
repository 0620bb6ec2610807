"""A fleet of jobs whose statistics are those of the paper's sections 4 and 5.

42.5 % of the jobs straggle (S of 1.1 or more). Of those, workers are to blame in 1.7 %, the last
stage in 39.3 %, sequence lengths in 21.4 %; the paper gives no shares for the rest. Stragglers slow
their job 1.28 times on average, workers 3.04 and sequence lengths 1.34 times. The other jobs are
not all healthy: the same causes are there, below 1.1.

Causes, S and sizes are drawn; what else an analysis finds follows from the executed jobs, and
docs/fleet.md holds it against the paper.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from app.analysis.replay.metrics import STRAGGLING
from app.analysis.synthesis.dials import COLLECTING, FRAGMENTED, LAST_STAGE, LONG_CONTEXT, needs_of
from app.analysis.synthesis.fleet.jobs import WITHOUT_PIPELINE, draw_fleet_job, draw_gpus
from app.analysis.synthesis.population import Goal, afflict
from app.analysis.synthesis.published_slowdown import published_slowdown
from app.analysis.synthesis.randomness import stream
from app.analysis.synthesis.synthesize import true_slowdown

if TYPE_CHECKING:
    from app.analysis.synthesis.random_jobs import Needs
    from app.analysis.synthesis.synthesize import SyntheticSession

Causes = tuple[str, ...]

STRAGGLING_SHARE: Final = 0.425

# Causes and their share of the straggling jobs. More jobs than these show the signs by which the
# paper counts: lengths also burden the last stage, a slow worker also correlates the passes.
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
# The same of the other jobs, which a cause may slow too, but less. S does not see the last two.
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
# Where jobs with a cause are among all jobs by size, where it matters. Long contexts are trained by
# smaller jobs (section 4.4), slow workers are found in large ones (4.1), and where all tensor ranks
# are recorded, large ones would be too long.
WORKERS: Final = frozenset({("slow_worker",), ("tensor_parallel_straggler",)})
_PLACES: Final[Mapping[Causes, tuple[float, float]]] = {
    ("slow_worker",): (0.83, 0.95),
    ("tensor_parallel_straggler",): (0.7, 0.8),
    (LONG_CONTEXT,): (0.0, 0.85),
    (LAST_STAGE, LONG_CONTEXT): (0.0, 0.85),
    (FRAGMENTED,): (0.0, 0.8),
}
# ln(S - 1.1) of straggling jobs: a tenth of all jobs waste 21.3 % or more, a hundredth 45.0 %.
_BEYOND, _CONTEXT_BEYOND = (-2.35, 0.75), (-1.66, 0.5)
_WORKER, _WORKER_SPREAD = 3.04, 0.4
_MILDEST, _STRONGEST_MILD = 1.02, 1.09
# Only workers make a job three times as slow (section 4.1). In a short pipeline the last stage
# would have to be many times as heavy as the others, for the ideal is the mean of them all.
_SLOWEST: Final = 2.0
_LONG_PIPELINE, _LONG_PIPELINE_FROM = 4, 1.25
# The strength of a cause is sought until S is this near.
_NEAR: Final = 0.01


@dataclass(frozen=True, slots=True)
class FleetMember:
    """One job of a fleet before it is executed; `causes` is empty where nothing is wrong.

    `slowdown` is the S that an analysis will find, about; of `UNSEEN` causes the true one.
    """

    name: str
    causes: Causes
    slowdown: float
    gpus: int
    pipeline: bool
    seed: int

    def synthesize(self) -> SyntheticSession:
        """Return a session of the job."""
        rng = stream(self.seed, "fleet job")
        job = draw_fleet_job(self.gpus, self._needs(), rng, pipeline=self.pipeline)
        slowdown_of = true_slowdown if self.causes in UNSEEN else published_slowdown
        return afflict(job, self.causes, Goal(self.slowdown, slowdown_of, _NEAR), self.seed)

    def _needs(self) -> Needs:
        needs = needs_of(self.causes)
        if LAST_STAGE in self.causes and self.slowdown > _LONG_PIPELINE_FROM:
            return replace(needs, pp=_LONG_PIPELINE)
        return needs


def plan_fleet(jobs: int, seed: int) -> list[FleetMember]:
    """Return the jobs of a fleet; shares are kept as exactly as their number allows.

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
    gpus = _sizes([causes for causes, _ in drawn], rng)
    alone = _without_pipeline([causes for causes, _ in drawn], rng)
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
    """Divide a number of jobs by shares, largest remainders first."""
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


def _sizes(drawn: list[Causes], rng: np.random.Generator) -> list[int]:
    """Return each job's number of GPUs; all jobs together have the paper's."""
    place = [rng.uniform(*_PLACES.get(causes, (0.0, 1.0))) for causes in drawn]
    ranks = np.argsort(np.argsort(place))
    return draw_gpus((ranks + 0.5) / len(drawn))


def _without_pipeline(drawn: list[Causes], rng: np.random.Generator) -> set[int]:
    """Return which jobs have one stage."""
    free = [index for index, causes in enumerate(drawn) if needs_of(causes).pp == 1]
    return set(rng.permutation(free)[: round(WITHOUT_PIPELINE * len(drawn))].tolist())
