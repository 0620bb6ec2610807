from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from app.analysis.diagnosis.causes.checkpoint import CHECKPOINT
from app.analysis.diagnosis.causes.data_loading import DATA_LOADING
from app.analysis.diagnosis.observation import Explained
from app.analysis.synthesis.injections.delays import Checkpoint, SlowDataLoading
from app.analysis.synthesis.job import JobModel
from tests.unit.analysis.diagnosis.jobs import (
    INTERLEAVED,
    JOB,
    MS,
    ONE_STAGE,
    causes,
    check_named_alone,
    diagnosed,
    evidence,
    found,
    session,
    signs_of,
)

SAVING = Checkpoint(3, 900 * MS)
LONGER = replace(JOB, steps=24)


@pytest.mark.parametrize(
    "job",
    [
        LONGER,
        replace(LONGER, sizes=ONE_STAGE.sizes),
        replace(LONGER, edge_transfers=True),
        replace(INTERLEAVED, steps=20),
    ],
    ids=["stages", "one stage", "edge transfers", "virtual stages"],
)
def test_it_is_named_alone_with_most_of_the_lost_time(job: JobModel) -> None:
    check_named_alone(SAVING, job)


def test_nothing_is_found_in_a_healthy_job_nor_where_every_step_waits_for_its_data() -> None:
    assert CHECKPOINT.find(signs_of(session(job=LONGER))) is None
    assert CHECKPOINT.find(signs_of(session(SlowDataLoading(200 * MS), job=LONGER))) is None


def test_the_steps_are_named_and_how_far_they_are_apart() -> None:
    synthetic = session(SAVING, job=LONGER)
    slow = synthetic.truth.slow_steps
    apart = np.gcd.reduce(np.diff(slow))

    assert apart % 3 == 0
    assert f"at the start of steps {slow[0]}, {slow[1]}, " in evidence(diagnosed(synthetic))
    assert f"{apart} steps apart" in evidence(diagnosed(synthetic))


def test_only_the_first_operations_of_those_steps_are_late() -> None:
    synthetic = session(SAVING, job=LONGER)
    finding = found(CHECKPOINT, signs_of(synthetic))
    struck = np.isin(synthetic.truth.steps, synthetic.truth.slow_steps)

    assert len(finding.launches.late_ns) == LONGER.sizes.pp
    for node, late_ns in finding.launches.late_ns.items():
        assert late_ns[struck].mean() == pytest.approx(900 * MS, rel=0.2)
        assert not late_ns[~struck].any()
        np.testing.assert_array_equal(finding.change.on_time[node], late_ns > 0)


def test_time_of_checkpoints_is_no_wait_for_data() -> None:
    signs = signs_of(session(SAVING, job=LONGER))
    finding = found(CHECKPOINT, signs)

    assert DATA_LOADING.find(signs) is not None
    assert DATA_LOADING.find(signs.net_of(Explained(late_ns=finding.launches.late_ns))) is None


def test_with_late_data_both_are_named() -> None:
    diagnosis = diagnosed(session(SAVING, SlowDataLoading(150 * MS), job=LONGER))

    assert sorted(causes(diagnosis)) == ["checkpoint", "data_loading"]


def test_a_single_standstill_is_a_checkpoint_with_less_confidence() -> None:
    steps = session(job=LONGER).truth.steps
    once = Checkpoint(10_000, 1800 * MS, offset=steps[5])
    diagnosis = diagnosed(session(once, job=LONGER))

    assert causes(diagnosis) == ["checkpoint"]
    assert (diagnosis.causes[0].confidence or 1) <= 0.8
    assert f"at the start of step {steps[5]}, and of no other" in evidence(diagnosis)


def test_once_on_one_stage_may_as_well_wait_for_data() -> None:
    steps = session(job=ONE_STAGE).truth.steps
    once = Checkpoint(10_000, 4000 * MS, offset=steps[5])

    assert causes(diagnosed(session(once, job=ONE_STAGE))) == ["checkpoint", "data_loading"]


def test_two_on_one_stage_may_as_well_wait_for_data() -> None:
    one_stage = replace(ONE_STAGE, steps=8)
    steps = session(job=one_stage).truth.steps
    twice = Checkpoint(steps[5] - steps[2], 2000 * MS, offset=steps[2])
    cause, other = diagnosed(session(twice, job=one_stage)).causes

    assert (cause.cause, other.cause) == ("checkpoint", "data_loading")
    assert (cause.confidence or 1) <= 0.8
    assert other.cost_s is None


@pytest.mark.parametrize("waiting", [SlowDataLoading(80 * MS), SlowDataLoading(150 * MS)])
def test_without_it_steps_wait_for_their_data_as_they_do(waiting: SlowDataLoading) -> None:
    both = session(waiting, SAVING, job=LONGER)
    now_s = np.mean(both.truth.step_times_s)
    saves = {cause.cause: cause.saves for cause in diagnosed(both).causes}

    left_s = np.mean(session(waiting, job=LONGER).truth.step_times_s)
    assert saves[CHECKPOINT.name] == pytest.approx(1 - left_s / now_s, abs=0.02)
    left_s = np.mean(session(SAVING, job=LONGER).truth.step_times_s)
    assert saves[DATA_LOADING.name] == pytest.approx(1 - left_s / now_s, abs=0.02)
