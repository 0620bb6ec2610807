from __future__ import annotations

import pytest

from app.analysis.report.build import analyze
from app.analysis.synthesis.fleet import published_slowdown
from app.analysis.synthesis.injections.base import Injection
from app.analysis.synthesis.injections.computations import (
    GarbageCollection,
    SlowWorker,
    StageImbalance,
)
from app.analysis.synthesis.injections.delays import SlowDataLoading, SlowLink
from app.analysis.synthesis.job import CostModel, JobModel
from app.analysis.synthesis.synthesize import synthesize
from app.analysis.trace.model import Sizes

JOB = JobModel(sizes=Sizes(dp=4, pp=4), microbatches=8, steps=8, costs=CostModel())


@pytest.mark.parametrize(
    "injection",
    [
        SlowWorker((1, 2), 2.0),
        StageImbalance(),
        GarbageCollection(80e6, 0.5),
        SlowLink((2, 1), 8.0),
    ],
)
def test_it_is_the_s_that_an_analysis_finds(injection: Injection) -> None:
    measured = analyze(synthesize(JOB, [injection], seed=5).trace).report.slowdown

    assert measured > 1.05
    assert published_slowdown(JOB, [injection], seed=5) == pytest.approx(measured, rel=0.01)


def test_it_contains_the_straggler_and_leaves_out_late_launches() -> None:
    slow = SlowWorker((1, 2), 2.0)
    true = synthesize(JOB, [slow], seed=5).truth.slowdown
    late = SlowDataLoading(100e6)

    assert published_slowdown(JOB, [slow], seed=5) < true - 0.05
    assert published_slowdown(JOB, [late], seed=5) == published_slowdown(JOB, [], seed=5)
