"""Compare a synthetic fleet with the paper's sections 4 and 5: the table of docs/fleet.md.

Each job of ``paceline synth --fleet`` is synthesized and analyzed. "Drawn" values are those of the
fleet's plan, "measured" values those of the reports.
"""

from __future__ import annotations

import argparse
import math
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from multiprocessing import get_context
from typing import Final

import numpy as np

from app.analysis.replay.fidelity import DISCREPANCY_LIMIT
from app.analysis.replay.metrics import STRAGGLING
from app.analysis.report.build import analyze
from app.analysis.synthesis.fleet import FleetMember, plan_fleet
from app.analysis.synthesis.job import stream
from app.analysis.trace.encode import to_parquet
from app.analysis.wording import percent
from benchmarks.fleet_statistics import KINDS, STATISTICS, STEPS, Fleet, Statistic, intervals

# The number of the paper's jobs. Seed 1 was used when the fleet was adjusted.
_JOBS: Final = 3079
_SEED: Final = 20_240_531
_FEWEST_JOBS: Final = 100


@dataclass(frozen=True, slots=True)
class Measured:
    """A job: its plan, values of its report, and the time and memory of its analysis."""

    member: FleetMember
    slowdown: float
    discrepancy: float
    stages: int
    m_w: float
    m_s: float
    correlation: float
    steps: tuple[float, ...]
    waste: tuple[float, ...]
    context: int
    named_right: bool
    operations: int
    trace_bytes: int
    synthesis_s: float
    analysis_s: float


def measure(member: FleetMember) -> Measured:
    """Synthesize and analyze a job."""
    start_s = time.perf_counter()
    session = member.synthesize()
    synthesized_s = time.perf_counter()
    report = analyze(session.trace).report
    analyzed_s = time.perf_counter()
    slowdown, waste = report.slowdown, report.waste_by_optype
    steps = stream(member.seed, "some steps").choice(report.step_slowdown, STEPS)
    named = [cause.cause for cause in report.causes]
    return Measured(
        member=member,
        slowdown=slowdown,
        discrepancy=report.fidelity.discrepancy,
        stages=session.job.sizes.pp,
        m_w=report.m_w.rem or 0.0,
        m_s=report.m_s.rem or 0.0,
        correlation=report.fb_correlation.pearson or 0.0,
        steps=tuple((steps / slowdown).tolist()),
        waste=tuple(sum(waste.get(name, 0.0) for name in names) for names in KINDS.values()),
        context=max((dials.get("max_length", 0) for dials in session.truth.injections), default=0),
        named_right=bool(named) and named[0] in session.truth.causes,
        operations=len(session.trace),
        trace_bytes=len(to_parquet(session.trace)),
        synthesis_s=synthesized_s - start_s,
        analysis_s=analyzed_s - synthesized_s,
    )


def run(members: Sequence[FleetMember], processes: int) -> list[Measured]:
    """Measure all jobs."""
    if processes == 1:
        return [measure(member) for member in members]
    with get_context("spawn").Pool(processes) as pool:
        return list(pool.imap(measure, members, chunksize=4))


def as_fleet(jobs: Sequence[Measured]) -> Fleet:
    """Return jobs as arrays."""
    return Fleet(
        slowdown=np.array([job.slowdown for job in jobs]),
        gpus=np.array([float(job.member.gpus) for job in jobs]),
        stages=np.array([float(job.stages) for job in jobs]),
        m_w=np.array([job.m_w for job in jobs]),
        m_s=np.array([job.m_s for job in jobs]),
        correlation=np.array([job.correlation for job in jobs]),
        steps=np.array([job.steps for job in jobs]),
        waste=np.array([job.waste for job in jobs]),
        context=np.array([float(job.context) for job in jobs]),
    )


def table(planned: Fleet, measured: Fleet, seed: int) -> Iterator[str]:
    """Yield the lines of the table."""
    bounds = iter(intervals(measured, list(chain(*STATISTICS.values())), seed))
    yield "| | paper | drawn | measured | 95 % interval | paper in it |"
    yield "| --- | ---: | ---: | ---: | ---: | --- |"
    for heading, statistics in STATISTICS.items():
        yield f"| **{heading}** | | | | | |"
        for statistic in statistics:
            yield _row(statistic, planned, measured, next(bounds))


def _row(
    statistic: Statistic, planned: Fleet, measured: Fleet, interval: tuple[float, float]
) -> str:
    form, paper = statistic.form, statistic.paper
    low, high = interval
    said = statistic.words or (form(paper) if paper is not None else "")
    cells = (
        statistic.name,
        said,
        *(
            "" if math.isnan(number) else form(number)
            for number in (statistic.number(planned), statistic.number(measured))
        ),
        "" if math.isnan(low) else f"{form(low)} to {form(high)}",
        {None: "", True: "yes", False: "no"}[statistic.paper_within(low, high)],
    )
    return f"| {' | '.join(cells)} |"


def figures(members: Sequence[FleetMember], jobs: Sequence[Measured], seed: int) -> Iterator[str]:
    """Yield the table of docs/fleet.md, and the composition and cost of the jobs."""
    kept = [job for job in jobs if job.discrepancy <= DISCREPANCY_LIMIT]
    slow = [job for job in kept if job.slowdown >= STRAGGLING]
    named = np.mean([job.named_right for job in slow])
    yield from table(Fleet.planned(members), as_fleet(kept), seed)
    synthesis_s, analysis_s = (
        np.mean([getattr(job, name) for job in jobs]) for name in ("synthesis_s", "analysis_s")
    )
    slowest_s = max(job.synthesis_s + job.analysis_s for job in jobs)
    operations = np.array([job.operations for job in jobs])
    megabytes = np.array([job.trace_bytes for job in jobs]) / 1e6
    yield from (
        "",
        (
            f"{len(jobs):,} jobs with seed {seed}, {len(jobs) - len(kept)} with a discrepancy "
            f"above {percent(DISCREPANCY_LIMIT, 0)}; first cause right in {percent(float(named))} "
            f"of the {len(slow):,} that straggle"
        ),
        (
            f"operations: {operations.mean():,.0f} on average, {operations.max():,} at most; "
            f"Parquet: {megabytes.mean():.1f} MB on average, {megabytes.max():.1f} MB at most"
        ),
        (
            f"synthesis {synthesis_s:.2f} s and analysis {analysis_s:.2f} s on average, together "
            f"{slowest_s:.1f} s at most"
        ),
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=_JOBS)
    parser.add_argument("--seed", type=int, default=_SEED)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    arguments = parser.parse_args()
    if arguments.jobs < _FEWEST_JOBS:
        parser.error(f"statistics need {_FEWEST_JOBS} jobs or more")
    members = plan_fleet(arguments.jobs, arguments.seed)
    print("\n".join(figures(members, run(members, arguments.processes), arguments.seed)))


if __name__ == "__main__":
    main()
