"""Compare the replay with jobs whose true slowdown is known: the tables of docs/fidelity.md.

The executor that makes the jobs shares no code with the replay and knows what the replay does not:
host launch overhead, unrecorded work on the CPU, contention between streams.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from app.analysis.report.build import analyze
from app.analysis.report.document import Report
from app.analysis.synthesis.injections.computations import SlowWorker
from app.analysis.synthesis.job import CostModel, JobModel, stream
from app.analysis.synthesis.random_sessions import draw_session
from app.analysis.synthesis.synthesize import SyntheticSession, synthesize
from app.analysis.trace.model import Sizes
from benchmarks import coverage, hosts
from benchmarks.svg import Axis, Series, plot

# The paper's job, section 6, and what it measured and estimated.
_PAPER: Final = ((1.16, 1.21), (1.40, 1.42), (2.03, 1.98))
_JOB: Final = JobModel(
    sizes=Sizes(dp=4, pp=4, tp=4),
    microbatches=8,
    steps=20,
    costs=CostModel(host_stall_probability=0.004, contention=0.04),
)
_WORKER: Final = (0, 0)
_SWEEP: Final = tuple(np.round(np.arange(1.0, 6.01, 0.25), 2).tolist())
_RANDOM_JOBS: Final = 200
_SLOWEST: Final = 3.0
_WITHIN: Final = 0.02
_FIRST_SEED: Final = 9_300_000
_BLUE, _RED, _GRAY = "#2f6fb0", "#c0492f", "#9a9a9a"


@dataclass(frozen=True, slots=True)
class Compared:
    """One job: true slowdown, S, the headline, and the slowdown by replacing the worker."""

    true: float
    published: float
    headline: float
    replaced: float
    discrepancy: float
    worker_right: bool


def compare(session: SyntheticSession) -> Compared:
    """Analyze a job with one slow worker."""
    report = analyze(session.trace).report
    cause = next((c for c in report.causes if c.cause == "slow_worker"), None)
    recorded = float(np.mean(report.step_times.recorded))
    workers = () if cause is None else cause.where.workers
    return Compared(
        true=session.truth.slowdown,
        published=report.slowdown,
        headline=report.headline.slowdown,
        replaced=recorded / (recorded - _saved_s(report)),
        discrepancy=report.fidelity.discrepancy,
        worker_right=session.truth.workers[0] in workers,
    )


def _saved_s(report: Report) -> float:
    """Return what replacing the slow workers is predicted to save of a mean step."""
    now_s = float(np.mean(report.step_times.simulated))
    after_s = [
        fix.predicted_step_time for fix in report.recommendations if fix.action == "replace_worker"
    ]
    return now_s - after_s[0] if after_s else 0.0


def slowed(factor: float, seed: int = 1) -> SyntheticSession:
    """Return the paper's job with its first worker slowed."""
    return synthesize(_JOB, [SlowWorker(_WORKER, factor)], seed=seed)


def factor_for(slowdown: float) -> float:
    """Return the factor of the worker that slows the job by so much."""
    low, high = 1.0, 10.0
    for _ in range(18):
        middle = (low + high) / 2
        if slowed(middle).truth.slowdown < slowdown:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def random_jobs(count: int, first_seed: int) -> list[Compared]:
    """Compare random jobs with slow workers of any strength up to a true slowdown of 3."""
    results: list[Compared] = []
    for seed in itertools.count(first_seed):
        target = float(stream(seed, "fidelity").uniform(1.1, _SLOWEST))
        session = draw_session(("slow_worker",), target, seed)
        if session.truth.slowdown <= _SLOWEST * (1 + _WITHIN):
            results.append(compare(session))
        if len(results) == count:
            return results
    raise AssertionError("unreachable: seeds do not end")


def tables(levels: Sequence[Compared], many: Sequence[Compared]) -> Iterator[str]:
    """Yield the tables of the paper's levels and of random jobs, Markdown."""
    errors = np.array([abs(one.replaced / one.true - 1) for one in many])
    published = np.array([abs(one.published / one.true - 1) for one in many])
    headlines = np.array([abs(one.headline / one.true - 1) for one in many])
    gaps = np.array([one.discrepancy for one in many])
    within, named = np.mean(errors <= _WITHIN), np.mean([one.worker_right for one in many])
    near = np.mean(headlines <= _WITHIN)
    yield from (
        "| in the paper | estimated there | true here | S | headline | replaced | discrepancy |",
        "| ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    )
    for (measured, estimated), one in zip(_PAPER, levels, strict=True):
        yield (
            f"| {measured:.2f} | {estimated:.2f} | {one.true:.3f} | {one.published:.3f} | "
            f"{one.headline:.3f} | {one.replaced:.3f} | {_percent(one.discrepancy)} |"
        )
    yield from (
        "",
        "| | median | 95 % | worst |",
        "| --- | ---: | ---: | ---: |",
        _row("error of S", published),
        _row("error of the headline", headlines),
        _row("error of the replaced estimate", errors),
        _row("replay against recording (discrepancy)", gaps),
        "",
        (
            f"Within {_percent(_WITHIN, 0)}: {_percent(near, 1)} of the headlines, "
            f"{_percent(within, 1)} of the replaced estimates, worker found in {_percent(named, 1)}"
        ),
        "",
    )


def _row(name: str, values: np.ndarray) -> str:
    middle, most = np.quantile(values, (0.5, 0.95))
    return f"| {name} | {_percent(middle)} | {_percent(most)} | {_percent(values.max())} |"


def _percent(share: np.floating[Any] | float, digits: int = 2) -> str:
    return f"{100 * share:.{digits}f} %"


def bias_figure() -> str:
    """Return S and the headline of the paper's job over the worker's slowness."""
    ticks = (1, 1.5, 2, 2.5, 3, 3.5, 4)
    ends = ticks[-1]
    swept = [one for one in map(compare, map(slowed, _SWEEP)) if one.true <= ends]
    return plot(
        "One slow worker of DP 4 × PP 4",
        Axis("true slowdown", 1, ends, ticks),
        Axis("estimate", 1, ends, ticks),
        [
            Series("exact", [(1, 1), (ends, ends)], _GRAY, line=True),
            Series("S", [(one.true, one.published) for one in swept], _RED, line=True),
            Series("headline", [(one.true, one.headline) for one in swept], _BLUE),
        ],
    )


def estimates_figure(many: Sequence[Compared]) -> str:
    """Return S and the headline of random jobs against the truth."""
    ticks = (1, 1.5, 2, 2.5, 3)
    return plot(
        f"{len(many)} random jobs with slow workers",
        Axis("true slowdown", 1, 3.1, ticks),
        Axis("estimate", 1, 3.1, ticks),
        [
            Series("exact", [(1, 1), (3.1, 3.1)], _GRAY, line=True),
            Series("S", [(one.true, one.published) for one in many], _RED),
            Series("headline", [(one.true, one.headline) for one in many], _BLUE),
        ],
    )


def main() -> None:
    """Print the tables and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("docs"))
    parser.add_argument("--jobs", type=int, default=_RANDOM_JOBS)
    parser.add_argument("--seed", type=int, default=_FIRST_SEED, help="seed of the first job")
    arguments = parser.parse_args()
    levels = [compare(slowed(factor_for(measured))) for measured, _ in _PAPER]
    many = random_jobs(arguments.jobs, arguments.seed)
    lines = [*tables(levels, many), *coverage.section(), *hosts.section()]
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "fidelity-bias.svg").write_text(bias_figure(), encoding="utf-8")
    (arguments.out / "fidelity-estimates.svg").write_text(estimates_figure(many), encoding="utf-8")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
