"""Sessions and named scenarios of host-executed jobs, recorded by hooks around host calls.

Unlike other synthetic jobs, these do not follow the what-if paper: each rank
makes one call after another, exchanges return when transferred, and steps overlap.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from app.analysis.synthesis.host_jobs import HostJob, Posting, Row, Running, Worker
from app.analysis.synthesis.job import MS, stream
from app.analysis.synthesis.synthesize import Truth
from app.analysis.trace import model as ops
from app.analysis.trace.model import KNOWN_OP_TYPES, SessionMeta, Trace

# Time at which recordings start, nanoseconds since the epoch.
_BEGIN_NS: Final = 1_760_000_000_000_000_000
_LATE_NS: Final = 1000.0


def record(job: HostJob, rows: list[Row]) -> Trace:
    """Return the recorded operations of a job as a trace."""
    if job.late_ends:
        _take_late(rows)
    codes = {name: code for code, name in enumerate(KNOWN_OP_TYPES)}
    rows = sorted(rows, key=lambda r: (r.worker[1], r.worker[0], r.step, codes[r.op], r.start))
    order: list[int] = []
    for number, row in enumerate(rows):
        before = rows[number - 1]
        alike = number and (before.worker, before.step, before.op) == (row.worker, row.step, row.op)
        order.append(order[-1] + 1 if alike else 0)

    def column(dtype: Any, values: Iterable[float]) -> Any:  # noqa: ANN401 - NumPy's own types
        return np.array(list(values), dtype=dtype)

    extra = {"layers": list(job.layers)} if job.layers else {}
    return Trace(
        meta=SessionMeta(job.sizes, trial_name=job.name, extra=extra),
        op_names=KNOWN_OP_TYPES,
        rank=column(np.int32, (r.worker[1] * job.dp + r.worker[0] for r in rows)),
        dp=column(np.int32, (r.worker[0] for r in rows)),
        pp=column(np.int32, (r.worker[1] for r in rows)),
        step=column(np.int64, (r.step + 1 for r in rows)),
        op=column(np.int16, (codes[r.op] for r in rows)),
        mb=column(np.int32, (r.mb for r in rows)),
        mc=column(np.int32, (r.mc for r in rows)),
        order=np.array(order, dtype=np.int32),
        start_ns=column(np.int64, (_BEGIN_NS + round(r.start) for r in rows)),
        duration_ns=column(np.int64, (round(r.end - r.start) for r in rows)),
        step_relative=False,
    )


def _take_late(rows: list[Row]) -> None:
    """Move the end of every send to the time at which its rank has computed the whole step."""
    done: dict[tuple[Worker, int], float] = {}
    for row in rows:
        if row.op == ops.BACKWARD_COMPUTE:
            key = (row.worker, row.step)
            done[key] = max(done.get(key, 0.0), row.end)
    for row in rows:
        if row.op in {ops.FORWARD_SEND, ops.BACKWARD_SEND}:
            row.end = max(row.end, done[row.worker, row.step] + _LATE_NS)


@dataclass(frozen=True, slots=True, eq=False)
class HostSession:
    """A profiling session of a host-executed job."""

    job: HostJob
    trace: Trace
    # A step lasts from the end of the step before; the first step lasts from the start.
    truth: Truth

    @property
    def step_time_s(self) -> float:
        """Return the mean time from the end of one step to the end of the next, seconds."""
        return float(np.mean(self.truth.step_times_s[1:]))


def run(job: HostJob) -> HostSession:
    """Execute a job with and without its faults; return the session of the faulty execution."""
    rows = Running(job).rows()
    times = _step_times_s(job, rows)
    healthy = times
    if job != job.healthy:
        healthy = _step_times_s(job, Running(job.healthy).rows())
    causes, workers, stage = _faults(job)
    faults: list[dict[str, Any]] = [
        {"cause": "computations", "worker": list(worker), "factor": factor}
        for worker, factor in job.factors.items()
    ]
    faults += [
        {"cause": "network", "worker": list(worker), "factor": factor}
        for worker, factor in job.links.items()
    ]
    if job.pauses:
        faults.append(
            {"cause": "garbage_collection", "pause_ns": job.pause_ns, "share": job.pauses}
        )
    truth = Truth(
        causes=causes,
        workers=workers,
        stage=stage,
        step_times_s=times,
        healthy_step_times_s=healthy,
        steps=tuple(range(1, job.steps + 1)),
        injections=tuple(faults),
    )
    return HostSession(job, record(job, rows), truth)


def _step_times_s(job: HostJob, rows: list[Any]) -> tuple[float, ...]:
    ends = [0.0] * job.steps
    for row in rows:
        ends[row.step] = max(ends[row.step], row.end)
    return tuple((np.diff(ends, prepend=0.0) * 1e-9).tolist())


def _faults(job: HostJob) -> tuple[tuple[str, ...], tuple[Worker, ...], int | None]:
    """Return the causes, the workers and the stage at fault."""
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


_FACTOR: Final = 1.8


@dataclass(frozen=True, slots=True)
class HostScenario:
    """A host-executed job with a slow worker or garbage collection."""

    name: str  # as in ``paceline synth NAME``
    summary: str  # one sentence for a person
    job: HostJob
    stage: int | None = None  # where the slow worker is; anywhere where not given

    def synthesize(self, seed: int, fault_seed: int | None = None) -> HostSession:
        """Return a session of the scenario; equal seeds give equal sessions.

        Parameters
        ----------
        fault_seed : int, optional
            Seed of the worker at fault; by default `seed`.
        """
        rng = stream(seed if fault_seed is None else fault_seed, "scenario", self.name)
        drawn = int(rng.integers(self.job.pp))
        worker = (int(rng.integers(self.job.dp)), drawn if self.stage is None else self.stage)
        factors = {} if self.job.pauses else {worker: _FACTOR}
        return run(replace(self.job, factors=factors, seed=seed, name=self.name))


_PLAIN: Final = HostJob(
    dp=4,
    pp=4,
    microbatches=12,
    steps=12,
    noise=0.01,
    worker_noise=0.003,
    wire_noise=0.05,
)

_SCENARIOS: Final = (
    HostScenario(
        "blocking-transfers",
        "A slow worker; hosts wait for each transfer, which takes 20 ms.",
        replace(_PLAIN, wire_ns=20 * MS),
    ),
    HostScenario(
        "windowed-transfers",
        "A slow worker on the first stage; receives are posted two microbatches ahead.",
        replace(_PLAIN, wire_ns=15 * MS, posting=Posting.WINDOWED, window=2),
        # On later stages, late data overlaps with other work, which would hide a slow worker.
        stage=0,
    ),
    HostScenario(
        "overlapping-steps",
        "A slow worker; nothing ends a step on all stages together.",
        replace(_PLAIN, barrier=False),
    ),
    HostScenario(
        "nested-gathers",
        "A slow worker; computations wait inside for parameters, as with FSDP.",
        replace(_PLAIN, gathers=True),
    ),
    HostScenario(
        "nested-collections",
        "Garbage is collected inside of forwards, and recorded there.",
        replace(_PLAIN, pause_ns=220 * MS, pauses=0.02),
    ),
    HostScenario(
        "late-ends",
        "A slow worker; sends are recorded until the step's end.",
        replace(_PLAIN, late_ends=True),
    ),
    HostScenario(
        "handover-delays",
        "A slow worker; computations begin 4 ms after their input, and transfers are not recorded.",
        replace(_PLAIN, handover_ns=4 * MS, transfers=False, wire_ns=0.0),
    ),
    HostScenario(
        "v-shaped",
        "A slow worker; microbatches turn back at the last stage.",
        replace(_PLAIN, v_shaped=True),
    ),
)

# Scenarios with ways of running that the dependency model of the paper does not cover.
HOST_SCENARIOS: Final[Mapping[str, HostScenario]] = {
    scenario.name: scenario for scenario in _SCENARIOS
}
