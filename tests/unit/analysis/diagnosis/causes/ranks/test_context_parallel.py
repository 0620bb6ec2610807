from __future__ import annotations

from dataclasses import replace

from app.analysis.diagnosis.causes.ranks.context_parallel import CONTEXT_PARALLEL
from app.analysis.trace.model import Sizes
from tests.unit.analysis.diagnosis.jobs import JOB, diagnosed, session, signs_of


def test_a_job_with_context_parallel_ranks_is_told_that_they_are_not_seen() -> None:
    job = replace(JOB, sizes=Sizes(dp=2, pp=2, cp=2))
    diagnosis = diagnosed(session(job=job))

    reason = "no context-parallel operations recorded"
    assert diagnosis.unjudged["context_parallel_straggler"] == reason


def test_a_job_without_them_is_told_nothing() -> None:
    assert CONTEXT_PARALLEL.cannot_judge(signs_of(session())) is None
