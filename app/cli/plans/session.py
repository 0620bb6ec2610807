"""`paceline plan --session`: a trace in, the plan of its whole job next to how it runs."""

from __future__ import annotations

import time
from pathlib import Path

from app.analysis.diagnosis.observation import Observation
from app.analysis.mitigation.running import running_job
from app.analysis.planning.job.model import JobSpec
from app.analysis.planning.search.budget import SearchBudget
from app.analysis.replay.session import prepare_replay
from app.analysis.report.build import analyze
from app.cli.plans.job import plan_whole_job
from app.cli.sessions.analyze import read_trace
from app.errors import UnanalyzableError
from app.inputs.plans.session import session_job, spec_of_session
from app.inputs.plans.spec import parse_any_spec


def plan_trace(path: Path, meta: Path | None, time_limit: float | None, *, as_json: bool) -> None:
    """Plan the whole job that a trace shows and print what came out."""
    trace = read_trace(path, meta)
    job = session_job(trace.meta)
    running = running_job(Observation(trace, prepare_replay(trace).main), job.layers)
    if running is None:
        raise UnanalyzableError(
            "stages do not all compute the same microbatches, forward and backward",
            code="plan.not_measured",
        )
    recorded = analyze(trace).report.step_times.recorded
    spec = parse_any_spec(spec_of_session(job, running, sum(recorded) / len(recorded)))
    assert isinstance(spec, JobSpec)  # noqa: S101 - it has a global batch
    deadline = None if time_limit is None else time.monotonic() + time_limit
    plan_whole_job(spec, SearchBudget(time.monotonic, deadline), as_json=as_json)
