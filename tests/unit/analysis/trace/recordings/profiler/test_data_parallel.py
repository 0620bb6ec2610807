"""Recordings of GPU jobs in which nothing is labelled, with the slowdown that is true."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from app.analysis.report.build import analyze
from app.analysis.trace.model import Sizes
from app.cli.convert import read_recordings
from tests.support.gpu_profiles.files import write_job
from tests.support.gpu_profiles.job import Faults, GpuJob, Naming, Sharding
from tests.support.gpu_profiles.simulation import slowdown_of

if TYPE_CHECKING:
    from pathlib import Path

    from app.analysis.report.document import Report
    from app.analysis.trace.model import Trace

DDP = GpuJob(layers=4, steps=5)
FSDP = replace(DDP, sharding=Sharding.FSDP)
HSDP = replace(DDP, sharding=Sharding.HSDP, ranks=8, replicas=2)
HEALTHY = 1.03
WITHIN = 0.05


def recorded(job: GpuJob, folder: Path) -> Trace:
    write_job(job, folder)
    return read_recordings([folder], None, None).trace


def reported(job: GpuJob, folder: Path) -> Report:
    return analyze(recorded(job, folder)).report


def counts(trace: Trace) -> dict[str, int]:
    found = {name: int((trace.op == code).sum()) for code, name in enumerate(trace.op_names)}
    return {name: count for name, count in found.items() if count}


def test_a_step_is_told_apart_without_labels(tmp_path: Path) -> None:
    job = replace(DDP, rounds=2)
    trace = recorded(job, tmp_path)

    assert trace.meta.sizes == Sizes(dp=4, pp=1)
    each = job.ranks * (job.steps + 1)
    assert counts(trace) == {
        "forward-compute": 2 * each,
        "backward-compute": 2 * each,
        "grads-reduce-scatter": each,
        "optimizer": each,
        "data-loading": 2 * each,
    }


@pytest.mark.parametrize(
    "variant",
    [
        {},
        {"lead_ns": 40_000_000},
        {"lead_ns": 400_000_000},
        {"clock_ns": 200_000_000},
        {"rounds": 3},
        {"naming": Naming.RECORDS},
        {"naming": Naming.RANGES},
        {"naming": Naming.GENERIC},
        {"clips": True},
        {"recomputes": True},
        {"numbered": False},
    ],
    ids=str,
)
def test_a_slow_worker_of_ddp_is_named_with_what_it_costs(
    variant: dict[str, object], tmp_path: Path
) -> None:
    assert_told(replace(DDP, faults=Faults(slow_rank=2), **variant), tmp_path)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "variant",
    [{}, {"lead_ns": 400_000_000}, {"clock_ns": 200_000_000}, {"rounds": 2}, {"clips": True}],
    ids=str,
)
def test_what_sharded_ranks_wait_for_one_another_is_no_computing(
    variant: dict[str, object], tmp_path: Path
) -> None:
    assert_told(replace(FSDP, faults=Faults(slow_rank=2), **variant), tmp_path)  # type: ignore[arg-type]


def test_ranks_that_shard_within_replicas_are_all_data_parallel(tmp_path: Path) -> None:
    assert recorded(HSDP, tmp_path / "named").meta.sizes == Sizes(dp=8, pp=1)
    unnamed = replace(HSDP, named_mesh=False, faults=Faults(slow_rank=2))
    assert recorded(unnamed, tmp_path / "unnamed").meta.sizes == Sizes(dp=8, pp=1)
    assert_told(unnamed, tmp_path)


def test_a_loader_that_holds_one_rank_up_is_the_cause(tmp_path: Path) -> None:
    job = replace(FSDP, steps=12, faults=Faults(loading_ns=40_000_000, loading_rank=1))
    report = reported(job, tmp_path)

    assert report.causes[0].cause == "data_loading"
    assert report.causes[0].where.dp == 1
    assert report.headline is not None
    assert report.headline.slowdown == pytest.approx(slowdown_of(job), rel=WITHIN)


def test_the_host_that_launches_late_is_the_cause_and_no_worker_computes_slowly(
    tmp_path: Path,
) -> None:
    job = replace(DDP, faults=Faults(late_rank=1, launch_ns=2_500_000))
    report = reported(job, tmp_path)

    assert [cause.cause for cause in report.causes] == ["host_overhead"]
    assert report.causes[0].where.workers == ((1, 0),)
    assert report.headline is not None
    assert report.headline.slowdown == pytest.approx(slowdown_of(job), rel=WITHIN)


def assert_told(job: GpuJob, tmp_path: Path) -> None:
    report = reported(job, tmp_path / "slow")

    assert report.causes[0].cause == "slow_worker"
    assert report.causes[0].where.workers == ((2, 0),)
    assert report.headline is not None
    assert report.headline.slowdown == pytest.approx(slowdown_of(job), rel=WITHIN)
    healthy = reported(job.healthy(), tmp_path / "healthy")
    assert not healthy.causes
    assert healthy.slowdown is not None
    assert healthy.slowdown <= HEALTHY
