"""Sessions for tests of pages."""

from __future__ import annotations

import dataclasses
from functools import cache
from typing import TYPE_CHECKING

from app.analysis.synthesis.injections.computations import SlowWorker
from app.analysis.synthesis.job import JobModel
from app.analysis.synthesis.synthesize import synthesize
from app.analysis.trace.model import Sizes
from app.platform.tasks.runs import claim
from app.sessions.analyze import analyze_session
from tests.support.sessions import Stored, store

if TYPE_CHECKING:
    from app.analysis.trace.model import Trace
    from app.platform.container import Container


@cache
def job_trace() -> Trace:
    """Return a session of 4 × 4 workers on hosts, one of them slow."""
    job = JobModel(Sizes(dp=4, pp=4, tp=4), microbatches=8, steps=16, name="dense-34b")
    return synthesize(job, [SlowWorker((0, 0), 2.2)], seed=2).trace


def healthy(seed: int) -> Trace:
    """Return an earlier, healthy session of the same job."""
    job = JobModel(Sizes(dp=4, pp=4, tp=4), microbatches=8, steps=16, name="dense-34b")
    return synthesize(job, seed=seed).trace


def analyzed(container: Container, trace: Trace, job: str) -> Stored:
    """Store a session and analyze it in this process."""
    stored = store(container, trace, job=job)
    held = claim(container, stored.run)
    assert held is not None
    analyze_session(container, held)
    return stored


def without_hosts(trace: Trace) -> Trace:
    """Return a session whose metadata name no hosts."""
    return dataclasses.replace(trace, meta=dataclasses.replace(trace.meta, hosts={}, gpus={}))


def on_long_hosts(trace: Trace) -> Trace:
    """Return a session on hosts with long names, as in clouds."""
    hosts = {
        rank: f"ip-10-0-{rank // 8}-17.us-east-2.compute.internal" for rank in trace.meta.hosts
    }
    return dataclasses.replace(trace, meta=dataclasses.replace(trace.meta, hosts=hosts))
