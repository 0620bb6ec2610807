"""Jobs outside the paper's dependency model, with their true slowdown, for docs/fidelity.md."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from app.analysis.report.build import analyze
from app.analysis.synthesis.job import stream
from app.analysis.synthesis.random_host_sessions import WAYS, draw_host_session

JOBS_OF_A_WAY: Final = 20
_FIRST_SEED: Final = 9_400_000
_LEAST, _MOST = 1.3, 3.0


@dataclass(frozen=True, slots=True)
class HostRun:
    """One job with a slow worker: relative errors of the estimates, and whether it is named."""

    headline_off: float
    published_off: float
    discrepancy: float
    adapted: bool
    worker_right: bool


def compare(way: str, seed: int) -> HostRun:
    """Analyze a random job that runs in a way, with one slow worker."""
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


def section(jobs_of_a_way: int = JOBS_OF_A_WAY) -> Iterator[str]:
    """Yield the table, Markdown."""
    yield from (
        (
            "| way to run | headline off, median | worst | S off, median | discrepancy, worst "
            "| adapted | worker named |"
        ),
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    )
    for way in WAYS:
        runs = [compare(way, _FIRST_SEED + number) for number in range(jobs_of_a_way)]
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
    yield ""


def _percent(share: float) -> str:
    return f"{100 * share:.2f} %"
