from __future__ import annotations

import numpy as np
import pytest

from app.analysis.replay.missing_operations import with_stand_ins
from app.analysis.report.build import analyze
from app.analysis.report.document import Report
from app.analysis.synthesis.injections.base import Spells
from app.analysis.synthesis.injections.computations import SlowWorker
from app.analysis.trace.model import Trace
from app.errors import UnanalyzableError
from tests.factories import select, session


def without(trace: Trace, *workers: tuple[int, int]) -> Trace:
    """Return a trace without some workers, given as (DP rank, stage)."""
    kept = np.ones(len(trace), dtype=bool)
    for dp, pp in workers:
        kept &= (trace.dp != dp) | (trace.pp != pp)
    return select(trace, kept)


def reports(trace: Trace, *workers: tuple[int, int]) -> tuple[Report, Report]:
    """Return the report of a trace, and the report without some workers."""
    return analyze(trace).report, analyze(without(trace, *workers)).report


@pytest.mark.parametrize("steps", [1, 8])
@pytest.mark.parametrize("gone", [[(3, 0), (3, 1)], [(3, 1)], [(2, 0), (3, 1)]])
def test_a_slow_worker_is_named_though_others_are_missing(
    gone: list[tuple[int, int]], steps: int
) -> None:
    trace = session(SlowWorker((1, 1), 1.5), dp=4, pp=2, steps=steps).trace
    full, found = reports(trace, *gone)
    assert found.headline.slowdown == pytest.approx(full.headline.slowdown, rel=0.03)
    assert (found.causes[0].cause, found.causes[0].where.workers) == ("slow_worker", ((1, 1),))
    assert (found.coverage.ranks_expected, found.coverage.ranks_present) == (8, 8 - len(gone))
    assert [one.worker for one in found.coverage.missing] == gone
    # Missing ranks are listed by stage.
    assert [one.rank for one in found.coverage.missing] == [pp * 4 + dp for dp, pp in gone]
    assert found.coverage.recreated.operations == 0
    assert found.clocks.warnings == full.clocks.warnings


def test_a_missing_rank_runs_as_many_microbatches_as_the_others() -> None:
    trace = session(dp=4, pp=1, microbatches=1, steps=3).trace
    _, found = reports(trace, (2, 0))
    assert (found.verdict.level, found.causes) == ("ok", ())


@pytest.mark.parametrize("gone", [[(1, 1)], [(0, 0), (1, 1)], [(1, 0), (1, 1)]])
def test_waiting_for_a_slow_rank_that_is_missing_blames_no_network(
    gone: list[tuple[int, int]],
) -> None:
    _, found = reports(session(SlowWorker((1, 1), 1.5), dp=2, pp=2, steps=8).trace, *gone)
    assert [cause.cause for cause in found.causes if cause.cause != "unknown"] == []
    assert "missing" in found.verdict.sentence


def test_a_stage_whose_peers_are_missing_is_heavy_or_has_a_slow_worker() -> None:
    _, found = reports(session(SlowWorker((1, 1), 1.5), dp=2, pp=2, steps=8).trace, (0, 1))
    assert "uneven cost or a slow worker" in found.verdict.sentence
    (cause,) = found.causes
    assert (cause.cause, cause.where.stage) == ("stage_imbalance", 1)
    assert cause.confidence is not None
    assert cause.confidence < 0.9


@pytest.mark.parametrize("gone", [[(2, 0), (2, 1)], [(0, 1)]])
def test_a_healthy_job_is_healthy_without_a_rank(gone: list[tuple[int, int]]) -> None:
    _, found = reports(session(dp=4, pp=2, steps=1).trace, *gone)
    assert (found.verdict.level, found.causes) == ("ok", ())
    assert found.headline.slowdown <= 1.03
    assert " missing" in found.verdict.sentence


def test_a_missing_rank_that_is_always_slow_leaves_open_how_slow() -> None:
    full, found = reports(session(SlowWorker((3, 0), 1.5), dp=4, pp=1, steps=8).trace, (3, 0))
    assert found.causes == ()
    assert "no straggler among the ranks that are there" in found.verdict.sentence
    (missing,) = found.coverage.missing
    assert missing.came_last == ()
    assert missing.awaited_s is not None
    step_s = np.mean(found.step_times.recorded)
    assert missing.awaited_s > (1 - 1 / full.headline.slowdown) * step_s
    assert "rank 3 is missing, and the others are in collectives with it for" in (
        found.verdict.sentence
    )


def test_a_missing_rank_that_is_slow_at_times_is_found_by_those_that_waited() -> None:
    trace = session(SlowWorker((3, 0), 1.5, Spells(share=0.3)), dp=4, pp=1, steps=12)
    full, found = reports(trace.trace, (3, 0))
    assert found.headline.slowdown == pytest.approx(full.headline.slowdown, rel=0.03)
    (cause,) = found.causes
    assert (cause.cause, cause.where.workers) == ("slow_worker", ((3, 0),))
    assert cause.confidence == 0.8
    (missing,) = found.coverage.missing
    assert missing.came_last == trace.truth.slow_steps
    assert "rank 3 is missing, and came last in steps" in found.verdict.sentence


def test_a_complete_trace_stays_the_same_object() -> None:
    trace = session(dp=2, pp=2, steps=2).trace
    found, absent = with_stand_ins(trace)
    assert found is trace
    assert absent.workers == ()


def test_a_stand_in_has_the_times_of_a_typical_rank() -> None:
    trace = session(SlowWorker((0, 0), 1.5), dp=4, pp=1, steps=3).trace
    found, absent = with_stand_ins(without(trace, (2, 0)))
    assert absent.workers == ((2, 0),)
    stand_in = select(found, found.dp == 2)
    typical = [
        dp
        for dp in (0, 1, 3)
        if np.array_equal(select(found, found.dp == dp).start_ns, stand_in.start_ns)
    ]
    assert typical in ([1], [3])
    assert set(stand_in.rank.tolist()) == {2}


def test_a_stage_that_no_rank_recorded_cannot_be_replayed() -> None:
    trace = session(dp=3, pp=2, steps=3).trace
    with pytest.raises(UnanalyzableError, match="No DP rank of stage 1 is there") as caught:
        with_stand_ins(without(trace, (0, 1), (1, 1), (2, 1)))
    assert caught.value.stable_code == "trace.rank_missing"
    assert len(caught.value.faults) == 3


def test_one_worker_alone_has_no_other_to_be_compared_with() -> None:
    trace = session(dp=2, pp=1, steps=3).trace
    with pytest.raises(UnanalyzableError, match="A straggler is a comparison") as caught:
        with_stand_ins(without(trace, (1, 0)))
    assert caught.value.stable_code == "trace.rank_missing"


def test_one_worker_alone_has_its_breakdown_and_no_verdict() -> None:
    report = analyze(without(session(dp=2, pp=1, steps=1).trace, (0, 0))).report
    assert (report.verdict.level, report.fidelity.replayed) == ("none", False)
    assert report.arrivals is None
    assert report.breakdown is not None
    (rank,) = report.breakdown.ranks
    parts = (rank.computing_s, rank.communication_s, rank.data_s, rank.idle_s)
    assert sum(parts) == pytest.approx(report.breakdown.step_s)
    assert report.verdict.sentence.startswith("Rank 1 spends steps of ")
    assert "A straggler is a comparison" in report.verdict.sentence
    assert [one.rank for one in report.coverage.missing] == [0]


def test_without_a_stage_only_arrivals_are_known() -> None:
    trace = session(SlowWorker((2, 0), 1.5), dp=3, pp=2, steps=4).trace
    report = analyze(without(trace, (0, 1), (1, 1), (2, 1))).report
    assert (report.verdict.level, report.fidelity.replayed) == ("none", False)
    assert report.arrivals is not None
    assert "No DP rank of stage 1 is there" in report.verdict.sentence
    assert report.coverage.ranks_present == 3
