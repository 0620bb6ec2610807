from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from app.analysis.diagnosis.causes.slow_worker import SLOW_WORKER
from app.analysis.diagnosis.locations import Where, WorkerView
from app.analysis.diagnosis.observation import Observation
from app.analysis.diagnosis.session_view import Signs
from app.analysis.replay.session import prepare_replay
from app.analysis.report.build import analyze
from app.analysis.synthesis.injections.base import Injection, Spells
from app.analysis.synthesis.injections.computations import SlowWorker
from app.analysis.synthesis.job import JobModel
from app.analysis.synthesis.random_sessions import draw_session
from app.analysis.trace.model import BACKWARD_COMPUTE, FORWARD_COMPUTE, Sizes
from tests.oracles.physics.shape import Shape
from tests.oracles.physics.world import World
from tests.schedules import executed
from tests.unit.analysis.diagnosis.jobs import (
    JOB,
    ONE_RANK,
    ONE_STAGE,
    TENSOR,
    UNEVEN,
    causes,
    check_named_alone,
    diagnosed,
    evidence,
    found,
    session,
    signs_of,
    where,
)
from tests.unit.analysis.diagnosis.second_physics import PLAIN, names, report_of

SPELLS = Spells(share=0.5)
TWO_WORKERS = replace(ONE_STAGE, sizes=Sizes(dp=2, pp=1))


@pytest.mark.parametrize(
    ("injection", "job"),
    [
        (SlowWorker((2, 1), 1.6), JOB),
        (SlowWorker((2, 1), 1.6, Spells(from_step=6)), JOB),
        (SlowWorker((2, 1), 1.8, SPELLS), JOB),
        (SlowWorker((2, 0), 1.6), ONE_STAGE),
        (SlowWorker((2, 0), 1.8, SPELLS), ONE_STAGE),
        (SlowWorker((1, 0), 3.0, Spells(from_step=6)), TWO_WORKERS),
        (SlowWorker((1, 0), 1.3), TWO_WORKERS),
        (SlowWorker((2, 1), 1.6), TENSOR),
    ],
)
def test_it_is_named_alone_with_its_place_and_most_of_the_lost_time(
    injection: Injection, job: JobModel
) -> None:
    check_named_alone(injection, job)


def test_nothing_is_found_in_a_healthy_job() -> None:
    assert SLOW_WORKER.find(signs_of(session())) is None


def test_without_it_the_worker_computes_like_its_peers() -> None:
    signs = signs_of(session(SlowWorker((2, 1), 1.6)))
    finding = found(SLOW_WORKER, signs)

    observation = signs.observation
    nodes = observation.passes["backward-compute"].nodes[1]
    for node in nodes.tolist():
        times = observation.recorded_ns[node] * finding.change.times[node]
        assert times[:, 2] == pytest.approx(times[:, [0, 1, 3]].mean(axis=1), rel=0.1)
        assert (finding.change.times[node][:, [0, 1, 3]] == 1).all()


def test_evidence_says_how_slow_where_and_since_when() -> None:
    synthetic = session(SlowWorker((2, 1), 1.6, Spells(from_step=6), backward_share=0.5))
    diagnosis = diagnosed(synthetic)

    step = sorted(set(synthetic.trace.step.tolist()))[6]
    rank, meta = synthetic.job.traced_rank(2, 1), synthetic.trace.meta
    host = f"{meta.hosts[rank]} {meta.gpus[rank]}"
    text = evidence(diagnosis)
    assert text.startswith(f"Worker (2, 1) on {host}: forward 1.6")
    assert "backward 1.3" in text
    assert f"in every step since {step}" in text
    assert diagnosis.causes[0].evidence[0].view == WorkerView(dp=2, pp=1)


def test_several_slow_workers_are_named_slowest_first() -> None:
    diagnosis = diagnosed(session(SlowWorker((0, 2), 1.5), SlowWorker((3, 1), 2.0)))

    assert causes(diagnosis) == ["slow_worker"]
    assert where(diagnosis) == Where(workers=((3, 1), (0, 2)))


def test_a_host_that_all_slow_workers_share_is_evidence() -> None:
    job = replace(JOB, gpus_per_host=4)
    synthetic = session(SlowWorker((2, 1), 1.6), SlowWorker((3, 1), 1.6), job=job)
    meta = synthetic.trace.meta
    text = evidence(diagnosed(synthetic))

    ranks = [job.traced_rank(2, 1), job.traced_rank(3, 1)]
    (host,) = {meta.hosts[rank] for rank in ranks}
    assert f"All of them are on {host}" in text


def test_a_worker_that_is_seldom_slow_is_named_with_one_that_mostly_is() -> None:
    job = replace(JOB, steps=24)
    seldom = SlowWorker((0, 2), 2.0, Spells(share=0.2))
    diagnosis = diagnosed(session(SlowWorker((3, 1), 2.4), seldom, job=job))

    assert where(diagnosis).workers == ((3, 1), (0, 2))


def test_a_milder_worker_counts_with_one_that_is_far_slower() -> None:
    def strike(world: World) -> None:
        for times in (world.forward_s, world.backward_s):
            times[1, ..., 2] *= 2.6
            times[3, ..., 0] *= 1.2

    report, slowdown = report_of(PLAIN, strike)

    assert names(report) == ["slow_worker"]
    assert report.causes[0].where.workers == ((2, 1), (0, 3))
    assert report.headline.slowdown == pytest.approx(slowdown, rel=0.02)


def test_with_one_dp_rank_other_stages_are_the_peers() -> None:
    assert diagnosed(session(job=ONE_RANK)).unjudged == {}
    one_worker = diagnosed(session(job=replace(ONE_RANK, sizes=Sizes(dp=1, pp=1)))).unjudged

    assert "no peers" in one_worker["slow_worker"]
    assert one_worker.keys() == {"slow_worker", "thermal_throttling", "rotating", "network"}


@pytest.mark.slow
@pytest.mark.parametrize("factor", [1.3, 2.0])
def test_it_shows_where_stages_have_other_chunks(factor: float) -> None:
    steady = replace(UNEVEN, compute_ns=400_000_000)
    healthy = analyze(executed(steady, steps=6)[0]).report
    assert "slow_worker" in healthy.diagnosis.ruled_out
    for worker in ((1, 2), (2, 3)):
        trace = executed(replace(steady, slow=(worker, factor)), steps=6)[0]
        report = analyze(trace).report
        (cause,) = report.causes
        assert (cause.cause, cause.where) == ("slow_worker", Where(workers=(worker,)))
        assert f"forward {factor:.1f}" in cause.evidence[0]
        # No fix is recommended at level `ok`.
        advised = [fix.action for fix in report.recommendations[:1]]
        assert advised == ([] if report.verdict.level == "ok" else ["replace_worker"])


def test_workers_are_not_compared_where_a_stage_computes_more_often_forward() -> None:
    synthetic = session()
    group = prepare_replay(synthetic.trace).main
    layout, nodes = group.layout, group.layout.nodes
    op = nodes.op.copy()
    op[np.flatnonzero((op == layout.codes(BACKWARD_COMPUTE)[0]) & (nodes.pp == 1))[0]] = (
        layout.codes(FORWARD_COMPUTE)[0]
    )
    other = replace(group, layout=replace(layout, nodes=replace(nodes, op=op)))
    signs = Signs(Observation(synthetic.trace, other), step_ns=1e9)

    assert "as often forward as backward" in (SLOW_WORKER.cannot_judge(signs) or "")
    assert SLOW_WORKER.find(signs) is None


@pytest.mark.parametrize(("forward", "backward"), [(1.8, 1.03), (1.03, 1.6)])
def test_one_direction_is_enough_where_it_lasts(forward: float, backward: float) -> None:
    def strike(world: World) -> None:
        world.forward_s[2, ..., 1] *= forward
        world.backward_s[2, ..., 1] *= backward

    report, slowdown = report_of(PLAIN, strike)

    assert names(report) == ["slow_worker"]
    assert report.causes[0].where.workers == ((1, 2),)
    assert report.headline.slowdown == pytest.approx(slowdown, rel=0.03)


@pytest.mark.parametrize(
    ("job", "workers"),
    [
        (replace(JOB, sizes=Sizes(dp=2, pp=2)), {(1, 0), (1, 1)}),
        (replace(JOB, sizes=Sizes(dp=2, pp=4)), {(1, 0), (1, 1), (1, 2), (1, 3)}),
        (replace(JOB, sizes=Sizes(dp=4, pp=1)), {(0, 0), (2, 0)}),
    ],
    ids=["dp 2 pp 2", "dp 2 pp 4", "dp 4 pp 1"],
)
def test_half_of_the_workers_may_be_slow_in_forwards_alone(
    job: JobModel, workers: set[tuple[int, int]]
) -> None:
    slow = session(*(SlowWorker(worker, 1.6, backward_share=0.0) for worker in workers), job=job)
    report = analyze(slow.trace).report

    assert names(report) == ["slow_worker"]
    assert set(report.causes[0].where.workers) == workers
    assert report.headline.slowdown == pytest.approx(slow.truth.slowdown, rel=0.03)


@pytest.mark.parametrize(
    "shape", [PLAIN, replace(PLAIN, dp=2), replace(PLAIN, dp=1)], ids=["dp 4", "dp 2", "dp 1"]
)
def test_bursts_of_a_few_passes_are_enough(shape: Shape) -> None:
    def strike(world: World) -> None:
        for step in range(0, world.shape.steps, 2):
            first = step % 5
            world.forward_s[1, 0, first : first + 3, step, 0] *= 3
            world.backward_s[1, 0, first : first + 3, step, 0] *= 3

    report, slowdown = report_of(shape, strike)

    assert names(report) == ["slow_worker"]
    assert report.causes[0].where.workers == ((0, 1),)
    assert report.causes[0].where.spells is not None
    assert report.causes[0].where.spells.steps == 6
    assert report.causes[0].evidence[0].endswith("in 6 of 12 steps, in bursts of some passes")
    assert report.headline.slowdown == pytest.approx(slowdown, rel=0.03)


def test_single_slow_passes_on_every_worker_are_no_bursts() -> None:
    def strike(world: World) -> None:
        rng = np.random.default_rng(4)
        world.forward_s[:] *= np.where(rng.random(world.forward_s.shape) < 0.05, 2.0, 1.0)
        world.backward_s[:] *= np.where(rng.random(world.backward_s.shape) < 0.05, 2.0, 1.0)

    report, _ = report_of(PLAIN, strike)

    assert "slow_worker" not in names(report)


def test_its_only_peer_is_not_accused_for_what_it_is_slow_in_most_steps() -> None:
    session_ = draw_session(("slow_worker",), 1.5, 9_300_078)
    ((worker,),) = (session_.truth.workers,)

    (cause,) = diagnosed(session_).causes
    assert (cause.cause, cause.where.workers) == ("slow_worker", (worker,))


def test_a_host_all_of_whose_workers_are_slow_is_named_and_one_of_which_some_are_is_not() -> None:
    job = replace(JOB, sizes=Sizes(dp=8, pp=2, tp=4))
    host = session(job=job).trace.meta.hosts[job.traced_rank(2, 1)]
    whole = (SlowWorker((2, 1), 1.5), SlowWorker((3, 1), 1.5))
    part = (SlowWorker((2, 1), 1.5), SlowWorker((5, 1), 1.5))
    named, others = (
        analyze(session(*slow, job=job).trace).report.verdict.sentence for slow in (whole, part)
    )

    assert f"{host} is slow: all of its 2 workers are, and no others" in named
    assert "2 workers are slow, worker (" in others
