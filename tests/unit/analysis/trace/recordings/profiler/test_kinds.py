"""Trainings of every kind, in files of every profiler version: the slow rank, and its cost."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from app.analysis.report.build import analyze
from app.cli.convert import read_recordings
from tests.support.nightly import every_night
from tests.support.trainings.files import step_ns, write_training
from tests.support.trainings.job import Fault, Kind, Style, Training, Writer

if TYPE_CHECKING:
    from pathlib import Path

    from app.analysis.report.document import Report

WITHIN = 0.05
HEALTHY = 1.03
SIZES = {
    Kind.HSDP: (8, 4),
    Kind.TENSOR: (8, 2),
    Kind.TENSOR_SHARDED: (8, 2),
    Kind.CONTEXT: (8, 2),
    Kind.EXPERTS: (4, 4),
}
# Tensor-parallel ranks are distinguished within their worker.
SLOW = {Kind.TENSOR: "tensor_parallel_straggler", Kind.TENSOR_SHARDED: "tensor_parallel_straggler"}
STYLES = {
    "groups not listed": Style(groups_listed=False),
    "groups named": Style(groups_named=True),
    "kernels without arguments": Style(arguments=False),
    "PyTorch 2.1": Style(Writer.RECORDS),
    "PyTorch 2.0": Style(Writer.OLD),
    "ROCm": Style(Writer.ROCM),
    "XPU": Style(Writer.XPU),
    "rank in the file's name": Style(rank_said=False),
    "no steps": Style(numbered=False),
    "stacks, shapes and memory": Style(noise=True),
    "clocks apart": Style(clock_ns=200_000_000),
    "two windows": Style(windows=((1, 3), (6, 8))),
}


def training(kind: Kind, fault: Fault) -> Training:
    ranks, inner = SIZES.get(kind, (4, 1))
    return Training(kind, ranks=ranks, inner=inner, layers=3, kernels=3, steps=5, fault=fault)


def reported(job: Training, style: Style, folder: Path) -> tuple[Report, float]:
    """Return the report of a training, and its step time relative to the healthy training."""
    taken = write_training(job, style, folder)
    report = analyze(read_recordings([folder], None, None).trace).report
    return report, taken / step_ns(job.healthy(), style)


def assert_slow(job: Training, style: Style, folder: Path) -> None:
    report, slowdown = reported(job, style, folder)
    assert report.causes[0].cause == SLOW.get(job.kind, "slow_worker")
    ((worker, _),) = report.causes[0].where.workers
    ranks = job.ranks // report.sizes.dp
    assert job.fault.slow_rank is not None
    assert worker == job.fault.slow_rank // ranks
    assert report.headline is not None
    assert report.headline.slowdown == pytest.approx(slowdown, rel=WITHIN)


@pytest.mark.parametrize("kind", [kind for kind in Kind if kind is not Kind.DDP_EVALUATES])
@pytest.mark.parametrize("factor", [1.3, *every_night(1.1, 1.6)])
def test_the_slow_rank_is_named_with_what_it_costs(
    kind: Kind, factor: float, tmp_path: Path
) -> None:
    fault = Fault(slow_rank=1, slow_factor=factor)
    assert_slow(training(kind, fault), Style(), tmp_path)


@pytest.mark.parametrize(
    "kind",
    [
        Kind.SHARDED_GRADIENTS,
        Kind.FSDP_CLIPS,
        Kind.EXPERTS,
        *every_night(Kind.DDP_HALVES, Kind.DDP_ZERO, Kind.FSDP2, Kind.HSDP),
    ],
)
def test_a_host_that_launches_late_is_named_with_what_it_costs(kind: Kind, tmp_path: Path) -> None:
    job = training(kind, Fault(late_rank=1, late_factor=45.0))
    report, slowdown = reported(job, Style(), tmp_path)
    assert report.causes[0].cause == "host_overhead"
    assert report.causes[0].where.workers == ((1, 0),)
    assert report.headline is not None
    assert report.headline.slowdown == pytest.approx(slowdown, rel=WITHIN)


@pytest.mark.parametrize(
    "kind", [Kind.HSDP, *every_night(Kind.DDP_HALVES, Kind.FSDP2, Kind.TENSOR)]
)
def test_idle_time_between_steps_for_lack_of_launches_is_lost(kind: Kind, tmp_path: Path) -> None:
    report, slowdown = reported(training(kind, Fault(late_factor=45.0)), Style(), tmp_path)
    assert report.causes[0].cause == "host_overhead"
    assert report.causes[0].where.workers == ()
    assert report.headline is not None
    assert report.headline.slowdown == pytest.approx(slowdown, rel=WITHIN)


def test_what_tensor_ranks_wait_for_one_another_hides_no_slow_rank(tmp_path: Path) -> None:
    """Buckets that are reduced at the same time end in the same gaps, but do not explain them."""
    job = replace(training(Kind.TENSOR, Fault(slow_rank=3, slow_factor=1.6)), layers=10)
    assert_slow(job, Style(), tmp_path)


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("kind", [Kind.FSDP2, *every_night(Kind.DDP_ZERO, Kind.HSDP)])
def test_a_file_of_every_writer_tells_the_same(kind: Kind, style: str, tmp_path: Path) -> None:
    job = replace(training(kind, Fault(slow_rank=1)), steps=9)
    assert_slow(job, STYLES[style], tmp_path)


@pytest.mark.parametrize("kind", [Kind.DDP_HALVES, Kind.EXPERTS, *every_night(*Kind)])
def test_with_nothing_wrong_no_rank_is_named(kind: Kind, tmp_path: Path) -> None:
    report, _ = reported(training(kind, Fault()), Style(), tmp_path)
    assert report.headline is not None
    assert report.headline.slowdown <= HEALTHY
    assert not any(cause.where.workers for cause in report.causes)
    assert report.arrivals is None or not report.arrivals.straggles


@pytest.mark.parametrize("steps", [1, 3])
def test_clocks_apart_are_no_slowness_of_a_few_steps(steps: int, tmp_path: Path) -> None:
    style = Style(windows=((1, steps),), clock_ns=200_000_000)
    report, _ = reported(training(Kind.DDP, Fault()), style, tmp_path)
    assert report.headline is not None
    assert report.headline.slowdown <= HEALTHY
    assert report.causes == ()


@pytest.mark.parametrize("kind", [Kind.FSDP2, Kind.DDP_SCALED])
@pytest.mark.parametrize("style", ["no steps", "groups named"])
def test_a_late_loader_is_named_with_what_it_costs(kind: Kind, style: str, tmp_path: Path) -> None:
    """With and without step numbers of the profiler, although the batch is copied first."""
    job = replace(training(kind, Fault(loading_rank=1, loading_ns=60_000_000)), lead_ns=20_000_000)
    report, slowdown = reported(job, STYLES[style], tmp_path)
    assert report.causes[0].cause == "data_loading"
    assert report.causes[0].where.dp == 1
    assert report.headline is not None
    assert report.headline.slowdown == pytest.approx(slowdown, rel=WITHIN)


@pytest.mark.parametrize("kind", [Kind.TENSOR, *every_night(Kind.EXPERTS, Kind.TENSOR_SHARDED)])
def test_groups_without_names_are_distinguished_by_their_streams(
    kind: Kind, tmp_path: Path
) -> None:
    """The sizes of groups are unknown, so each rank is a worker."""
    job = training(kind, Fault(slow_rank=1))
    report, slowdown = reported(job, Style(Writer.OLD), tmp_path)
    assert report.sizes.dp == job.ranks
    assert report.causes[0].cause == "slow_worker"
    assert report.causes[0].where.workers[0] == (1, 0)
    assert report.headline is not None
    assert report.headline.slowdown == pytest.approx(slowdown, rel=WITHIN)


def test_an_exchange_of_tokens_is_no_transfer_of_a_pipeline(tmp_path: Path) -> None:
    """NCCL uses kernels of sends and receives for the exchange of tokens, too."""
    assert_slow(training(Kind.EXPERTS, Fault(slow_rank=1)), STYLES["PyTorch 2.1"], tmp_path)
