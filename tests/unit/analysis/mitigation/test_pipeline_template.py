"""Templates around slow workers and uneven stages, and their replay."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from app.analysis.diagnosis.observation import Observation
from app.analysis.mitigation.fixes import PlannedTemplate, WithheldTemplate
from app.analysis.mitigation.pipeline_template import recommend_template
from app.analysis.replay.session import prepare_replay
from app.analysis.report.build import analyze
from app.analysis.report.document import Report
from app.analysis.synthesis.injections.base import Injection
from app.analysis.synthesis.injections.computations import (
    SequenceLengths,
    SlowWorker,
    StageImbalance,
)
from app.analysis.synthesis.job import JobModel, Schedule
from app.analysis.synthesis.synthesize import synthesize
from app.analysis.trace.model import Sizes, Trace

JOB = JobModel(Sizes(dp=3, pp=4), microbatches=12, steps=8, layers=(8, 8, 8, 8))


def trace_of(*injections: Injection, job: JobModel = JOB) -> Trace:
    return synthesize(job, injections, seed=3).trace


def planned(report: Report) -> PlannedTemplate:
    assert isinstance(report.template, PlannedTemplate)
    return report.template


def withheld(trace: Trace) -> WithheldTemplate:
    found = analyze(trace).report.template
    assert isinstance(found, WithheldTemplate)
    return found


def with_layers(trace: Trace, layers: object) -> Trace:
    extra = {} if layers is None else {"layers": layers}
    return dataclasses.replace(trace, meta=dataclasses.replace(trace.meta, extra=extra))


def test_a_slow_worker_gets_fewer_layers_and_the_step_is_shorter() -> None:
    trace = trace_of(SlowWorker((1, 2), 2.0))
    report = analyze(trace).report
    found = planned(report)
    assert found.gap is not None
    assert found.proven == (found.gap == 0)
    assert found.gap < 0.02
    assert sum(found.layers.template) == 32
    place = found.worker_of_stage.index(2)
    assert found.layers.template[place] < 8
    assert sorted(found.worker_of_stage) == [0, 1, 2, 3]
    assert found.speed_of_worker[2] == pytest.approx(0.5, rel=0.05)
    assert max(found.stage_ms.template) < 0.7 * max(found.stage_ms.today)
    assert found.predicted_gain > 0.2
    now_s = np.mean(report.step_times.simulated)
    assert found.predicted_step_time == pytest.approx(now_s * (1 - found.predicted_gain))


def test_what_is_predicted_is_what_a_job_so_divided_takes() -> None:
    """The job is executed with the layers of the template and the same slow worker."""
    slow = trace_of(SlowWorker((0, 3), 1.5))
    found = planned(analyze(slow).report)
    assert found.worker_of_stage == (0, 1, 2, 3)
    counts = np.array(found.layers.template)
    # Each stage takes its share of the layers on every DP rank; worker (0, 3) takes 1.5 times as
    # long.
    changes = [
        SlowWorker((dp, pp), counts[pp] / 8 * (1.5 if (dp, pp) == (0, 3) else 1.0))
        for dp in range(3)
        for pp in range(4)
    ]
    executed = analyze(trace_of(*changes)).report.step_times.simulated
    assert found.predicted_step_time == pytest.approx(np.mean(executed), rel=0.02)


def test_a_worker_that_has_one_peer_makes_no_layer_cost_more() -> None:
    job = dataclasses.replace(JOB, sizes=Sizes(dp=2, pp=4))
    found = planned(analyze(trace_of(SlowWorker((1, 1), 1.6), job=job)).report)
    assert found.speed_of_worker[1] == pytest.approx(1 / 1.6, rel=0.02)
    assert not found.head
    assert not found.at_most
    counts = np.array(found.layers.template)
    slow = found.worker_of_stage.index(1)
    changes = [
        SlowWorker((dp, pp), counts[pp] / 8 * (1.6 if (dp, pp) == (1, slow) else 1.0))
        for dp in range(2)
        for pp in range(4)
    ]
    executed = analyze(trace_of(*changes, job=job)).report.step_times.simulated
    assert found.predicted_step_time == pytest.approx(np.mean(executed), rel=0.02)


def test_two_stages_do_not_tell_a_head_from_layers() -> None:
    job = dataclasses.replace(JOB, sizes=Sizes(dp=3, pp=2), layers=(8, 8))
    uneven = (SlowWorker((1, 1), 1.5), StageImbalance(1.4, 1.4))
    report = analyze(trace_of(*uneven, job=job)).report
    assert planned(report).at_most
    even = analyze(trace_of(uneven[0], job=job)).report
    assert not planned(even).at_most


def test_a_heavy_last_stage_gets_fewer_layers() -> None:
    found = planned(analyze(trace_of(StageImbalance())).report)
    assert found.head
    assert found.layers.template[3] < 8
    assert found.predicted_gain > 0.1


@pytest.mark.parametrize("layers", [None, [8, 8], "8888", [8, 8, 8, 0]])
def test_without_layer_counts_it_is_withheld(layers: object) -> None:
    found = withheld(with_layers(trace_of(SlowWorker((1, 2), 2.0)), layers))
    assert found.withheld == "layers_unknown"
    assert "layers" in found.reason


def test_virtual_stages_are_withheld() -> None:
    job = JobModel(
        Sizes(dp=2, pp=2, vpp=2),
        microbatches=8,
        steps=8,
        schedule=Schedule.INTERLEAVED,
        layers=(8, 8),
    )
    found = withheld(trace_of(SlowWorker((1, 1), 2.0), job=job))
    assert found.withheld == "plan.virtual_stages"


@pytest.mark.parametrize("injections", [(), (SequenceLengths(),)], ids=["healthy", "lengths"])
def test_other_sessions_get_none(injections: tuple[Injection, ...]) -> None:
    assert analyze(trace_of(*injections)).report.template is None


def test_one_stage_has_nothing_to_divide() -> None:
    job = JobModel(Sizes(dp=4, pp=1), microbatches=4, steps=8, layers=(8,))
    trace = trace_of(SlowWorker((1, 0), 2.0), job=job)
    replayed = prepare_replay(trace)
    assert recommend_template(Observation(trace, replayed.main), replayed, [], [], 1.0) is None
    assert analyze(trace).report.template is None
