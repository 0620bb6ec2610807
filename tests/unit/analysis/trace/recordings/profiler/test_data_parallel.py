"""Recordings of GPU jobs without labels, with their true slowdown."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from app.analysis.report.build import analyze
from app.analysis.trace.model import Sizes
from app.cli.convert import read_recordings
from tests.support.trainings.files import step_ns, write_training
from tests.support.trainings.job import Fault, Kind, Style, Training, Writer

if TYPE_CHECKING:
    from pathlib import Path

    from app.analysis.trace.model import Trace

DDP = Training(Kind.DDP, kernels=3, lead_ns=5_000_000)
FSDP = replace(DDP, kind=Kind.FSDP2)
HSDP = replace(DDP, kind=Kind.HSDP, ranks=8, inner=4)
HEALTHY = 1.03
WITHIN = 0.05
SLOW = Fault(slow_rank=2, slow_factor=1.5)


def recorded(training: Training, folder: Path, style: Style | None = None) -> Trace:
    write_training(training, style or Style(), folder)
    return read_recordings([folder], None, None).trace


def slowdown_of(training: Training) -> float:
    """Return the step time relative to the healthy job."""
    return step_ns(training) / step_ns(training.healthy())


def counts(trace: Trace) -> dict[str, int]:
    found = {name: int((trace.op == code).sum()) for code, name in enumerate(trace.op_names)}
    return {name: count for name, count in found.items() if count}


def test_operations_of_a_step_are_recognized_without_labels(tmp_path: Path) -> None:
    job = replace(DDP, rounds=2)
    trace = recorded(job, tmp_path)

    assert trace.meta.sizes == Sizes(dp=4, pp=1)
    each = job.ranks * job.steps
    assert counts(trace) == {
        "forward-compute": 2 * each,
        "backward-compute": 2 * each,
        "grads-reduce-scatter": each,
        "optimizer": each,
        "data-loading": 2 * each,
    }


@pytest.mark.parametrize(
    ("variant", "style"),
    [
        ({}, Style()),
        ({"lead_ns": 40_000_000}, Style()),
        ({"lead_ns": 400_000_000}, Style()),
        ({"rounds": 3}, Style()),
        ({"late_buckets": 2}, Style()),
        ({"late_buckets": 4, "rounds": 2}, Style(clock_ns=200_000_000)),
        ({"kind": Kind.FSDP_CLIPS}, Style()),
        ({"kind": Kind.FSDP_RECOMPUTES}, Style()),
        ({}, Style(clock_ns=200_000_000)),
        ({}, Style(Writer.RECORDS)),
        ({}, Style(Writer.OLD)),
        ({}, Style(Writer.ROCM)),
        ({}, Style(numbered=False)),
    ],
    ids=str,
)
def test_a_slow_worker_of_ddp_is_named_with_what_it_costs(
    variant: dict[str, Any], style: Style, tmp_path: Path
) -> None:
    assert_told(replace(DDP, fault=SLOW, **variant), tmp_path, style)


@pytest.mark.parametrize(
    ("variant", "style"),
    [
        ({}, Style()),
        ({"lead_ns": 400_000_000}, Style()),
        ({"rounds": 2}, Style()),
        ({"rounds": 3}, Style()),
        ({"rounds": 2, "copies": False}, Style()),
        ({}, Style(clock_ns=200_000_000)),
    ],
    ids=str,
)
def test_what_sharded_ranks_wait_for_one_another_is_no_computing(
    variant: dict[str, Any], style: Style, tmp_path: Path
) -> None:
    assert_told(replace(FSDP, fault=SLOW, **variant), tmp_path, style)


def test_ranks_that_shard_within_replicas_are_all_data_parallel(tmp_path: Path) -> None:
    named = recorded(HSDP, tmp_path / "named", Style(groups_named=True))
    assert named.meta.sizes == Sizes(dp=8, pp=1)
    assert recorded(HSDP, tmp_path / "unnamed").meta.sizes == Sizes(dp=8, pp=1)
    assert_told(replace(HSDP, fault=SLOW), tmp_path)


def test_the_host_that_launches_late_is_the_cause_and_no_worker_computes_slowly(
    tmp_path: Path,
) -> None:
    job = replace(DDP, fault=Fault(late_rank=1, late_factor=45.0))
    report = analyze(recorded(job, tmp_path)).report

    assert [cause.cause for cause in report.causes] == ["host_overhead"]
    assert report.causes[0].where.workers == ((1, 0),)
    assert report.headline is not None
    assert report.headline.slowdown == pytest.approx(slowdown_of(job), rel=WITHIN)


@pytest.mark.parametrize("kind", [Kind.DDP, Kind.FSDP2])
@pytest.mark.parametrize(
    "variant",
    [{}, {"zeroes_late": True}, {"latency_ns": 500_000}, {"late_buckets": 2}],
    ids=str,
)
def test_a_late_loader_is_the_cause(kind: Kind, variant: dict[str, Any], tmp_path: Path) -> None:
    fault = Fault(loading_rank=1, loading_ns=60_000_000)
    job = replace(DDP, kind=kind, steps=4, fault=fault, **variant)
    report = analyze(recorded(job, tmp_path)).report

    assert report.causes[0].cause == "data_loading"
    assert report.causes[0].where.dp == 1
    assert report.headline is not None
    assert report.headline.slowdown == pytest.approx(slowdown_of(job), rel=WITHIN)
    assert report.verdict.sentence.endswith("without its cause: steps wait for their data")


@pytest.mark.parametrize("share", [0.2, 0.5, 0.8])
def test_a_step_that_the_device_had_not_run_when_the_profiler_stopped_is_no_cause(
    share: float, tmp_path: Path
) -> None:
    recorded(replace(DDP, steps=4), tmp_path, Style(clock_ns=200_000_000))
    path = next(tmp_path.glob("worker_rank1.*"))
    document = json.loads(gzip.decompress(path.read_bytes()))
    ends = [event["ts"] for event in document["traceEvents"] if event.get("cat") == "kernel"]
    stop = max(ends) - (1 - share) * (max(ends) - min(ends)) / 4
    document["traceEvents"] = [
        event
        for event in document["traceEvents"]
        if event.get("cat") not in {"kernel", "gpu_memcpy"} or event["ts"] < stop
    ]
    path.write_bytes(gzip.compress(json.dumps(document).encode(), 1))
    report = analyze(read_recordings([tmp_path], None, None).trace).report

    assert not report.causes
    assert report.fidelity.verdict
    assert report.headline.slowdown <= HEALTHY


def assert_told(job: Training, tmp_path: Path, style: Style | None = None) -> None:
    report = analyze(recorded(job, tmp_path / "slow", style)).report

    assert report.causes[0].cause == "slow_worker"
    assert report.causes[0].where.workers == ((2, 0),)
    assert report.headline is not None
    assert report.headline.slowdown == pytest.approx(slowdown_of(job), rel=WITHIN)
    healthy = analyze(recorded(job.healthy(), tmp_path / "healthy", style)).report
    assert not healthy.causes
    assert healthy.slowdown is not None
    assert healthy.slowdown <= HEALTHY
