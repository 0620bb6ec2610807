from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

from app.analysis.diagnosis.locations import Where
from app.analysis.json_text import plain, to_json
from app.analysis.replay.layout.dense import DroppedStep
from app.analysis.replay.metrics import measure, rank_workers
from app.analysis.replay.session import prepare_replay
from app.analysis.report.build import analyze
from app.analysis.synthesis.injections.computations import (
    SequenceLengths,
    SlowWorker,
    StageImbalance,
)
from app.analysis.synthesis.injections.delays import SlowDataLoading
from app.analysis.synthesis.job import CostModel, JobModel
from app.analysis.synthesis.synthesize import synthesize
from app.analysis.trace.model import Sizes
from tests.factories import joined, select, session


def test_the_report_is_plain_json_without_nan() -> None:
    analysis = analyze(session(SlowWorker((1, 0), 2.0)).trace)
    assert json.loads(to_json(analysis.report)) == plain(analysis.report)
    assert analysis.report.schema == "paceline.report/1"


def test_figures_agree_with_each_other() -> None:
    trace = session(SlowWorker((1, 0), 2.0)).trace
    analysis = analyze(trace)
    report, sizes = analysis.report, analysis.report.sizes
    simulated, ideal = map(np.array, (report.step_times.simulated, report.step_times.ideal))
    assert report.slowdown == pytest.approx(simulated.sum() / ideal.sum())
    assert report.waste == pytest.approx(1 - 1 / report.slowdown)
    lost_s = float((simulated - ideal).sum()) * sizes.world
    assert report.gpu_hours_lost == pytest.approx(lost_s / 3600)
    assert report.step_slowdown == pytest.approx((simulated / ideal).tolist())
    assert report.slowdown_ci95 is not None
    low, high = report.slowdown_ci95
    assert low <= report.slowdown <= high
    assert analysis.heatmaps.shape == (len(ideal), sizes.dp, sizes.pp)
    exact = np.array(report.by_worker.exact)
    assert analysis.heatmaps.mean(axis=0) == pytest.approx(exact, rel=1e-5)
    approximate = np.minimum.outer(report.by_dp, report.by_pp)
    assert report.by_worker.approximate == tuple(map(tuple, approximate.tolist()))


def test_a_slow_worker_is_named_with_host_and_factor() -> None:
    truth = session(SlowWorker((1, 0), 2.0))
    report = analyze(truth.trace).report
    assert report.causes[0].cause == "slow_worker"
    assert report.m_w.workers == ((1, 0),)
    rank = report.workers.rank[1][0]
    host = f"{truth.trace.meta.hosts[rank]} {truth.trace.meta.gpus[rank]}"
    assert report.verdict.level == "slow"
    assert (
        f"without its cause: worker (1, 0) on {host} computes 2.0× slower"
        in report.verdict.sentence
    )
    fix = report.recommendations[0]
    assert fix.action == "replace_worker"
    healthy = float(np.mean(truth.truth.healthy_step_times_s))
    assert fix.predicted_step_time == pytest.approx(healthy, rel=0.03)


def test_a_heavy_last_stage_is_named() -> None:
    report = analyze(session(StageImbalance(), pp=4, microbatches=8).trace).report
    assert report.causes[0].cause == "stage_imbalance"
    assert report.causes[0].where == Where(stage=3)
    assert report.recommendations[0].action == "even_stages"


def test_sequence_lengths_are_named() -> None:
    report = analyze(session(SequenceLengths(), dp=4, pp=2, microbatches=8).trace).report
    assert (report.fb_correlation.pearson or 0.0) >= 0.9
    assert report.causes[0].cause == "sequence_length_imbalance"


def test_a_healthy_job_has_no_cause() -> None:
    report = analyze(session().trace).report
    assert report.slowdown < 1.1
    assert report.causes == ()
    assert report.verdict.level == "ok"


def test_late_launches_withhold_s_and_are_named() -> None:
    report = analyze(session(SlowDataLoading(delay_ns=300e6)).trace).report
    fidelity = report.fidelity
    assert fidelity.discrepancy > fidelity.limit
    assert fidelity.verdict is False
    assert report.verdict.level == "slow"
    assert report.verdict.sentence.endswith("steps wait for their data")
    assert "launches of forward-compute come late" in (fidelity.reason or "")
    assert [cause.cause for cause in report.causes] == ["data_loading"]
    assert [fix.action for fix in report.recommendations] == ["load_ahead"]
    largest = max(report.launch_by_optype, key=report.launch_by_optype.__getitem__)
    assert largest == "forward-compute"
    # Only these launches are late, so they explain the whole difference of the replay.
    assert report.launch_by_optype[largest] == pytest.approx(
        1 - 1 / report.launch_slowdown, rel=0.05
    )


def test_ranks_that_launch_late_are_named() -> None:
    trace = session(dp=3, pp=2, steps=12).trace
    # In every third step, a rank's host starts each backward pass late, and delays all that
    # follows.
    late = (trace.dp == 1) & (trace.pp == 1)
    backward = late & (trace.op == trace.op_names.index("backward-compute"))
    shift = np.zeros(len(trace), dtype=np.int64)
    for step in np.unique(trace.step)[::3]:
        of_step = trace.step == step
        for start in np.sort(trace.start_ns[backward & of_step]):
            shift[of_step & (trace.start_ns >= start)] += 180_000_000
    report = analyze(dataclasses.replace(trace, start_ns=trace.start_ns + shift)).report
    fidelity = report.fidelity
    assert fidelity.verdict is False
    name, worst = fidelity.late_launches[0].op_type, fidelity.late_launches[0].workers
    assert name == "backward-compute"
    assert worst[0].worker == (1, 1)
    assert worst[0].share > 0.1
    assert "launches of backward-compute come late" in (fidelity.reason or "")
    assert "worker (1, 1)" in (fidelity.reason or "")


def test_a_recording_shorter_than_its_replay_is_explained() -> None:
    trace = session(dp=2, pp=2, steps=12).trace
    computes = trace.op < 2
    longer = np.where(computes, trace.duration_ns * 3 // 2, trace.duration_ns)
    report = analyze(dataclasses.replace(trace, duration_ns=longer)).report
    assert report.fidelity.verdict is False
    assert "The recording is the shorter one" in (report.fidelity.reason or "")
    assert report.fidelity.late_launches == ()


@pytest.mark.parametrize("steps", [1, 2, 3, 4])
def test_few_steps_are_judged_without_intervals(steps: int) -> None:
    report = analyze(session(SlowWorker((1, 0), 2.0), steps=steps).trace).report
    assert (report.verdict.level, report.causes[0].cause) == ("slow", "slow_worker")
    assert report.causes[0].where.workers == ((1, 0),)
    assert report.headline.ci95 is None
    these = "this is one" if steps == 1 else f"these are {steps}"
    assert these in (report.headline.ci95_reason or "")
    assert report.verdict.sentence.endswith("one step, so no interval") == (steps == 1)
    assert (report.slowdown_ci95, report.waste_ci95, report.m_w.ci95) == (None, None, None)
    assert {worst.ci95 for worst in report.by_worker.worst} == {None}


@pytest.mark.parametrize(("steps", "these"), [(1, "this is one"), (3, "these are 3")])
def test_few_steps_of_a_healthy_job_are_healthy_without_an_interval(steps: int, these: str) -> None:
    report = analyze(session(steps=steps).trace).report
    assert report.verdict.level == "ok"
    assert report.headline.slowdown <= 1.03
    assert report.headline.ci95 is None
    assert report.headline.ci95_reason == f"it needs 5 steps; {these}"


def test_a_single_step_leaves_open_what_changes_from_step_to_step() -> None:
    one, three = (
        analyze(session(SlowWorker((1, 0), 2.0), steps=steps).trace).report for steps in (1, 3)
    )
    assert one.causes[0].confidence == 0.8
    assert (three.causes[0].confidence or 0.0) > 0.9
    open_now = {item.cause for item in one.diagnosis.cannot_judge}
    assert {"slow_together", "rotating", "thermal_throttling", "checkpoint"} <= open_now
    assert not open_now & set(one.diagnosis.ruled_out)
    assert "slow_together" in three.diagnosis.ruled_out


def test_dropped_steps_are_reported_by_name() -> None:
    trace = session(steps=12).trace
    step = int(trace.step.max())
    report = analyze(select(trace, (trace.step != step) | (trace.dp != 0))).report
    assert report.steps.dropped == (
        DroppedStep(step, "rank 0 (DP rank 0, stage 0), rank 3 (DP rank 0, stage 1) sent nothing"),
    )
    assert len(report.steps.analyzed) == 11


@pytest.mark.parametrize(
    "absent",
    [
        {"gc"},
        {"layernorm-grads-all-reduce", "embedding-grads-all-reduce"},
        {"optimizer", "optimizer-clip-main-grad"},
        {"params-all-gather", "grads-reduce-scatter"},
        {
            "gc", "layernorm-grads-all-reduce", "embedding-grads-all-reduce", "optimizer",
            "optimizer-clip-main-grad", "params-all-gather", "grads-reduce-scatter",
        },
    ],
)  # fmt: skip
def test_optional_op_types_may_be_absent(absent: set[str]) -> None:
    trace = session(SlowWorker((1, 0), 2.0)).trace
    codes = [trace.op_names.index(name) for name in absent]
    report = analyze(select(trace, ~np.isin(trace.op, codes))).report
    assert absent <= set(report.coverage.absent_op_types)
    assert report.slowdown > 1.2
    assert report.m_w.workers == ((1, 0),)


def test_collectives_that_only_the_diagnosis_reads_are_no_unknown_types() -> None:
    job = JobModel(sizes=Sizes(dp=4, pp=2), microbatches=4, steps=12, experts_over=2)
    coverage = analyze(synthesize(job, seed=1).trace).report.coverage
    assert coverage.unknown_op_types == {}
    assert coverage.operations_replayed < coverage.operations


def test_unknown_op_types_are_counted() -> None:
    trace = session().trace
    extra = dataclasses.replace(
        select(trace, np.arange(6)), op=np.full(6, len(trace.op_names), dtype=np.int16)
    )
    report = analyze(joined(trace, extra, op_names=(*trace.op_names, "first-op"))).report
    assert report.coverage.unknown_op_types == {"first-op": 6}
    assert report.coverage.operations == len(trace) + 6
    assert report.coverage.operations_replayed == len(trace)


def test_one_stage_has_no_last_stage_to_blame() -> None:
    report = analyze(session(SlowWorker((1, 0), 2.0), pp=1).trace).report
    assert (report.m_s.rem, report.m_s.add) == (0.0, 0.0)
    assert report.fb_correlation.stage == 0


def test_one_dp_rank_has_no_peers() -> None:
    report = analyze(session(SlowWorker((0, 1), 2.0), dp=1, pp=4).trace).report
    assert report.by_worker.forward_ratio == ((None,) * 4,)
    assert report.by_worker.exact[0] == pytest.approx(report.by_pp, rel=1e-12)
    # With one DP rank, the other stages are the worker's peers.
    assert report.recommendations[0].action == "replace_worker"


def test_nothing_is_attributed_where_nothing_is_lost() -> None:
    quiet = CostModel(
        compute_noise=0,
        worker_noise=0,
        transfer_noise=0,
        tail_probability=0,
        member_jitter_ns=0,
        launch_overhead_ns=0,
        data_loading_ns=0,
        host_stall_probability=0,
        contention=0,
    )
    report = analyze(session(costs=quiet).trace).report
    assert report.slowdown == pytest.approx(1, abs=1e-6)
    for contribution in (report.m_w, report.m_s):
        assert (contribution.rem, contribution.add) == (None, None)
    assert report.k50 is None


def test_half_of_the_lost_time_needs_both_slow_workers() -> None:
    one = analyze(session(SlowWorker((1, 0), 2.0)).trace).report
    assert one.k50 == 1
    both = analyze(session(SlowWorker((1, 0), 2.0), SlowWorker((2, 0), 2.0), dp=4).trace).report
    assert both.k50 == 2


def test_m_w_is_also_given_with_the_ranking_of_the_paper() -> None:
    # The paper ranks a worker by the smaller slowdown of its DP rank and its stage. DP ranks and
    # stages of two slow workers cross at two healthy workers, which rank like them.
    slow = {(3, 0): 2.0, (5, 2): 1.7}
    injections = [SlowWorker(place, factor) for place, factor in slow.items()]
    trace = session(*injections, dp=16, pp=4, microbatches=4).trace
    replayed = prepare_replay(trace)
    metrics, report = measure(replayed), analyze(trace).report
    published = report.m_w.published
    assert published is not None
    assert set(report.m_w.workers) == set(slow)
    assert published.workers == ((5, 2), (5, 0))
    assert published.workers == rank_workers(np.array(report.by_worker.approximate))[:2]

    simulator = replayed.simulator
    chosen = np.zeros((16, 4), dtype=bool)
    chosen[5, [0, 2]] = True
    removed_s, kept_s = (
        simulator.step_times([simulator.keep(cells=cells)]).mean() * 1e-9
        for cells in (~chosen, chosen)
    )
    assert (published.trem_s, published.tadd_s) == pytest.approx((removed_s, kept_s))
    assert published.rem == pytest.approx((metrics.simulated_step_s - removed_s) / metrics.lost_s)
    assert published.rem is not None
    assert published.rem < 0.2
    assert report.m_w.rem is not None
    assert report.m_w.rem > 0.9


@pytest.mark.parametrize(
    "slow", [[2.0] * 7, [3.0, 1.8, 1.6, 1.4], [2.0, 1.05, 1.05], [1.3] * 2, [1.1] * 7]
)
def test_half_of_the_lost_time_takes_as_many_workers_as_one_by_one(slow: list[float]) -> None:
    places = [(0, 0), (1, 0), (2, 1), (3, 0), (4, 1), (5, 1), (6, 0)]
    injections = [SlowWorker(place, factor) for place, factor in zip(places, slow, strict=False)]
    replayed = prepare_replay(session(*injections, dp=8).trace)
    simulator = replayed.simulator
    metrics = measure(replayed)
    order = rank_workers(metrics.by_worker.mean(axis=0))
    recovered_s = []
    for count in range(len(order) + 1):
        kept = np.ones((8, 2), dtype=bool)
        kept[tuple(np.array(order[:count], dtype=int).reshape(-1, 2).T)] = False
        times_ns = simulator.step_times([simulator.keep(cells=kept)])
        recovered_s.append(metrics.simulated_s.mean() - times_ns.mean() * 1e-9)
    assert metrics.k50 == int(np.argmax(np.array(recovered_s) >= metrics.lost_s / 2))


def test_fewer_backwards_than_forwards_leave_the_cause_open() -> None:
    trace = session(SlowWorker((1, 0), 2.0)).trace
    backward = [trace.op_names.index(f"backward-{what}") for what in ("compute", "send", "recv")]
    report = analyze(select(trace, ~(np.isin(trace.op, backward) & (trace.order == 3)))).report
    assert report.slowdown > 1.1
    assert report.causes == ()
