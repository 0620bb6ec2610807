"""With one DP rank, the numbers of layers distinguish a heavy stage from a slow worker."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from app.analysis.diagnosis.diagnose import Diagnosis
from app.analysis.report.build import analyze
from app.analysis.synthesis.injections.base import Spells
from app.analysis.synthesis.injections.computations import SlowWorker, StageImbalance
from app.analysis.synthesis.job import JobModel
from app.analysis.synthesis.synthesize import SyntheticSession
from app.analysis.trace.model import Trace
from tests.unit.analysis.diagnosis.jobs import ONE_RANK, causes, diagnosed, session

EVEN = replace(ONE_RANK, layers=(8, 8, 8, 8))
UNEVEN = replace(ONE_RANK, layers=(8, 16, 8, 8))


def mean_step_ns(trace: Trace) -> float:
    """Return the mean time from the first start of a step to its last end."""
    ends = trace.start_ns + trace.duration_ns
    steps = [trace.step == step for step in np.unique(trace.step)]
    return float(np.mean([ends[at].max() - trace.start_ns[at].min() for at in steps]))


def confidences(diagnosis: Diagnosis) -> list[float]:
    return [cause.confidence or 0.0 for cause in diagnosis.causes]


def test_with_even_layers_a_slow_stage_between_the_others_is_a_slow_worker() -> None:
    diagnosis = diagnosed(session(SlowWorker((0, 1), 1.8), job=EVEN))

    assert causes(diagnosis) == ["slow_worker"]
    assert diagnosis.causes[0].where.workers == ((0, 1),)
    # The worker's reference is the other stages' time without the fault, and not the mean of all.
    healthy = diagnosed(session(job=EVEN))
    assert healthy.causes == ()
    assert diagnosis.slowdown == pytest.approx(1.5, abs=0.1)


THICK = replace(ONE_RANK, layers=(20, 20, 20, 20))


@pytest.mark.parametrize(
    ("stage", "job", "first"),
    [
        # An embedding costs next to nothing, and a head as much as a few layers.
        pytest.param(0, EVEN, "slow_worker", id="first stage"),
        pytest.param(3, EVEN, "stage_imbalance", id="last stage"),
        pytest.param(3, THICK, "slow_worker", id="a head of 16 layers"),
    ],
)
def test_at_the_ends_of_the_pipeline_both_causes_are_said(
    stage: int, job: JobModel, first: str
) -> None:
    diagnosis = diagnosed(session(SlowWorker((0, stage), 1.8), job=job))

    assert causes(diagnosis)[0] == first
    by_name = {cause.cause: cause for cause in diagnosis.causes}
    assert set(by_name) == {"stage_imbalance", "slow_worker"}
    assert {cause.where.stage for cause in diagnosis.causes} == {stage}
    assert by_name["slow_worker"].where.workers == ((0, stage),)
    assert max(confidences(diagnosis)) < 0.9
    assert "Uneven cost or a slow worker" in diagnosis.causes[0].evidence[-1].text


def test_at_the_first_stage_the_job_is_held_against_itself_without_a_slow_worker() -> None:
    slow, healthy = session(SlowWorker((0, 0), 1.8), job=EVEN), session(job=EVEN)

    true = mean_step_ns(slow.trace) / mean_step_ns(healthy.trace)
    assert diagnosed(slow).slowdown == pytest.approx(true, rel=0.01)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_without_layers_nothing_is_sure(stage: int) -> None:
    diagnosis = diagnosed(session(SlowWorker((0, stage), 1.8), job=ONE_RANK))

    assert set(causes(diagnosis)) == {"stage_imbalance", "slow_worker"}
    assert max(confidences(diagnosis)) < 0.9


def test_a_stage_with_more_layers_is_heavy_for_sure() -> None:
    heavy = StageImbalance(forward_factor=2.0, backward_factor=2.0, at=1)
    diagnosis = diagnosed(session(heavy, job=UNEVEN))

    assert causes(diagnosis) == ["stage_imbalance"]
    assert diagnosis.causes[0].where.stage == 1
    assert confidences(diagnosis)[0] > 0.9


# Of four stages of 8 layers, a head of 1.3 layers by its FLOPs, or of 8.
SMALL_HEAD = {"model": {"hidden": 8192, "vocabulary": 128256}, "seq_length": 4096}
LARGE_HEAD = {"model": {"hidden": 2048, "vocabulary": 262144}, "seq_length": 4096}


def with_metadata(synthetic: SyntheticSession, extra: dict[str, Any]) -> SyntheticSession:
    meta = synthetic.trace.meta
    described = replace(meta, extra={**meta.extra, **extra})
    return replace(synthetic, trace=replace(synthetic.trace, meta=described))


@pytest.mark.parametrize("stage", [0, 3])
def test_a_stage_that_exceeds_the_flops_of_its_head_has_a_slow_worker(stage: int) -> None:
    slow = session(SlowWorker((0, stage), 1.8), job=EVEN)
    diagnosis = diagnosed(with_metadata(slow, SMALL_HEAD))

    assert causes(diagnosis) == ["slow_worker"]
    assert confidences(diagnosis)[0] > 0.9
    truth = mean_step_ns(slow.trace) / mean_step_ns(session(job=EVEN).trace)
    assert diagnosis.slowdown == pytest.approx(truth, rel=0.1)


def test_a_stage_as_heavy_as_the_flops_of_its_head_is_heavy_for_sure() -> None:
    heavy = StageImbalance(forward_factor=1.9, backward_factor=1.9, at=3)
    diagnosis = diagnosed(with_metadata(session(heavy, job=EVEN), LARGE_HEAD))

    assert causes(diagnosis) == ["stage_imbalance"]
    assert confidences(diagnosis)[0] > 0.9


@pytest.mark.parametrize("job", [EVEN, ONE_RANK], ids=["layers", "no layers"])
@pytest.mark.parametrize("stage", [0, 1, 3])
def test_a_stage_that_is_fast_in_a_stretch_of_steps_has_a_slow_worker(
    stage: int, job: JobModel
) -> None:
    longer = replace(job, steps=20)
    slow = session(SlowWorker((0, stage), 1.8, Spells(from_step=6)), job=longer)
    diagnosis = diagnosed(slow)

    assert causes(diagnosis) == ["slow_worker"]
    assert diagnosis.causes[0].where.workers == ((0, stage),)
    truth = mean_step_ns(slow.trace) / mean_step_ns(session(job=longer).trace)
    assert diagnosis.slowdown == pytest.approx(truth, rel=0.03)


def test_a_heavy_stage_stays_heavy_while_another_worker_has_a_slow_spell() -> None:
    heavy = StageImbalance(forward_factor=1.9, backward_factor=1.9, at=3)
    spell = SlowWorker((0, 1), 1.9, Spells(from_step=14))
    diagnosis = diagnosed(session(heavy, spell, job=replace(EVEN, steps=20)))

    assert "stage_imbalance" in causes(diagnosis)
    blamed = [cause.where.workers for cause in diagnosis.causes if cause.cost_s is not None]
    assert ((0, 3),) not in blamed


FORWARDS = SlowWorker((0, 1), 1.8, backward_share=0.0)


def test_a_stage_between_the_others_that_is_slow_in_forwards_alone_has_a_slow_worker() -> None:
    slow = session(FORWARDS, job=EVEN)
    diagnosis = diagnosed(slow)

    assert causes(diagnosis) == ["slow_worker"]
    assert diagnosis.causes[0].where.workers == ((0, 1),)
    truth = mean_step_ns(slow.trace) / mean_step_ns(session(job=EVEN).trace)
    assert diagnosis.slowdown == pytest.approx(truth, rel=0.02)


@pytest.mark.parametrize(("stage", "job"), [(1, ONE_RANK), (3, EVEN), (3, ONE_RANK)])
def test_a_stage_that_is_slow_in_forwards_alone_is_never_heavy_for_sure(
    stage: int, job: JobModel
) -> None:
    diagnosis = diagnosed(session(replace(FORWARDS, worker=(0, stage)), job=job))

    assert set(causes(diagnosis)) == {"stage_imbalance", "slow_worker"}
    assert max(confidences(diagnosis)) < 0.9


@pytest.mark.parametrize(
    ("job", "extra", "missing"),
    [
        (ONE_RANK, {}, "record layers, model and seq_length in the metadata, or compare"),
        (EVEN, {}, "record model and seq_length in the metadata, or compare"),
        (EVEN, {"model": SMALL_HEAD["model"]}, "record seq_length in the metadata, or compare"),
    ],
)
def test_only_metadata_that_are_missing_are_named_to_tell_causes_apart(
    job: JobModel, extra: dict[str, Any], missing: str
) -> None:
    slow = with_metadata(session(SlowWorker((0, 3), 1.8), job=job), extra)

    assert f"To tell them apart: {missing}" in diagnosed(slow).causes[0].evidence[-1].text


def test_of_two_possible_causes_each_has_its_slowdown_and_its_fix() -> None:
    slow = session(SlowWorker((0, 3), 1.8), job=EVEN)
    report = analyze(slow.trace).report

    truth = mean_step_ns(slow.trace) / mean_step_ns(session(job=EVEN).trace)
    assert f"uneven cost or a slow worker ({truth:.1f}" in report.verdict.sentence
    assert report.verdict.sentence.endswith("× if it is a slow worker)")
    assert [cause.cause for cause in report.causes] == ["stage_imbalance", "slow_worker"]
    assert f"If so, the job is {truth:.1f}" in report.causes[1].evidence[-1]
    assert "To tell them apart" in report.causes[0].evidence[-1]
    assert {fix.cause for fix in report.recommendations} == {"stage_imbalance", "slow_worker"}
