"""Jobs as their hosts run them: calls that block, steps that overlap, collectives inside.

The other jobs of the synthesizer follow the paper's dependency model. Here each rank is a host that
makes one call after the other: a computation, an exchange with its neighbors that returns when all
of it has been transferred, a collective. What is recorded is what hooks around those calls see.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from app.analysis.synthesis.hosts.job import HostJob, Worker
from app.analysis.synthesis.hosts.recording import record
from app.analysis.synthesis.hosts.running import Running
from app.analysis.synthesis.synthesize import Truth
from app.analysis.trace.model import Trace


@dataclass(frozen=True, slots=True, eq=False)
class HostSession:
    """One profiling session of a job as its hosts run it."""

    job: HostJob
    trace: Trace
    # The time of a step is from the end of the one before; the first one's from the start.
    truth: Truth

    @property
    def step_time_s(self) -> float:
        """Return how long its steps took on average, seconds, from end to end."""
        # the first step has no step before whose end could be its begin
        return float(np.mean(self.truth.step_times_s[1:]))


def run(job: HostJob) -> HostSession:
    """Run a job with and without what is wrong with it, and record it."""
    rows = Running(job).rows()
    times = _step_times_s(job, rows)
    healthy = times
    if job != job.healthy:
        healthy = _step_times_s(job, Running(job.healthy).rows())
    causes, workers, stage = _faults(job)
    truth = Truth(
        causes=causes,
        workers=workers,
        stage=stage,
        step_times_s=times,
        healthy_step_times_s=healthy,
        steps=tuple(range(1, job.steps + 1)),
        injections=_dials(job),
    )
    return HostSession(job, record(job, rows), truth)


def _step_times_s(job: HostJob, rows: list[Any]) -> tuple[float, ...]:
    ends = [0.0] * job.steps
    for row in rows:
        ends[row.step] = max(ends[row.step], row.end)
    return tuple((np.diff(ends, prepend=0.0) * 1e-9).tolist())


def _faults(job: HostJob) -> tuple[tuple[str, ...], tuple[Worker, ...], int | None]:
    """Return causes, workers and stage at fault: a stage whose workers are all slow is heavy."""
    slow = tuple(sorted(job.factors, key=lambda worker: -job.factors[worker]))
    stages = {stage for _, stage in slow}
    heavy = len(stages) == 1 and len(slow) == job.dp
    causes, workers = [], list[Worker]()
    if slow:
        causes.append("stage_imbalance" if heavy else "slow_worker")
        workers += [] if heavy else slow
    if job.links:
        causes.append("network")
        workers += [(dp, stage + end) for dp, stage in job.links for end in (0, 1)]
    if job.pauses:
        causes.append("garbage_collection")
    return tuple(causes), tuple(workers), next(iter(stages)) if heavy else None


def _dials(job: HostJob) -> tuple[dict[str, Any], ...]:
    found: list[dict[str, Any]] = [
        {"cause": "computations", "worker": list(worker), "factor": factor}
        for worker, factor in job.factors.items()
    ]
    found += [
        {"cause": "network", "worker": list(worker), "factor": factor}
        for worker, factor in job.links.items()
    ]
    if job.pauses:
        found.append({"cause": "garbage_collection", "pause_ns": job.pause_ns, "share": job.pauses})
    return tuple(found)
