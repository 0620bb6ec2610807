"""A synthetic job whose hosts send their pulse with current times."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from app.analysis.pulse.columns import Pulses
from app.analysis.pulse.detector import Detector, Record
from app.analysis.pulse.notices import Notice
from app.analysis.synthesis.job import stream
from app.analysis.synthesis.pulse_job import PulseDials, PulseJob, PulseTruth
from app.analysis.synthesis.random_pulses import FAULTS
from app.pulse.body import write_pulse

DIALS = PulseDials(dp=8, pp=2, steps=200, noise=0.02)
STEPS_A_BODY = 10


def slow_job(dials: PulseDials = DIALS) -> tuple[PulseJob, PulseTruth]:
    """Return a job that began as long ago as it lasts, in which a rank becomes slow."""
    rng = stream(7, "a job", "rank")
    job = PulseJob.healthy(dials, rng)
    job.start_ns = time.time_ns() - int(dials.steps * dials.step_s * 1.5e9)
    return job, FAULTS["rank"](job, rng, 120, 1.5)


def slow_for(steps: slice, dials: PulseDials = DIALS, factor: float = 1.5) -> PulseJob:
    """Return a job in which rank 13 is slow in some steps."""
    rng = stream(7, "a job", "rank")
    job = PulseJob.healthy(dials, rng)
    job.start_ns = time.time_ns() - int(dials.steps * dials.step_s * 1.5e9)
    job.computing[steps, 13] *= factor
    return job


def bodies(job: PulseJob, each: int = STEPS_A_BODY) -> Iterator[bytes]:
    """Yield the bodies of the job's hosts, each with a few steps."""
    rows = job.rows()
    hosts = np.array([job.hosts[rank] for rank in rows.rank.tolist()])
    for first in range(0, job.dials.steps, each):
        now = (rows.step >= first) & (rows.step < first + each)
        for host in np.unique(hosts[now]).tolist():
            yield write_pulse(rows.take(now & (hosts == host)), host)


def detected(rows: Pulses, hosts: dict[int, str]) -> tuple[Notice, ...]:
    """Return the notices of the detector for all rows at once."""
    detector, record = Detector(hosts=hosts), Record()
    record.take(detector.advance(rows))
    return record.listed


def shifted(rows: Pulses, by_ns: int) -> Pulses:
    """Return the rows with shifted times."""
    return replace(rows, time_ns=rows.time_ns + by_ns)
