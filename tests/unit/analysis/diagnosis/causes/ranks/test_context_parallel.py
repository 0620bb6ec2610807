from __future__ import annotations

from dataclasses import replace

import pytest

from app.analysis.diagnosis.causes.ranks.context_parallel import CONTEXT_PARALLEL
from app.analysis.synthesis.injections.base import Spells
from app.analysis.synthesis.injections.ranks import ContextParallelStraggler
from app.analysis.synthesis.job import JobModel, Profiler
from app.analysis.trace.model import Sizes
from tests.unit.analysis.diagnosis.jobs import (
    JOB,
    causes,
    check_named_alone,
    diagnosed,
    evidence,
    session,
    signs_of,
    where,
)

CONTEXT = replace(
    JOB, sizes=Sizes(dp=3, pp=2, cp=4), profiler=Profiler(context_ranks=True), steps=14
)
SLOW = ContextParallelStraggler((2, 1), 3, 1.6)


@pytest.mark.parametrize(
    ("injection", "job"),
    [
        (SLOW, CONTEXT),
        (SLOW, replace(CONTEXT, sizes=Sizes(dp=3, pp=2, cp=4, tp=2))),
        (ContextParallelStraggler((2, 1), 3, 1.9, Spells(share=0.6)), CONTEXT),
    ],
    ids=["always", "tensor-parallel as well", "spells"],
)
def test_it_is_named_alone_with_its_place_and_most_of_the_lost_time(
    injection: ContextParallelStraggler, job: JobModel
) -> None:
    check_named_alone(injection, job)


def test_it_is_named_by_its_global_rank() -> None:
    diagnosis = diagnosed(session(SLOW, job=CONTEXT))

    rank = CONTEXT.traced_rank(2, 1, cp=3)
    assert where(diagnosis).ranks == (rank,)
    assert f"global rank {rank}" in evidence(diagnosis)


def test_nothing_is_found_in_a_healthy_job() -> None:
    assert CONTEXT_PARALLEL.find(signs_of(session(job=CONTEXT))) is None
    assert CONTEXT_PARALLEL.find(signs_of(session())) is None


def test_where_the_same_rank_of_every_group_is_late_sequences_are_divided_unevenly() -> None:
    everywhere = [ContextParallelStraggler((dp, pp), 3, 1.6) for dp in range(3) for pp in range(2)]
    synthetic = session(*everywhere, job=CONTEXT)
    finding = CONTEXT_PARALLEL.find(signs_of(synthetic))
    diagnosis = diagnosed(synthetic)

    assert finding is not None
    assert causes(diagnosis) == ["context_parallel_straggler"]
    assert "6 of 6 groups wait for the same one of their ranks" in evidence(diagnosis)
    # What the last rank does less the others do more.
    alone = CONTEXT_PARALLEL.find(signs_of(session(everywhere[0], job=CONTEXT)))
    assert alone is not None
    node = next(iter(alone.change.less_ns))
    saved, of_one = finding.change.less_ns[node][:, 0], alone.change.less_ns[node][:, 0]
    assert saved.mean() == pytest.approx(0.75 * of_one.mean(), rel=0.1)


def test_a_job_with_context_parallel_ranks_is_told_that_they_are_not_seen() -> None:
    job = replace(JOB, sizes=Sizes(dp=2, pp=2, cp=2))
    diagnosis = diagnosed(session(job=job))

    reason = "no context-parallel operations recorded"
    assert diagnosis.unjudged["context_parallel_straggler"] == reason


def test_a_job_without_them_is_told_nothing() -> None:
    assert CONTEXT_PARALLEL.cannot_judge(signs_of(session())) is None
    assert CONTEXT_PARALLEL.cannot_judge(signs_of(session(job=CONTEXT))) is None
