"""Collectives of ranks whose files do not match: other step numbers, lost kernels, torn clocks."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.analysis.report.build import analyze
from app.analysis.report.document import Report
from app.cli.convert import read_recordings
from tests.support.gpu_profiles.files import write
from tests.support.gpu_profiles.job import Fault, Job, Mode, Style, Writer
from tests.support.gpu_profiles.machine import step_time_ns
from tests.support.gpu_profiles.programs import run

Event = dict[str, Any]

JOB = Job(Mode.DDP, ranks=4, buckets=4, steps=6)
SLOW = replace(JOB, fault=Fault(slow_rank=1, slow_factor=1.5))
# A network that is slow in two steps, so that steps differ.
SPELL = replace(JOB, fault=Fault(network_factor=6, network_steps=frozenset({2, 3})))


def report_of(
    job: Job, change: Callable[[list[Event]], list[Event]], folder: Path, style: Style | None = None
) -> Report:
    """Return the report of a job of whose rank 2 some events are changed or left out."""
    write(run(job), Style() if style is None else style, folder)
    path = folder / "rank2.json"
    document = json.loads(path.read_text())
    document["traceEvents"] = change(document["traceEvents"])
    path.write_text(json.dumps(document))
    return analyze(read_recordings([folder], None, None).trace).report


def slowdown_of(job: Job) -> float:
    return step_time_ns(run(job)) / step_time_ns(run(job.healthy()))


def numbered_later(events: list[Event], by: int) -> list[Event]:
    for event in events:
        name, _, number = str(event["name"]).partition("#")
        if name == "ProfilerStep":
            event["name"] = f"{name}#{int(number) + by}"
    return events


def without_reductions(events: list[Event], places: set[int]) -> list[Event]:
    """Leave out the kernels of a step's reductions at some places, in all steps."""
    kernels = [e for e in events if e.get("cat") == "kernel" and "AllReduce" in e["name"]]
    kernels.sort(key=lambda event: event["ts"])
    lost = {id(e) for place, e in enumerate(kernels) if place % JOB.buckets in places}
    return [event for event in events if id(event) not in lost]


def with_torn_clock(events: list[Event], jumps_us: float) -> list[Event]:
    """Let the clock jump before each step."""
    begins = sorted(e["ts"] for e in events if str(e["name"]).startswith("ProfilerStep#"))
    offsets = np.random.default_rng(3).uniform(-jumps_us, jumps_us, len(begins) + 1)
    for event in events:
        if "ts" in event:
            event["ts"] += offsets[np.searchsorted(begins, event["ts"], side="right")]
    return events


@pytest.mark.parametrize("by", [-1, 1, 2])
@pytest.mark.parametrize(("job", "cause"), [(SPELL, "network"), (SLOW, "slow_worker")])
def test_a_rank_with_other_step_numbers_is_matched_by_the_ends_of_steps(
    job: Job, cause: str, by: int, tmp_path: Path
) -> None:
    report = report_of(job, lambda events: numbered_later(events, by), tmp_path)

    assert [item.cause for item in report.causes] == [cause]
    # Steps that not all ranks have under a common number are left out.
    assert report.headline.slowdown == pytest.approx(slowdown_of(job), rel=0.1)
    assert report.fidelity.discrepancy < 0.01


def test_the_coverage_names_other_step_numbers(tmp_path: Path) -> None:
    report = report_of(SPELL, lambda events: numbered_later(events, 1), tmp_path)

    said = [item.what for item in report.coverage.unmapped]
    assert "step numbers of rank 2 that are +1 from those of its peers" in said
    assert not report.clocks.warnings


@pytest.mark.parametrize("writer", [Writer.OLD, Writer.NUMBERED])
@pytest.mark.parametrize("places", [{3}, {0}, {1, 3}], ids=str)
def test_reductions_whose_kernels_one_rank_lost_are_no_cause(
    places: set[int], writer: Writer, tmp_path: Path
) -> None:
    style = Style(writer=writer)
    (tmp_path / "healthy").mkdir()
    (tmp_path / "slow").mkdir()
    healthy, slow = (
        report_of(job, lambda events: without_reductions(events, places), folder, style)
        for job, folder in ((JOB, tmp_path / "healthy"), (SLOW, tmp_path / "slow"))
    )

    assert not healthy.causes
    assert healthy.headline.slowdown <= 1.03
    assert [(c.cause, c.where.workers) for c in slow.causes] == [("slow_worker", ((1, 0),))]
    assert slow.headline.slowdown == pytest.approx(slowdown_of(SLOW), rel=0.03)


LONGER = replace(JOB, forward_ns=65_000_000)
OTHER_SPELL = replace(SPELL, fault=replace(SPELL.fault, network_steps=frozenset({0, 4})))


@pytest.mark.parametrize(
    ("job", "other"), [(JOB, LONGER), (SLOW, LONGER), (SLOW, OTHER_SPELL), (SPELL, OTHER_SPELL)]
)
def test_files_of_different_runs_are_no_verdict(job: Job, other: Job, tmp_path: Path) -> None:
    write(run(other), Style(), tmp_path)
    of_other_run = json.loads((tmp_path / "rank2.json").read_text())["traceEvents"]
    report = report_of(job, lambda _: of_other_run, tmp_path)

    assert not report.fidelity.verdict
    assert not report.causes
    assert report.verdict.sentence.startswith("No verdict: ends of the same collectives fit no")
    assert "files are of different runs" in (report.fidelity.reason or "")


@pytest.mark.parametrize("jumps_us", [0, 3_000])
def test_clocks_that_jump_little_leave_a_verdict(jumps_us: float, tmp_path: Path) -> None:
    report = report_of(SLOW, lambda events: with_torn_clock(events, jumps_us), tmp_path)

    assert report.causes[0].where.workers == ((1, 0),)
    assert report.headline.slowdown == pytest.approx(slowdown_of(SLOW), rel=0.03)
