from __future__ import annotations

from dataclasses import replace

import pytest

from app.analysis.diagnosis.causes.context_parallel import CONTEXT_PARALLEL
from app.analysis.synthesis.injections.base import Spells
from app.analysis.synthesis.injections.computations import ContextParallelStraggler
from app.analysis.synthesis.job import JobModel, Profiler
from app.analysis.trace.model import Sizes
from tests.oracles.physics.world import World
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
from tests.unit.analysis.diagnosis.second_physics import PLAIN, names, report_of

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
    assert not where(diagnosis).ranks
    assert not where(diagnosis).workers
    # The work that the last rank lacks is added to the other ranks.
    alone = CONTEXT_PARALLEL.find(signs_of(session(everywhere[0], job=CONTEXT)))
    assert alone is not None
    node = next(iter(alone.change.less_ns))
    saved, of_one = finding.change.less_ns[node][:, 0], alone.change.less_ns[node][:, 0]
    assert saved.mean() == pytest.approx(0.75 * of_one.mean(), rel=0.1)


@pytest.mark.parametrize("graded", [True, False])
def test_a_single_group_tells_a_division_by_how_long_the_other_ranks_wait(*, graded: bool) -> None:
    def strike(world: World) -> None:
        more = [0.7, 0.9, 1.1, 1.3] if graded else [1.0, 1.0, 1.0, 1.5]
        for rank, factor in enumerate(more):
            world.context_s[rank] *= factor

    report, slowdown = report_of(replace(PLAIN, dp=1, pp=1, cp=4), strike)

    assert names(report) == ["context_parallel_straggler"]
    assert report.headline.slowdown == pytest.approx(slowdown, rel=0.03)
    action = "divide_sequences" if graded else "replace_rank"
    assert report.recommendations[0].action == action


@pytest.mark.parametrize("factors", [(1.0, 1.5), (0.8, 1.2)])
def test_a_single_group_of_two_does_not_tell_and_its_interval_has_room_for_both(
    factors: tuple[float, float],
) -> None:
    def strike(world: World) -> None:
        for rank, factor in enumerate(factors):
            world.context_s[rank] *= factor

    report, slowdown = report_of(replace(PLAIN, dp=1, pp=1, cp=2, steps=24), strike)

    assert names(report) == ["context_parallel_straggler"]
    assert report.causes[0].confidence is not None
    assert report.causes[0].confidence <= 0.85
    assert report.headline.ci95 is not None
    low, high = report.headline.ci95
    assert low < slowdown < high


def test_a_job_with_context_parallel_ranks_gets_a_note_that_they_are_not_seen() -> None:
    job = replace(JOB, sizes=Sizes(dp=2, pp=2, cp=2))
    diagnosis = diagnosed(session(job=job))

    reason = "no context-parallel operations recorded"
    assert diagnosis.unjudged["context_parallel_straggler"] == reason


def test_a_job_without_them_gets_no_note() -> None:
    assert CONTEXT_PARALLEL.cannot_judge(signs_of(session())) is None
    assert CONTEXT_PARALLEL.cannot_judge(signs_of(session(job=CONTEXT))) is None
