"""Divisions of layers in reports: recommended for lasting differences, with their true gain."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from app.analysis.mitigation.layers.division import launcher_flag
from app.analysis.report.build import analyze
from app.analysis.report.document import Recommendation, Report
from app.analysis.synthesis.injections.base import Injection, Spells
from app.analysis.synthesis.injections.computations import (
    GarbageCollection,
    SlowWorker,
    StageImbalance,
)
from app.analysis.synthesis.injections.delays import SlowDataLoading, SlowLink
from app.analysis.synthesis.job import JobModel, Schedule
from app.analysis.synthesis.synthesize import synthesize
from app.analysis.trace.model import Sizes

MS = 1e6
JOB = JobModel(Sizes(dp=3, pp=4), microbatches=12, steps=10, layers=(8, 8, 8, 8))
VIRTUAL = JobModel(
    Sizes(dp=2, pp=2, vpp=2),
    microbatches=8,
    steps=10,
    schedule=Schedule.INTERLEAVED,
    layers=(16, 16),
)


def report_of(*injections: Injection, job: JobModel = JOB) -> Report:
    return analyze(synthesize(job, injections, seed=3).trace).report


def division_fix(report: Report) -> Recommendation:
    (fix,) = (fix for fix in report.recommendations if fix.action == "even_stages")
    return fix


def executed(job: JobModel, layers: tuple[tuple[int, ...], ...], head: float) -> float:
    """Return the step of a job whose stages have `layers`, with a head that costs `head` layers."""
    today = np.array(job.layers) / job.sizes.vpp
    changes = []
    for pp, chunks in enumerate(layers):
        own = float(sum(chunks)) + (head if pp == job.sizes.pp - 1 else 0.0)
        factor = own / (today[pp] * job.sizes.vpp)
        changes += [SlowWorker((dp, pp), factor) for dp in range(job.sizes.dp)]
    return float(np.mean(synthesize(job, changes, seed=3).truth.step_times_s))


def test_what_is_promised_is_what_a_job_so_divided_takes() -> None:
    heavy = StageImbalance(forward_factor=1.625, backward_factor=1.625)
    report = report_of(heavy)
    fix = division_fix(report)
    assert fix.division is not None
    assert fix.title == f"Divide the layers {fix.division.text}"
    assert not fix.at_most
    assert fix.cause == "stage_imbalance"
    assert fix.division.proven
    assert fix.division.flag in fix.detail
    assert fix.division.layer_ms == pytest.approx(15.0, rel=0.02)
    assert fix.division.head_ms / fix.division.layer_ms == pytest.approx(5, rel=0.05)
    assert sum(map(sum, fix.division.layers)) == 32
    realised_s = executed(JOB, fix.division.layers, head=5)
    now_s = float(np.mean(report.step_times.recorded))
    assert fix.predicted_gain == pytest.approx(1 - realised_s / now_s, abs=0.01)


def test_virtual_stages_are_divided_too() -> None:
    report = report_of(StageImbalance(), job=VIRTUAL)
    fix = division_fix(report)
    assert fix.division is not None
    assert fix.division.today == ((8, 8), (8, 8))
    assert sum(map(sum, fix.division.layers)) == 32
    # The last chunk contains the head.
    assert fix.division.layers[1][1] < 8
    assert fix.division.flag.startswith('--pipeline-model-parallel-layout "Et*')
    assert fix.predicted_gain > 0.05


@pytest.mark.parametrize(
    "injection",
    [
        SlowWorker((1, 3), 2.0),
        SlowWorker((1, 3), 2.5, Spells(share=0.5)),
        GarbageCollection(150 * MS, pauses=0.5),
        SlowLink((2, 1), 30.0),
        SlowDataLoading(400 * MS),
    ],
    ids=lambda injection: injection.cause,
)
def test_no_division_is_promised_for_anything_else(injection: Injection) -> None:
    report = report_of(injection)
    assert report.recommendations
    assert [fix for fix in report.recommendations if fix.action == "even_stages"] == []


def test_with_a_slow_worker_only_what_stages_lastingly_take_counts() -> None:
    both = report_of(StageImbalance(), SlowWorker((1, 1), 1.6, Spells(share=0.4)))
    alone = division_fix(report_of(StageImbalance()))
    fix = division_fix(both)
    assert alone.division is not None
    assert fix.division is not None
    assert fix.division.head_ms == pytest.approx(alone.division.head_ms, rel=0.05)


def test_without_layers_the_most_is_said() -> None:
    report = report_of(StageImbalance(), job=replace(JOB, layers=()))
    fix = division_fix(report)
    assert fix.at_most
    assert fix.division is None
    assert fix.predicted_gain > division_fix(report_of(StageImbalance())).predicted_gain


def test_nothing_is_advised_where_no_action_is_needed() -> None:
    report = report_of(StageImbalance(forward_factor=1.08, backward_factor=1.08))
    assert report.verdict.level == "ok"
    assert [cause.cause for cause in report.causes] == ["stage_imbalance"]
    assert report.recommendations == ()
    assert report.template is None


def test_the_flag_lists_virtual_stages_in_the_order_of_the_model() -> None:
    # Pipeline rank 0 has the first and the third part of the model.
    assert launcher_flag(((1, 3), (2, 4))) == (
        '--pipeline-model-parallel-layout "Et*1|t*2|t*3|t*4L"'
    )
