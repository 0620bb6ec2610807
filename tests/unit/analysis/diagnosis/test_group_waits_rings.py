"""Rings of context-parallel ranks, compared with a separate event simulation."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from app.analysis.replay.session import prepare_replay
from app.analysis.report.build import analyze
from app.analysis.trace.parallelism import busiest_ranks, own_compute_times
from tests.factories import select
from tests.oracles.rings import Rings

EVEN = Rings(dp=2, cp=4, work=(1.0,) * 8)


def slow(job: Rings, rank: int, factor: float) -> Rings:
    work = list(job.work)
    work[rank] *= factor
    return replace(job, work=tuple(work))


@pytest.mark.parametrize(
    ("job", "rank", "factor"),
    [
        (EVEN, 6, 1.5),
        (EVEN, 4, 1.5),
        (EVEN, 0, 1.25),
        (replace(EVEN, microbatches=3), 3, 1.4),
        (Rings(dp=3, cp=2, work=(1.0,) * 6), 3, 1.6),
        (Rings(dp=2, cp=8, work=(1.0,) * 16), 13, 1.3),
        (Rings(dp=4, cp=4, work=(1.0,) * 16, steps=24), 9, 2.0),
    ],
)
def test_the_slow_rank_is_named_and_not_the_lowest(job: Rings, rank: int, factor: float) -> None:
    sick = slow(job, rank, factor)
    report = analyze(sick.trace()).report

    assert report.fidelity.verdict
    assert [cause.cause for cause in report.causes] == ["context_parallel_straggler"]
    assert report.causes[0].where.ranks == (rank,)
    assert report.causes[0].where.workers == ((rank // job.cp, 0),)
    assert f"rank {rank} on node-{rank:02d}" in report.verdict.sentence
    true = sick.mean_step_s() / job.mean_step_s()
    assert report.headline.slowdown == pytest.approx(true, rel=0.02)


@pytest.mark.parametrize(
    "work",
    [(0.25, 0.75, 1.25, 1.75), (1.75, 1.25, 0.75, 0.25), (0.6, 0.8, 1.2, 1.4)],
    ids=["causal", "backwards", "weaker"],
)
def test_unevenly_divided_sequences_are_distinguished_from_slow_ranks(
    work: tuple[float, ...],
) -> None:
    uneven = replace(EVEN, work=work * 2)
    report = analyze(uneven.trace()).report

    assert report.fidelity.verdict
    assert [cause.cause for cause in report.causes] == ["context_parallel_straggler"]
    assert report.causes[0].where.ranks == ()
    assert report.recommendations[0].action == "divide_sequences"
    true = uneven.mean_step_s() / EVEN.mean_step_s()
    assert report.headline.slowdown == pytest.approx(true, rel=0.03)


def test_no_rank_is_blamed_in_an_even_ring() -> None:
    report = analyze(EVEN.trace()).report
    assert report.causes == ()
    assert report.headline.slowdown == pytest.approx(1.0, abs=0.02)


@pytest.mark.parametrize("left", [(0, 1, 2, 3, 4, 5, 7), (0, 7), (0, 4)])
def test_no_rank_is_blamed_for_its_waiting_for_a_slow_one_that_is_missing(
    left: tuple[int, ...],
) -> None:
    trace = slow(EVEN, 6, 1.5).trace()
    report = analyze(select(trace, np.isin(trace.rank, left))).report
    assert {cause.cause for cause in report.causes} <= {"unknown"}


def test_the_slow_rank_is_named_where_others_of_its_ring_are_missing() -> None:
    trace = slow(EVEN, 6, 1.5).trace()
    report = analyze(select(trace, np.isin(trace.rank, (0, 6)))).report
    assert [cause.cause for cause in report.causes] == ["slow_worker"]
    assert report.causes[0].where.workers == ((1, 0),)


def test_what_ranks_wait_for_inside_is_not_computing() -> None:
    trace = slow(EVEN, 6, 1.5).trace()
    rows, own_ns = own_compute_times(trace)
    taken_ns = trace.duration_ns[rows]
    forwards = trace.op[rows] == trace.op_names.index("forward-compute")
    of_six, of_five = (forwards & (trace.rank[rows] == rank) for rank in (6, 5))
    assert np.median(own_ns[of_six]) == pytest.approx(3 * 7.5e6, rel=0.02)
    assert np.median(own_ns[of_five]) == pytest.approx(3 * 5e6, rel=0.02)
    assert np.median(taken_ns[of_five]) > 1.3 * np.median(own_ns[of_five])


def test_a_cell_is_analyzed_from_the_rank_that_computes_longest() -> None:
    trace = slow(slow(EVEN, 6, 1.5), 1, 1.2).trace()
    assert busiest_ranks(trace).tolist() == [[1], [6]]
    assert prepare_replay(trace).layout.ranks.tolist() == [[1], [6]]


def test_without_what_is_passed_on_the_lowest_rank_stands_for_its_cell() -> None:
    trace = replace(slow(EVEN, 6, 1.5), recorded=False).trace()
    assert prepare_replay(trace).layout.ranks.tolist() == [[0], [4]]
