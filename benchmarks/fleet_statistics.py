"""The statistics of the paper's sections 3.1, 4 and 5, of a planned fleet and of a measured one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Final

import numpy as np
from numpy.typing import NDArray

from app.analysis.fleet import rank_correlation
from app.analysis.replay.metrics import STRAGGLING
from app.analysis.synthesis.fleet import UNSEEN, WORKERS, FleetMember
from app.analysis.synthesis.job import stream
from app.analysis.synthesis.random_sessions import LAST_STAGE, LONG_CONTEXT
from app.analysis.wording import percent

# Kinds of operations, each with the operation types of reports.
KINDS: Final[Mapping[str, tuple[str, ...]]] = {
    "computation": ("forward-compute", "backward-compute"),
    "pipeline": ("forward-pp-comm", "backward-pp-comm"),
    "data parallel": ("params-all-gather", "grads-reduce-scatter"),
}
# Steps of each straggling job in the paper's figure 4.
STEPS: Final = 15
_BLAMED, _CORRELATED = 0.5, 0.9
_VERY_SLOW: Final = 3.0
_RESAMPLES: Final = 1000

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Fleet:
    """Jobs as arrays of shape (jobs,); NaN for values that a planned fleet lacks.

    `steps` is (jobs, `STEPS`), step slowdown over job slowdown; `waste` is (jobs, `KINDS`);
    `context` is in tokens, 0 if lengths do not vary.
    """

    slowdown: Floats
    gpus: Floats
    stages: Floats
    m_w: Floats
    m_s: Floats
    correlation: Floats
    steps: Floats
    waste: Floats
    context: Floats

    @classmethod
    def planned(cls, members: Sequence[FleetMember]) -> Fleet:
        """Return the values if each planned job showed the signs of its causes, and no others.

        Of the stages, only the existence of a pipeline is planned.
        """
        return cls(
            slowdown=np.array([1.0 if m.causes in UNSEEN else m.slowdown for m in members]),
            gpus=np.array([float(m.gpus) for m in members]),
            stages=np.array([2.0 if m.pipeline else 1.0 for m in members]),
            m_w=np.array([float(m.causes in WORKERS) for m in members]),
            m_s=np.array([float(LAST_STAGE in m.causes) for m in members]),
            correlation=np.array([float(LONG_CONTEXT in m.causes) for m in members]),
            steps=np.full((len(members), STEPS), np.nan),
            waste=np.full((len(members), len(KINDS)), np.nan),
            context=np.full(len(members), np.nan),
        )

    def take(self, which: NDArray[np.int64] | NDArray[np.bool_]) -> Fleet:
        """Return the jobs of a selection."""
        return Fleet(*(getattr(self, field.name)[which] for field in fields(self)))

    @property
    def stragglers(self) -> Fleet:
        """Return the jobs that straggle."""
        return self.take(self.slowdown >= STRAGGLING)

    @property
    def wasted(self) -> Floats:
        """Return the waste of each job."""
        return np.asarray(1 - 1 / self.slowdown)


@dataclass(frozen=True, slots=True)
class Statistic:
    """A row of the table; `words` are the paper's if it gives no single number."""

    name: str
    paper: float | None
    number: Callable[[Fleet], float]
    form: Callable[[float], str] = percent
    words: str = ""

    def paper_within(self, low: float, high: float) -> bool | None:
        """Return whether the paper's number, within its rounding, is in the interval."""
        if self.paper is None or np.isnan(low):
            return None
        half = 0.0005 if self.form is percent else 0.005
        return low - half <= self.paper <= high + half


def plain(value: float) -> str:
    """Return a number as text: ``1.28``."""
    return f"{value:.2f}"


def precise(share: float) -> str:
    """Return a share as text: ``0.16 %``."""
    return percent(share, 2)


def _at_least(gpus: int) -> Callable[[Fleet], float]:
    return lambda fleet: float(np.mean(fleet.gpus >= gpus))


def _waste_by(kind: str) -> Callable[[Fleet], float]:
    column = list(KINDS).index(kind)
    return lambda fleet: float(fleet.waste[:, column].mean())


def _of_stragglers(sign: Callable[[Fleet], NDArray[np.bool_]]) -> Callable[[Fleet], float]:
    """Return the share of straggling jobs with a sign."""
    return lambda fleet: float(sign(fleet.stragglers).mean())


def _slowdown_of(sign: Callable[[Fleet], NDArray[np.bool_]]) -> Callable[[Fleet], float]:
    """Return the mean slowdown of straggling jobs with a sign."""

    def mean(fleet: Fleet) -> float:
        slow = fleet.stragglers
        chosen = slow.slowdown[sign(slow)]
        return float(chosen.mean()) if len(chosen) else float("nan")

    return mean


def _blames_workers(fleet: Fleet) -> NDArray[np.bool_]:
    return fleet.m_w >= _BLAMED


def _blames_last_stage(fleet: Fleet) -> NDArray[np.bool_]:
    return fleet.m_s >= _BLAMED


def _correlates(fleet: Fleet) -> NDArray[np.bool_]:
    return fleet.correlation >= _CORRELATED


def _very_slow_by_workers(fleet: Fleet) -> float:
    very = fleet.take(fleet.slowdown > _VERY_SLOW)
    return float(_blames_workers(very).mean()) if len(very.slowdown) else float("nan")


def _context_matters(fleet: Fleet) -> float:
    unequal = fleet.take(fleet.context > 0)
    return rank_correlation(unequal.context, unequal.slowdown)


STATISTICS: Final[Mapping[str, tuple[Statistic, ...]]] = {
    "How slow (sections 4.1, 4.2 and 4.4)": (
        Statistic("jobs that straggle", 0.425, lambda f: float(np.mean(f.slowdown >= STRAGGLING))),
        Statistic("S of those, mean", 1.28, lambda f: float(f.stragglers.slowdown.mean()), plain),
        Statistic(
            "jobs that waste 21.3 % or more",
            None,
            lambda f: float(np.mean(f.wasted >= 0.213)),  # noqa: PLR2004 - said in the name
            words="over 10 %",
        ),
        Statistic(
            "jobs that waste 45.0 % or more",
            0.01,
            lambda f: float(np.mean(f.wasted >= 0.45)),  # noqa: PLR2004 - said in the name
            words="about 1 %",
        ),
        Statistic(
            "GPU-hours wasted",
            0.104,
            lambda f: float(np.average(f.wasted, weights=f.gpus)),
        ),
        Statistic(
            "step over job slowdown, median",
            1.0,
            lambda f: float(np.quantile(f.stragglers.steps, 0.5)),
            plain,
        ),
        Statistic(
            "step over job slowdown, 90th percentile",
            1.06,
            lambda f: float(np.quantile(f.stragglers.steps, 0.9)),
            plain,
        ),
        Statistic(
            "rank correlation of S and GPUs",
            None,
            lambda f: rank_correlation(f.gpus, f.slowdown),
            plain,
            "not obviously positive",
        ),
        Statistic(
            "jobs with S over 3 whose slowest 3 % of workers are to blame",
            1.0,
            _very_slow_by_workers,
            words="all",
        ),
    ),
    "Which operations (section 4.3): mean waste by": (
        Statistic("computation", None, _waste_by("computation"), precise, "most"),
        Statistic("pipeline transfers", None, _waste_by("pipeline"), precise, "little"),
        Statistic(
            "data-parallel collectives",
            None,
            _waste_by("data parallel"),
            precise,
            "slightly less than those",
        ),
    ),
    "Why: of the jobs that straggle (section 5)": (
        Statistic("workers: M_W of 0.5 or more", 0.017, _of_stragglers(_blames_workers)),
        Statistic("S of those, mean", 3.04, _slowdown_of(_blames_workers), plain),
        Statistic("last stage: M_S of 0.5 or more", 0.393, _of_stragglers(_blames_last_stage)),
        Statistic(
            "sequence lengths: correlation of 0.9 or more", 0.214, _of_stragglers(_correlates)
        ),
        Statistic("S of those, mean", 1.34, _slowdown_of(_correlates), plain),
        Statistic(
            "rank correlation of S and context length, where lengths vary",
            None,
            _context_matters,
            plain,
            "positive",
        ),
    ),
    "Which jobs (sections 3.1 and 5.2)": (
        Statistic("256 GPUs or more", 0.317, _at_least(256)),
        Statistic("512 GPUs or more", 0.183, _at_least(512)),
        Statistic("5,000 GPUs or more", 0.036, _at_least(5000)),
        Statistic("without a pipeline", 0.211, lambda f: float(np.mean(f.stages == 1))),
    ),
}


def intervals(
    fleet: Fleet, statistics: Sequence[Statistic], seed: int
) -> list[tuple[float, float]]:
    """Return the 95 % bootstrap interval over jobs of each statistic."""
    rng, jobs = stream(seed, "bootstrap"), len(fleet.slowdown)
    drawn = np.empty((_RESAMPLES, len(statistics)))
    for row in drawn:
        again = fleet.take(rng.integers(jobs, size=jobs))
        row[:] = [statistic.number(again) for statistic in statistics]
    return [_interval(values[~np.isnan(values)]) for values in drawn.T]


def _interval(values: Floats) -> tuple[float, float]:
    if not len(values):
        return float("nan"), float("nan")
    low, high = np.quantile(values, (0.025, 0.975))
    return float(low), float(high)
