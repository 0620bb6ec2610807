"""Causes of recorded profiles of DDP and FSDP: pauses, loaders and lengths of batches."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import pytest

from app.analysis.report.build import analyze
from app.cli.convert import read_recordings
from tests.support.gpu_profiles.files import write
from tests.support.gpu_profiles.job import MS, Fault, Job, Mode, Pause, Place, Style
from tests.support.gpu_profiles.machine import step_time_ns
from tests.support.gpu_profiles.programs import run

if TYPE_CHECKING:
    from pathlib import Path

    from app.analysis.report.document import Report

PLAIN: Final = Job(
    Mode.DDP, ranks=5, steps=8, layers=4, buckets=2, exchange=0.3, compiled=True, seed=3
)
# Ranks in an order that has no period.
ORDER: Final = (2, 0, 4, 1, 3, 4, 0, 1)


def moving(place: Place, job: Job = PLAIN) -> Job:
    """Return the job with a pause of another host in each step."""
    pauses = (Pause(step, rank, place, 60 * MS) for step, rank in enumerate(ORDER))
    return replace(job, fault=Fault(pauses=tuple(pauses)))


def report_of(job: Job, folder: Path) -> tuple[Report, float]:
    """Return the report of the job's files, and the true slowdown."""
    machine = run(job)
    write(machine, Style(), folder)
    report = analyze(read_recordings([folder], None, None).trace).report
    return report, step_time_ns(machine) / step_time_ns(run(job.healthy()))


@pytest.mark.parametrize("mode", [Mode.DDP, Mode.FSDP2])
@pytest.mark.parametrize("place", [Place.BEGIN, Place.FORWARD])
def test_pauses_of_another_host_in_each_step_are_one_cause_of_no_worker(
    mode: Mode, place: Place, tmp_path: Path
) -> None:
    report, slowdown = report_of(moving(place, replace(PLAIN, mode=mode)), tmp_path)

    (cause,) = report.causes
    assert cause.cause == "rotating"
    assert cause.where.workers == ()
    assert report.headline.slowdown == pytest.approx(slowdown, rel=0.04)
    assert "pauses that each host has at its own time" in cause.evidence[-1]


@pytest.mark.parametrize("rank", [0, 3])
@pytest.mark.parametrize("steps", [(4,), (2, 5), (0, 1, 2, 3, 4, 5, 6)])
def test_a_rank_that_pauses_while_its_loader_is_quick_does_not_wait_for_data(
    rank: int, steps: tuple[int, ...], tmp_path: Path
) -> None:
    pauses = tuple(Pause(step, rank, Place.END, 150 * MS) for step in steps)
    report, slowdown = report_of(replace(PLAIN, fault=Fault(pauses=pauses)), tmp_path)

    named = [cause.cause for cause in report.causes]
    assert "data_loading" not in named
    assert named[0] in {"between_steps", "checkpoint"}
    assert report.causes[0].where.dp == rank
    assert report.headline.slowdown == pytest.approx(slowdown, rel=0.04)


def test_a_slow_loader_of_one_rank_is_still_data_loading(tmp_path: Path) -> None:
    job = replace(PLAIN, fault=Fault(loading_rank=3, loading_ns=80 * MS))
    report, slowdown = report_of(job, tmp_path)

    assert [cause.cause for cause in report.causes] == ["data_loading"]
    assert report.causes[0].where.dp == 3
    assert report.headline.slowdown == pytest.approx(slowdown, rel=0.05)


@pytest.mark.parametrize("spread", [0.4, 1.2])
def test_batches_of_other_lengths_are_an_imbalance_of_no_worker(
    spread: float, tmp_path: Path
) -> None:
    report, slowdown = report_of(replace(PLAIN, fault=Fault(lengths=spread)), tmp_path)

    assert [cause.cause for cause in report.causes] == ["sequence_length_imbalance"]
    assert [fix.action for fix in report.recommendations] == ["even_microbatches"]
    assert report.headline.slowdown == pytest.approx(slowdown, rel=0.05)


def test_a_healthy_job_has_no_cause(tmp_path: Path) -> None:
    report, _ = report_of(PLAIN, tmp_path)

    assert report.causes == ()
