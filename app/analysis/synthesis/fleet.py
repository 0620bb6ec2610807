"""A fleet of jobs whose statistics are those of the paper's sections 4 and 5.

42.5 % of the jobs straggle (S of 1.1 or more). Of those, workers are to blame in 1.7 %, the last
stage in 39.3 %, sequence lengths in 21.4 %; the paper gives no shares for the rest. Stragglers slow
their job 1.28 times on average, workers 3.04 and sequence lengths 1.34 times.

The paper measures S, whose ideal is a mean that contains the straggler: a job's true slowdown is
larger. And S does not see late launches: jobs with those are among the ones that do not straggle.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from app.analysis.synthesis.population import draw_session
from app.analysis.synthesis.randomness import stream

if TYPE_CHECKING:
    from app.analysis.synthesis.synthesize import SyntheticSession

STRAGGLING_SHARE: Final = 0.425
STRAGGLING: Final = 1.1

# Causes and their share of the straggling jobs.
SHARES: Final[Mapping[tuple[str, ...], float]] = {
    ("last_stage",): 0.345,
    ("last_stage", "sequence_length_imbalance"): 0.048,
    ("sequence_length_imbalance",): 0.166,
    ("slow_worker",): 0.017,
    ("garbage_collection",): 0.354,
    ("network",): 0.06,
    ("memory_fragmentation",): 0.005,
    ("tensor_parallel_straggler",): 0.005,
}
# Causes that S does not see, and their share of the other jobs.
UNSEEN: Final[Mapping[tuple[str, ...], float]] = {
    ("false_kernel_dependency",): 0.01,
    ("data_loading",): 0.01,
}
# What S shows of the logarithm of the true slowdown, measured on the jobs of a fleet.
_SHOWN: Final[Mapping[tuple[str, ...], float]] = {
    ("last_stage",): 0.58,
    ("last_stage", "sequence_length_imbalance"): 0.66,
    ("slow_worker",): 0.71,
    ("garbage_collection",): 0.83,
    ("network",): 0.83,
    ("memory_fragmentation",): 0.8,
    ("tensor_parallel_straggler",): 0.86,
}
# ln(S - 1.1) of straggling jobs: a tenth of all jobs waste 21.3 % or more, a hundredth 45.0 %.
_MEAN, _SPREAD = -2.75, 0.98
_LENGTHS_MEAN, _LENGTHS_SPREAD = -1.55, 0.5
_WORKER, _WORKER_SPREAD = 3.04, 0.25
_SLOWEST: Final = 4.0
_SLOWEST_TRUE: Final = 6.0


@dataclass(frozen=True, slots=True)
class Member:
    """One job of a fleet before it is executed; `causes` is empty where nothing is wrong.

    `slowdown` is about the S that an analysis will find; of `UNSEEN` causes the true one.
    """

    name: str
    causes: tuple[str, ...]
    slowdown: float
    seed: int

    @property
    def true_slowdown(self) -> float:
        """Return how slow the job has to be for its S."""
        return min(math.pow(self.slowdown, 1 / _SHOWN.get(self.causes, 1.0)), _SLOWEST_TRUE)

    def synthesize(self) -> SyntheticSession:
        """Return a session of the job."""
        return draw_session(self.causes, self.true_slowdown, self.seed)


def plan_fleet(jobs: int, seed: int) -> list[Member]:
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
    causes = [(), *UNSEEN, *SHARES]
    unseen = [round(share * (jobs - straggling)) for share in UNSEEN.values()]
    counts = [jobs - straggling - sum(unseen), *unseen]
    counts += _apportion(straggling, list(SHARES.values()))
    drawn = [cause for cause, count in zip(causes, counts, strict=True) for _ in range(count)]
    width = len(str(jobs))
    return [
        Member(
            name=f"job-{number + 1:0{width}d}",
            causes=drawn[which],
            slowdown=_slowdown(drawn[which], rng),
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


def _slowdown(causes: tuple[str, ...], rng: np.random.Generator) -> float:
    if not causes:
        return 1.0
    if causes == ("slow_worker",):
        return float(rng.normal(_WORKER, _WORKER_SPREAD))
    lengths = causes == ("sequence_length_imbalance",)
    beyond = rng.lognormal(*((_LENGTHS_MEAN, _LENGTHS_SPREAD) if lengths else (_MEAN, _SPREAD)))
    return min(STRAGGLING + float(beyond), _SLOWEST)
