from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from app.analysis.diagnosis.causes.slow_worker import SLOW_WORKER
from app.analysis.diagnosis.causes.tensor_parallel import TENSOR_STRAGGLER
from app.analysis.diagnosis.observation import Explained
from app.analysis.report.build import analyze
from app.analysis.synthesis.injections.base import Injection
from app.analysis.synthesis.injections.computations import (
    MemoryFragmentation,
    TensorParallelStraggler,
)
from app.analysis.synthesis.job import JobModel, Profiler
from tests.oracles.physics.world import World
from tests.support.tensor_pipeline import TensorPipeline, mean_step_ns, recorded
from tests.unit.analysis.diagnosis.jobs import (
    MS,
    TENSOR,
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


@pytest.mark.parametrize(
    ("injection", "job"),
    [
        (TensorParallelStraggler((2, 1), 3, 1.6), TENSOR),
    ],
)
def test_it_is_named_alone_with_its_place_and_most_of_the_lost_time(
    injection: Injection, job: JobModel
) -> None:
    check_named_alone(injection, job)


def test_nothing_is_found_in_a_healthy_job() -> None:
    assert TENSOR_STRAGGLER.find(signs_of(session(job=TENSOR))) is None
    assert TENSOR_STRAGGLER.find(signs_of(session())) is None


def test_a_group_that_waits_for_its_ranks_by_turns_has_none() -> None:
    synthetic = session(MemoryFragmentation((2, 1), 40 * MS), job=TENSOR)

    assert TENSOR_STRAGGLER.find(signs_of(synthetic)) is None


def test_it_is_named_by_its_global_rank() -> None:
    synthetic = session(TensorParallelStraggler((2, 1), 3, 1.6), job=TENSOR)
    diagnosis = diagnosed(synthetic)

    rank = TENSOR.traced_rank(2, 1, 3)
    assert where(diagnosis).ranks == (rank,)
    assert f"global rank {rank}" in evidence(diagnosis)


def test_without_tensor_records_the_same_fault_is_a_slow_worker_and_the_limit_is_stated() -> None:
    job = replace(TENSOR, profiler=Profiler())
    diagnosis = diagnosed(session(TensorParallelStraggler((2, 1), 3, 1.6), job=job))

    assert causes(diagnosis) == ["slow_worker"]
    reason = "no tensor-parallel operations recorded"
    assert diagnosis.unjudged["tensor_parallel_straggler"] == reason
    assert diagnosis.unjudged["memory_fragmentation"] == reason
    assert "tensor_parallel_straggler" not in diagnosis.ruled_out


def test_clocks_of_other_hosts_do_not_make_a_rank_late() -> None:
    skewed = Profiler(tensor_ranks=True, clock_skew_ns=5 * MS)
    job = replace(TENSOR, profiler=skewed, gpus_per_host=2)

    assert "tensor_parallel_straggler" not in causes(diagnosed(session(job=job)))


def test_the_only_group_there_is_has_its_straggler_too() -> None:
    def strike(world: World) -> None:
        world.rank_s[1] *= 1.5

    alone = replace(PLAIN, dp=1, pp=1, tp=4, tensor_traced=True)
    report, slowdown = report_of(alone, strike)

    assert names(report) == ["tensor_parallel_straggler"]
    assert report.headline.slowdown == pytest.approx(slowdown, rel=0.03)


def test_an_explained_time_is_not_judged_again() -> None:
    signs = signs_of(session(TensorParallelStraggler((2, 1), 3, 1.6), job=TENSOR))
    finding = found(TENSOR_STRAGGLER, signs)

    assert SLOW_WORKER.find(signs) is not None
    assert SLOW_WORKER.find(signs.net_of(Explained(finding.change.less_ns))) is None


@pytest.mark.parametrize(
    "job",
    [
        TensorPipeline(slow=(1, 0, 3)),
        TensorPipeline(slow=(1, 1, 2)),
        TensorPipeline(slow=(1, 0, 0)),  # the rank that represents its worker
        TensorPipeline(dp=1, tp=2, slow=(0, 0, 1)),
        TensorPipeline(dp=1, pp=4, tp=2, slow=(0, 1, 1), factor=2),
    ],
    ids=str,
)
def test_what_late_sends_of_a_slow_rank_cost_other_stages_is_its_own(
    job: TensorPipeline, tmp_path: Path
) -> None:
    report = analyze(recorded(job, tmp_path)).report

    assert [cause.cause for cause in report.causes] == ["tensor_parallel_straggler"]
    assert job.slow is not None
    dp, pp, rank = job.slow
    assert report.causes[0].where.workers == ((dp, pp),)
    assert report.causes[0].where.ranks == ((pp * job.dp + dp) * job.tp + rank,)
    true = mean_step_ns(job) / mean_step_ns(replace(job, slow=None))
    assert report.headline.slowdown == pytest.approx(true, rel=0.03)


def test_late_ends_of_a_healthy_pipeline_are_no_cause(tmp_path: Path) -> None:
    report = analyze(recorded(TensorPipeline(tail=0.3), tmp_path)).report

    assert not report.causes
    assert report.headline.slowdown <= 1.03
