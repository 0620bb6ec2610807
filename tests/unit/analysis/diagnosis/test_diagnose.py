from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from app.analysis.diagnosis.headline import HeadlineKind
from app.analysis.report.build import analyze
from app.analysis.synthesis.injections.base import Injection
from app.analysis.synthesis.injections.computations import (
    MemoryFragmentation,
    SlowWorker,
    StageImbalance,
    TensorParallelStraggler,
)
from app.analysis.synthesis.injections.delays import SlowDataLoading
from app.analysis.synthesis.job import CostModel, JobModel
from app.analysis.trace.model import PARAMS_ALL_GATHER, Sizes
from tests.oracles.physics.world import World
from tests.unit.analysis.diagnosis.jobs import (
    INTERLEAVED,
    JOB,
    MS,
    ONE_RANK,
    ONE_STAGE,
    TENSOR,
    causes,
    diagnosed,
    evidence,
    session,
    uneven_chunks,
)
from tests.unit.analysis.diagnosis.second_physics import (
    PLAIN,
    WITHOUT_SCATTER,
    Strike,
    names,
    pass_s,
    report_of,
)


@pytest.mark.parametrize("job", [JOB, ONE_STAGE, ONE_RANK, TENSOR, INTERLEAVED])
def test_a_healthy_job_has_no_cause(job: JobModel) -> None:
    diagnosis = diagnosed(session(job=job))

    assert diagnosis.causes == ()
    assert diagnosis.slowdown < 1.05


@pytest.mark.parametrize("job", [JOB, INTERLEAVED], ids=["1f1b", "interleaved"])
@pytest.mark.parametrize(
    "faults",
    [(), (SlowWorker((2, 1), 1.5),), (StageImbalance(),), (SlowDataLoading(200 * MS),)],
    ids=["healthy", "slow_worker", "stage_imbalance", "data_loading"],
)
def test_parameters_gathered_at_the_end_of_steps_hide_no_cause_and_make_none(
    faults: tuple[Injection, ...], job: JobModel
) -> None:
    job = replace(job, consecutive=True)
    at_end = replace(job, gathers_at_end=True)
    never = replace(job, op_types=job.op_types - {PARAMS_ALL_GATHER})
    report, without = (analyze(session(*faults, job=run).trace).report for run in (at_end, never))

    assert [cause.cause for cause in report.causes] == [fault.cause for fault in faults]
    assert [cause.where for cause in report.causes] == [cause.where for cause in without.causes]
    assert report.headline.slowdown == pytest.approx(without.headline.slowdown, abs=0.02)


def test_causes_that_hold_at_once_share_the_lost_time_fairly() -> None:
    both = session(SlowDataLoading(200 * MS), StageImbalance())
    diagnosis = diagnosed(both)

    assert sorted(causes(diagnosis)) == ["data_loading", "stage_imbalance"]
    cost = {cause.cause: cause.cost_s or 0.0 for cause in diagnosis.causes}
    shares = [cause.contribution or 0.0 for cause in diagnosis.causes]
    assert sum(cost.values()) == pytest.approx(sum(shares) * diagnosis.lost_s)
    assert sum(shares) <= 1 + 1e-9
    # The wait is before the rest of the step, so its cost does not depend on the stages.
    assert cost["data_loading"] == pytest.approx(0.2, rel=0.2)
    names = causes(diagnosis)
    assert diagnosis.causes[0].runner_up == names[1]


def test_a_session_that_lacks_nothing_judges_every_cause() -> None:
    assert diagnosed(session(job=ONE_STAGE)).unjudged == {}


def test_causes_that_a_session_cannot_show_are_named_and_not_ruled_out() -> None:
    bare = replace(JOB, sizes=Sizes(dp=2, pp=2, cp=2), op_types=frozenset())
    diagnosis = diagnosed(session(job=bare))

    assert list(diagnosis.unjudged) == [
        "false_kernel_dependency",
        "context_parallel_straggler",
    ]
    assert diagnosis.ruled_out == (
        "slow_worker",
        "thermal_throttling",
        "slow_together",
        "rotating",
        "stage_imbalance",
        "sequence_length_imbalance",
        "uneven_microbatches",
        "garbage_collection",
        "memory_fragmentation",
        "network",
        "network_congestion",
        "data_loading",
        "checkpoint",
        "evaluation",
        "between_steps",
        "host_overhead",
        "tensor_parallel_straggler",
        "expert_parallel_imbalance",
    )


def test_unexplained_time_is_unknown() -> None:
    noisy = replace(JOB, costs=CostModel(compute_noise=0.35))
    diagnosis = diagnosed(session(job=noisy))

    assert diagnosis.slowdown > 1.2
    assert causes(diagnosis)[0] == "unknown"
    assert "beyond" in evidence(diagnosis)


def test_stages_with_other_chunks_leave_open_what_their_comparison_would_tell() -> None:
    report = analyze(uneven_chunks()).report

    assert report.slowdown > 1.1
    assert [cause.cause for cause in report.causes] == ["unknown"]
    assert report.verdict.level == "slow"
    unjudged = {item.cause: item.reason for item in report.diagnosis.cannot_judge}
    assert unjudged.keys() >= {
        "stage_imbalance",
        "sequence_length_imbalance",
        "garbage_collection",
    }
    assert "cannot be compared" in unjudged["garbage_collection"]
    assert unjudged.keys().isdisjoint(report.diagnosis.ruled_out)


def test_what_two_groups_of_a_stage_wait_for_is_no_slowness_of_their_workers() -> None:
    straggler = TensorParallelStraggler((2, 1), 3, 1.6)
    fragmented = MemoryFragmentation((0, 1), 60 * MS)
    diagnosis = diagnosed(session(straggler, fragmented, job=TENSOR))

    assert sorted(causes(diagnosis)) == ["memory_fragmentation", "tensor_parallel_straggler"]
    assert "slow_worker" in diagnosis.ruled_out


def slow_worker(world: World) -> None:
    world.forward_s[1, ..., 2] *= 2
    world.backward_s[1, ..., 2] *= 2


def long_microbatches(world: World) -> None:
    factor = np.random.default_rng(1).uniform(0.3, 1.7, world.forward_s.shape[2:])
    world.forward_s[:] *= factor
    world.backward_s[:] *= factor


def late_data(world: World) -> None:
    world.data_s[0] += 8 * pass_s(world)


@pytest.mark.parametrize(
    ("strike", "cause"),
    [
        (slow_worker, "slow_worker"),
        (long_microbatches, "sequence_length_imbalance"),
        (late_data, "data_loading"),
    ],
)
def test_without_a_recorded_reduce_scatter_peers_are_compared_all_the_same(
    strike: Strike, cause: str
) -> None:
    def strike_as_well(world: World) -> None:
        # So long that the replay without it is too far from the recording for a verdict.
        world.scatter_s[:] += 12 * pass_s(world)
        strike(world)

    report, _ = report_of(WITHOUT_SCATTER, strike_as_well)
    assert not report.fidelity.verdict
    assert names(report) == [cause]
    assert report.verdict.sentence.startswith("Verdict on S withheld; ")
    assert report.headline.kind is HeadlineKind.CAUSES

    with_scatter, _ = report_of(PLAIN, strike_as_well)
    assert report.headline.slowdown == pytest.approx(with_scatter.headline.slowdown, rel=0.02)


def test_nothing_is_named_where_only_what_is_not_recorded_takes_time() -> None:
    def strike(world: World) -> None:
        world.scatter_s[:] += 12 * pass_s(world)

    report, _ = report_of(WITHOUT_SCATTER, strike)

    assert not report.fidelity.verdict
    assert names(report) == []
    assert report.verdict.sentence.startswith("No verdict: the replay differs")
