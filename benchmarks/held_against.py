"""What headlines are held against: the same job without its cause, all other draws as they were.

A model's work does not go away: where a stage is heavy, that is the job with its layers evenly
divided, as much to compute in all.
"""

from __future__ import annotations

from dataclasses import replace

from app.analysis.synthesis.costs import healthy_work
from app.analysis.synthesis.execution import execute
from app.analysis.synthesis.host_sessions import HostSession
from app.analysis.synthesis.host_sessions import run as run_hosts
from app.analysis.synthesis.injections.computations import StageImbalance
from app.analysis.synthesis.program import build_program
from app.analysis.synthesis.synthesize import SyntheticSession, inject, step_numbers
from app.analysis.trace.model import BACKWARD_COMPUTE, FORWARD_COMPUTE


def slowdown_of(session: SyntheticSession | HostSession) -> float:
    """Return how many times as long a job takes as without its causes."""
    if isinstance(session, HostSession):
        return _of_hosts(session)
    heavy = [one for one in session.injections if isinstance(one, StageImbalance)]
    if not heavy:
        return session.truth.slowdown
    job, seed = session.job, session.seed
    program = build_program(job)
    struck, even = (healthy_work(job, program, seed) for _ in range(2))
    struck.numbers = step_numbers(job, seed)
    inject(struck, job, heavy, seed)
    for name in (FORWARD_COMPUTE, BACKWARD_COMPUTE):
        mine = program.of_types(name)
        even.duration_ns[mine] *= struck.duration_ns[mine].sum() / even.duration_ns[mine].sum()
    even_s = execute(even, job.costs.contention).step_times_ns().sum() / 1e9
    return float(sum(session.truth.step_times_s) / even_s)


def _of_hosts(session: HostSession) -> float:
    job = session.job
    if session.truth.stage is None:
        return session.truth.slowdown
    factor = 1 + sum(f - 1 for f in job.factors.values()) / (job.dp * job.pp)
    everybody = {(dp, stage): factor for dp in range(job.dp) for stage in range(job.pp)}
    even = run_hosts(replace(job, factors=everybody))
    return sum(session.truth.step_times_s) / sum(even.truth.step_times_s)
