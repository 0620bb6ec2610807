"""Compare estimated with true slowdowns: ``make fidelity`` prints the tables of docs/fidelity.md.

The executor of the jobs shares no code with the replay and models effects that the replay does not:
launch overhead of hosts, unrecorded work on the CPU, contention between streams.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from app.analysis.report.build import analyze
from app.analysis.report.document import Report
from app.analysis.synthesis.injections.computations import SlowWorker
from app.analysis.synthesis.job import CostModel, JobModel, stream
from app.analysis.synthesis.random_host_sessions import WAYS, draw_host_session
from app.analysis.synthesis.random_sessions import draw_session
from app.analysis.synthesis.synthesize import SyntheticSession, synthesize
from app.analysis.trace.model import Sizes

JOBS_OF_A_WAY: Final = 20
_HOST_SEED: Final = 9_400_000
_LEAST, _MOST = 1.3, 3.0


@dataclass(frozen=True, slots=True)
class HostRun:
    """A job with a slow worker: relative errors of estimates, and whether it is named."""

    headline_off: float
    published_off: float
    discrepancy: float
    adapted: bool
    worker_right: bool


def compare_way(way: str, seed: int) -> HostRun:
    """Analyze a random job that runs in one of the ways, with one slow worker."""
    factor = float(stream(seed, "host fidelity").uniform(_LEAST, _MOST))
    session = draw_host_session("slow_worker", factor, seed, way)
    report = analyze(session.trace).report
    true = session.truth.slowdown
    named = [cause.where.workers for cause in report.causes if cause.cause == "slow_worker"]
    return HostRun(
        headline_off=abs(report.headline.slowdown / true - 1),
        published_off=abs(report.slowdown / true - 1),
        discrepancy=report.fidelity.discrepancy,
        adapted=bool(report.fidelity.adaptations),
        worker_right=bool(named) and named[0][:1] == session.truth.workers[:1],
    )


def host_section(jobs_of_a_way: int = JOBS_OF_A_WAY) -> Iterator[str]:
    """Yield the lines of the section."""
    yield from (
        "## Jobs outside the paper's dependency model",
        "",
        "The hosts of these jobs make one call after the other, each as soon as possible, in ways",
        "that the paper's dependency model does not have; the replay adapts to the recording. One",
        f"worker is slow. {jobs_of_a_way} random jobs of each way, seeds from {_HOST_SEED} on.",
        "",
        (
            "| way to run | headline off, median | worst | S off, median | discrepancy, worst "
            "| adapted | worker named |"
        ),
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    )
    for way in WAYS:
        runs = [compare_way(way, _HOST_SEED + number) for number in range(jobs_of_a_way)]
        headline = np.array([run.headline_off for run in runs])
        cells = (
            _percent(float(np.median(headline))),
            _percent(float(headline.max())),
            _percent(float(np.median([run.published_off for run in runs]))),
            _percent(max(run.discrepancy for run in runs)),
            str(sum(run.adapted for run in runs)),
            str(sum(run.worker_right for run in runs)),
        )
        yield f"| {way} | {' | '.join(cells)} |"
    yield from (
        "",
        "Not every job needs an adaptation: receives that are posted one computation ahead fit the",
        "model, and an adaptation that would gain less than half a percentage point is not made.",
        "",
    )


# The job of the paper's section 6, and the paper's measured and estimated slowdowns.
_PAPER: Final = ((1.16, 1.21), (1.40, 1.42), (2.03, 1.98))
_JOB: Final = JobModel(
    sizes=Sizes(dp=4, pp=4, tp=4),
    microbatches=8,
    steps=20,
    costs=CostModel(host_stall_probability=0.004, contention=0.04),
)
_WORKER: Final = (0, 0)
_RANDOM_JOBS: Final = 200
_SLOWEST: Final = 3.0
_WITHIN: Final = 0.02
_FIRST_SEED: Final = 9_300_000


@dataclass(frozen=True, slots=True)
class Compared:
    """A job: true slowdown, S, the headline, and the gain of replacing its slow worker."""

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
    """Return the predicted gain of replacing the slow workers, as seconds of a mean step."""
    now_s = float(np.mean(report.step_times.simulated))
    after_s = [
        fix.predicted_step_time for fix in report.recommendations if fix.action == "replace_worker"
    ]
    return now_s - after_s[0] if after_s else 0.0


def slowed(factor: float, seed: int = 1) -> SyntheticSession:
    """Return the paper's job with a slow first worker."""
    return synthesize(_JOB, [SlowWorker(_WORKER, factor)], seed=seed)


def factor_for(slowdown: float) -> float:
    """Return the factor of the worker's compute times that gives the job this slowdown."""
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
    """Yield the tables of the paper's three levels and of random jobs."""
    yield from (
        "| in the paper | estimated there | true here | S | headline | replaced | discrepancy |",
        "| ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    )
    for (measured, estimated), level in zip(_PAPER, levels, strict=True):
        yield (
            f"| {measured:.2f} | {estimated:.2f} | {level.true:.3f} | {level.published:.3f} | "
            f"{level.headline:.3f} | {level.replaced:.3f} | {_percent(level.discrepancy)} |"
        )
    replaced, published, headlines = (
        np.array([abs(getattr(job, name) / job.true - 1) for job in many])
        for name in ("replaced", "published", "headline")
    )
    yield from (
        "",
        "| | median | 95 % | worst |",
        "| --- | ---: | ---: | ---: |",
        _row("error of S", published),
        _row("error of the headline", headlines),
        _row("error of the replaced estimate", replaced),
        _row("replay against recording (discrepancy)", np.array([j.discrepancy for j in many])),
        "",
        (
            f"{_percent(np.mean(headlines <= _WITHIN), 1)} of the headlines and "
            f"{_percent(np.mean(replaced <= _WITHIN), 1)} of the replaced estimates are within "
            f"{_percent(_WITHIN, 0)} of the true slowdown. The slow worker is found in "
            f"{_percent(np.mean([job.worker_right for job in many]), 1)} of the jobs."
        ),
        "",
    )


def _row(name: str, values: np.ndarray) -> str:
    middle, most = np.quantile(values, (0.5, 0.95))
    return f"| {name} | {_percent(middle)} | {_percent(most)} | {_percent(values.max())} |"


def _percent(share: np.floating[Any] | float, digits: int = 2) -> str:
    return f"{100 * share:.{digits}f} %"


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=_RANDOM_JOBS)
    parser.add_argument("--seed", type=int, default=_FIRST_SEED, help="seed of the first job")
    arguments = parser.parse_args()
    levels = [compare(slowed(factor_for(measured))) for measured, _ in _PAPER]
    many = random_jobs(arguments.jobs, arguments.seed)
    for line in (*tables(levels, many), *host_section()):
        print(line)


if __name__ == "__main__":
    main()
