"""DP ranks with different numbers of microbatches, held against an event simulation."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from app.analysis.diagnosis.causes.ranks.uneven_microbatches import UNEVEN_MICROBATCHES
from app.analysis.replay.adaptations.evidence import Name
from app.analysis.replay.session import prepare_replay
from app.analysis.report.build import analyze
from app.analysis.synthesis.injections.microbatches import UnevenMicrobatches
from app.analysis.synthesis.job import JobModel
from app.analysis.trace.model import Sizes
from app.errors import UnanalyzableError
from tests.oracles.dynamic_batches import DynamicBatches
from tests.unit.analysis.diagnosis.jobs import ONE_STAGE, session, signs_of

STEPS = 12


def always(dp: int, few: int, ranks: dict[int, int]) -> np.ndarray:
    counts = np.full((STEPS, dp), few)
    for rank, many in ranks.items():
        counts[:, rank] = many
    return counts


@pytest.mark.parametrize(
    ("dp", "few", "ranks"),
    [
        (8, 4, {5: 6}),
        (8, 4, {0: 6}),
        (8, 1, {3: 6}),
        (4, 20, {2: 24}),
        (16, 3, {1: 4, 9: 5}),
    ],
)
@pytest.mark.parametrize("named", [True, False])
def test_the_rank_with_more_microbatches_is_named(
    dp: int, few: int, ranks: dict[int, int], *, named: bool
) -> None:
    uneven = DynamicBatches(always(dp, few, ranks), named=named)
    even = DynamicBatches(always(dp, few, {}))
    report = analyze(uneven.trace()).report

    assert report.fidelity.verdict
    assert report.steps.dropped == ()
    assert report.coverage.recreated.operations == 0
    assert [cause.cause for cause in report.causes] == ["uneven_microbatches"]
    most = max(ranks, key=lambda rank: ranks[rank])
    assert report.causes[0].where.workers[0] == (most, 0)
    assert {dp for dp, _ in report.causes[0].where.workers} == set(ranks)
    true = uneven.mean_step_s() / even.mean_step_s()
    assert report.headline.slowdown == pytest.approx(true, rel=0.02)
    assert report.recommendations[0].action == "share_microbatches"
    made = [one.adaptation for one in report.fidelity.adaptations]
    assert made[0] == Name.MERGED_MICROBATCHES


@pytest.mark.parametrize("seed", range(6))
def test_ranks_that_take_turns_are_all_of_them_uneven(seed: int) -> None:
    counts = np.random.default_rng(seed).integers(3, 6, (24, 8))
    uneven = DynamicBatches(counts)
    report = analyze(uneven.trace(seed)).report

    assert report.fidelity.verdict
    assert [cause.cause for cause in report.causes] == ["uneven_microbatches"]
    assert report.causes[0].where.workers == ()
    assert "DP ranks run different numbers of microbatches in a step" in report.verdict.sentence
    assert "now one and now another most" in report.causes[0].evidence[0]
    even = DynamicBatches(np.full((24, 8), 4)).mean_step_s() * counts.mean() / 4
    assert report.headline.slowdown == pytest.approx(uneven.mean_step_s() / even, rel=0.03)


def test_a_slow_rank_is_named_as_well() -> None:
    slow = (1.0, 1.4, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0)
    counts = np.random.default_rng(1).integers(3, 6, (24, 8))
    report = analyze(DynamicBatches(counts, slow).trace()).report

    assert {cause.cause for cause in report.causes} == {"uneven_microbatches", "slow_worker"}
    (worker,) = (cause for cause in report.causes if cause.cause == "slow_worker")
    assert worker.where.workers == ((1, 0),)


def test_what_a_rank_has_less_the_others_have_more() -> None:
    uneven, even = always(8, 4, {5: 2}), always(8, 4, {})
    report = analyze(DynamicBatches(uneven).trace()).report
    assert [cause.cause for cause in report.causes] == ["uneven_microbatches"]
    assert report.causes[0].where.workers == ()
    assert report.causes[0].evidence == ("DP rank 5 runs 2 microbatches a step, the others 4",)
    assert report.headline.slowdown == pytest.approx(even.mean() / uneven.mean(), rel=0.02)


def test_a_rank_that_computes_as_long_with_fewer_microbatches_is_as_slow_as_it_is() -> None:
    """As many microbatches are not as much work: their own times are what counts."""
    slow = (1.0, 1.0, 1.5, 1.0)
    report = analyze(DynamicBatches(always(4, 6, {2: 4}), slow).trace()).report
    assert report.headline.slowdown == pytest.approx(1.0, abs=0.02)


def test_synthetic_jobs_have_it_with_their_true_slowdown() -> None:
    job = replace(ONE_STAGE, steps=24)
    synthetic = session(UnevenMicrobatches(4, 2), job=job)
    report = analyze(synthetic.trace).report
    assert [cause.cause for cause in report.causes] == ["uneven_microbatches"]
    assert report.causes[0].where.workers == ((2, 0),)
    assert report.headline.slowdown == pytest.approx(synthetic.truth.slowdown, rel=0.02)


def test_nothing_is_found_where_all_run_as_many() -> None:
    assert UNEVEN_MICROBATCHES.find(signs_of(session(job=ONE_STAGE))) is None
    assert UNEVEN_MICROBATCHES.find(signs_of(session())) is None


def test_lost_operations_are_not_taken_for_fewer_microbatches() -> None:
    job = JobModel(sizes=Sizes(dp=6, pp=1), microbatches=8, steps=16)
    trace = session(job=job).trace
    for name in ("forward-compute", "backward-compute"):
        lost = (trace.op == trace.op_names.index(name)) & (trace.rank == 3) & (trace.order == 7)
        kept = np.flatnonzero(~(lost & (trace.step == trace.step.max())))
        trace = trace.of_rows(kept)
    replayed = prepare_replay(trace)
    assert Name.MERGED_MICROBATCHES not in {made.name for made in replayed.adaptations}
    assert replayed.recreated.total == 2


def test_in_a_pipeline_it_is_said_why_steps_are_left_out() -> None:
    trace = session(job=JobModel(sizes=Sizes(dp=3, pp=2), microbatches=6, steps=8)).trace
    own = (trace.dp == 1) & (trace.order >= 4)
    computes = np.isin(trace.op, [0, 1, *(trace.op_names.index(n) for n in TRANSFERS)])
    with pytest.raises(UnanalyzableError) as refused:
        prepare_replay(trace.of_rows(np.flatnonzero(~(own & computes))))
    assert "DP ranks run different numbers of microbatches, 4 to 6" in str(refused.value.faults[0])


TRANSFERS = ("forward-send", "forward-recv", "backward-send", "backward-recv")
