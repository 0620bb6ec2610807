"""DP ranks with different numbers of microbatches, compared with an event simulation."""

from __future__ import annotations

from dataclasses import asdict, replace

import numpy as np
import pytest

from app.analysis.diagnosis.causes.uneven_microbatches import UNEVEN_MICROBATCHES
from app.analysis.replay.adaptations.kind import Name
from app.analysis.replay.session import prepare_replay
from app.analysis.report.build import analyze
from app.analysis.report.charts import step_timeline
from app.analysis.synthesis.injections.computations import UnevenMicrobatches
from app.analysis.synthesis.job import JobModel
from app.analysis.trace.model import ABSENT, Sizes, Trace
from tests.schedules import Job, executed
from tests.unit.analysis.diagnosis.jobs import ONE_STAGE, session, signs_of

STEPS = 12


# computations of 20 ms, transfers of 0.5 ms
PIPELINE = Job("1f1b", dp=6, pp=4, compute_ns=20_000_000, transfer_ns=500_000)
INTERLEAVED = replace(PIPELINE, schedule="interleaved", dp=4, pp=2, vpp=2)
SLOW = ((1, 1), 1.5)
# gradients are reduced once, at the end of a step
DATA_PARALLEL = Job(
    dp=8,
    pp=1,
    compute_ns=20_000_000,
    transfer_ns=5_000_000,
    types=frozenset({"grads-reduce-scatter", "optimizer"}),
)


def data_parallel(
    counts: np.ndarray, slow: tuple[tuple[int, int], float] | None = None, seed: int = 0
) -> tuple[Trace, float]:
    """Return the trace of ranks with counts of microbatches (steps, dp), and the mean step in s."""
    job = replace(
        DATA_PARALLEL, dp=counts.shape[1], counts=tuple(map(tuple, counts.tolist())), slow=slow
    )
    trace, times = executed(job, steps=len(counts), seed=seed)
    return trace, float(np.mean(times)) / 1e9


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
    trace, uneven_s = data_parallel(always(dp, few, ranks))
    _, even_s = data_parallel(always(dp, few, {}))
    if not named:
        trace = replace(trace, mb=np.full_like(trace.mb, ABSENT))
    report = analyze(trace).report

    assert report.fidelity.verdict
    assert report.steps.dropped == ()
    assert report.coverage.recreated.operations == 0
    assert [cause.cause for cause in report.causes] == ["uneven_microbatches"]
    most = max(ranks, key=lambda rank: ranks[rank])
    assert report.causes[0].where.workers[0] == (most, 0)
    assert {dp for dp, _ in report.causes[0].where.workers} == set(ranks)
    assert report.headline.slowdown == pytest.approx(uneven_s / even_s, rel=0.02)
    assert report.recommendations[0].action == "share_microbatches"
    made = [one.adaptation for one in report.fidelity.adaptations]
    assert made[0] == Name.PADDED_MICROBATCHES


@pytest.mark.parametrize("seed", range(6))
def test_ranks_that_take_turns_are_all_of_them_uneven(seed: int) -> None:
    counts = np.random.default_rng(seed).integers(3, 6, (24, 8))
    trace, uneven_s = data_parallel(counts, seed=seed)
    report = analyze(trace).report

    assert report.fidelity.verdict
    assert [cause.cause for cause in report.causes] == ["uneven_microbatches"]
    assert report.causes[0].where.workers == ()
    assert "DP ranks run different numbers of microbatches in a step" in report.verdict.sentence
    assert "now one and now another most" in report.causes[0].evidence[0]
    even_s = data_parallel(np.full((24, 8), 4))[1] * counts.mean() / 4
    assert report.headline.slowdown == pytest.approx(uneven_s / even_s, rel=0.03)


def test_a_slow_rank_is_named_as_well() -> None:
    counts = np.random.default_rng(1).integers(3, 6, (24, 8))
    report = analyze(data_parallel(counts, ((1, 0), 1.4))[0]).report

    assert {cause.cause for cause in report.causes} == {"uneven_microbatches", "slow_worker"}
    (worker,) = (cause for cause in report.causes if cause.cause == "slow_worker")
    assert worker.where.workers == ((1, 0),)


def test_what_a_rank_has_less_the_others_have_more() -> None:
    uneven, even = always(8, 4, {5: 2}), always(8, 4, {})
    report = analyze(data_parallel(uneven)[0]).report
    assert [cause.cause for cause in report.causes] == ["uneven_microbatches"]
    assert report.causes[0].where.workers == ()
    assert report.causes[0].evidence == ("DP rank 5 runs 2 microbatches a step, the others 4",)
    assert report.headline.slowdown == pytest.approx(even.mean() / uneven.mean(), rel=0.02)


def test_a_rank_that_computes_as_long_with_fewer_microbatches_is_as_slow_as_it_is() -> None:
    """Equal numbers of microbatches need not be equal work, so a rank's own times decide."""
    report = analyze(data_parallel(always(4, 6, {2: 4}), ((2, 0), 1.5))[0]).report
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
    assert Name.PADDED_MICROBATCHES not in {made.name for made in replayed.adaptations}
    assert replayed.recreated.total == 2


def counts_of(
    job: Job, few: int, ranks: dict[int, int] | None = None, seed: int = 0
) -> tuple[tuple[int, ...], ...]:
    """Return the ranks' constant counts; without any, random ones up to twice as large."""
    counts = np.full((STEPS, job.dp), few)
    if ranks is None:
        of = job.pp if job.vpp > 1 else 1
        drawn = np.random.default_rng(seed).integers(few // of, 2 * few // of + 1, counts.shape)
        counts = drawn * of
    for rank, many in (ranks or {}).items():
        counts[:, rank] = many
    return tuple(tuple(row) for row in counts.tolist())


def even_step_s(job: Job, many: float) -> float:
    """Return the step with equal counts; for a fractional count, interpolated between neighbors."""
    of = job.pp if job.vpp > 1 else 1
    few = int(many // of) * of
    share = (many - few) / of
    steps = [
        float(np.mean(executed(replace(job, counts=(), microbatches=count), steps=STEPS)[1]))
        for count in (few, few + of)
    ]
    return (steps[0] * (1 - share) + steps[1] * share) / 1e9


@pytest.mark.parametrize("job", [PIPELINE, INTERLEAVED], ids=["1f1b", "interleaved"])
def test_in_a_pipeline_the_rank_with_more_is_named_on_all_stages(job: Job) -> None:
    uneven = replace(job, counts=counts_of(job, 8, {2: 12}))
    trace, times = executed(uneven, steps=STEPS)
    report = analyze(trace).report

    assert report.fidelity.verdict
    assert report.steps.dropped == ()
    assert [cause.cause for cause in report.causes] == ["uneven_microbatches"]
    assert report.causes[0].where.workers == tuple((2, pp) for pp in range(job.pp))
    true = float(np.mean(times)) / 1e9 / even_step_s(job, 8)
    assert report.headline.slowdown == pytest.approx(true, rel=0.01)
    assert report.recommendations[0].action == "share_microbatches"
    assert report.recommendations[0].predicted_gain == pytest.approx(1 - 1 / true, abs=0.01)
    assert "DP rank 2 runs more microbatches" in report.verdict.sentence


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("job", [PIPELINE, INTERLEAVED], ids=["1f1b", "interleaved"])
def test_in_a_pipeline_ranks_take_turns(job: Job, seed: int) -> None:
    uneven = replace(job, counts=counts_of(job, 4, seed=seed))
    trace, times = executed(uneven, steps=STEPS, seed=seed)
    report = analyze(trace).report

    assert [cause.cause for cause in report.causes] == ["uneven_microbatches"]
    assert report.causes[0].where.workers == ()
    true = float(np.mean(times)) / 1e9 / even_step_s(job, float(np.mean(uneven.counts)))
    assert report.headline.slowdown == pytest.approx(true, rel=0.01)


@pytest.mark.parametrize("job", [PIPELINE, INTERLEAVED], ids=["1f1b", "interleaved"])
@pytest.mark.parametrize("ranks", [None, {1: 8}, {2: 8}], ids=["turns", "itself", "another"])
def test_in_a_pipeline_a_slow_worker_is_named_as_well(
    job: Job, ranks: dict[int, int] | None
) -> None:
    uneven = replace(job, counts=counts_of(job, 4, ranks), slow=SLOW)
    trace, times = executed(uneven, steps=STEPS)
    report = analyze(trace).report

    found = {cause.cause: cause for cause in report.causes}
    assert set(found) == {"uneven_microbatches", "slow_worker"}
    assert found["slow_worker"].where.workers == (SLOW[0],)
    many = 4 if ranks else float(np.mean(uneven.counts))
    true = float(np.mean(times)) / 1e9 / even_step_s(job, many)
    assert report.headline.slowdown == pytest.approx(true, rel=0.01)
    gains = {one.action: one.predicted_gain for one in report.recommendations}
    healthy = executed(replace(uneven, slow=None), steps=STEPS)[1]
    gain = 1 - float(np.mean(healthy)) / float(np.mean(times))
    if gain > 0.02:
        assert gains["replace_worker"] == pytest.approx(gain, abs=0.01)


def test_microbatches_that_are_not_run_are_in_no_picture_and_no_part_of_the_time() -> None:
    job = replace(PIPELINE, counts=counts_of(PIPELINE, 4, {2: 7}))
    trace, _ = executed(job, steps=STEPS)
    analysis = analyze(trace)
    drawn = step_timeline(trace, 3, [1, 2])
    passes = (trace.step == 3) & np.isin(trace.dp, [1, 2])
    assert len(drawn.recorded.dp) == np.count_nonzero(passes)
    assert (drawn.recorded.end_ns >= drawn.recorded.start_ns).all()
    assert np.isfinite(drawn.ideal.start_ns).all()
    # The mean, (4 × 5 + 7) ÷ 6 microbatches, is nearest to 5.
    assert sorted(set(drawn.ideal.mb.tolist()) - {ABSENT}) == [0, 1, 2, 3, 4]
    assert analysis.report.coverage.operations_replayed == len(trace)
    assert analysis.report.coverage.recreated.operations == 0
    budget = analysis.report.budget
    assert budget is not None
    assert sum(asdict(budget.shares).values()) == pytest.approx(1.0, abs=1e-9)
    # The rank with more microbatches waits least, and its workers have its slowdown.
    by_worker = np.array(analysis.report.by_worker.exact)
    assert by_worker[2].min() > by_worker[[0, 1, 3, 4, 5]].max()
