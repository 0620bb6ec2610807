"""What replacing slow workers is predicted to bring, against the same job without them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from app.analysis.report import analyze
from app.analysis.synthesis.injection import Injection, Spells
from app.analysis.synthesis.injections import SlowWorker
from app.analysis.synthesis.job import CostModel, JobModel, Schedule
from app.analysis.synthesis.synthesize import SyntheticSession, synthesize
from app.analysis.trace.model import Sizes

JOB = JobModel(Sizes(dp=4, pp=4), microbatches=8, steps=16)
# Hosts that launch late: the replay, which does not have that, is some per cent off.
LATE = JobModel(
    Sizes(dp=6, pp=4, vpp=3),
    microbatches=8,
    steps=12,
    schedule=Schedule.INTERLEAVED,
    costs=CostModel(launch_overhead_ns=0.4e6),
)


def replacement(synthetic: SyntheticSession) -> tuple[dict[str, Any], float]:
    """Return the recommended replacement, and how far its step is from the true one."""
    document = analyze(synthetic.trace).document
    (fix,) = (f for f in document["recommendations"] if f["action"] == "replace_worker")
    now_s = float(np.mean(document["step_times"]["simulated"]))
    recorded_s = float(np.mean(document["step_times"]["recorded"]))
    predicted_s = recorded_s - (now_s - fix["predicted_step_time"])
    healthy_s = float(np.mean(synthetic.truth.healthy_step_times_s))
    return fix, predicted_s / healthy_s - 1


@pytest.mark.parametrize(
    "injections",
    [
        (SlowWorker((1, 2), 2.0),),
        (SlowWorker((1, 2), 2.0, Spells(share=0.5)),),
        (SlowWorker((1, 2), 2.0), SlowWorker((3, 0), 1.9), SlowWorker((0, 3), 1.8)),
    ],
)
def test_the_step_without_slow_workers_is_predicted(injections: tuple[Injection, ...]) -> None:
    _, error = replacement(synthesize(JOB, injections, seed=3))
    assert abs(error) < 0.01


def test_all_workers_that_are_called_slow_are_replaced_together() -> None:
    slow = (SlowWorker((1, 2), 2.0), SlowWorker((3, 0), 1.9))
    fix, _ = replacement(synthesize(JOB, slow, seed=3))
    assert fix["title"] == "Replace workers (1, 2), (3, 0)"


def test_late_launches_that_a_slow_worker_hides_come_back_without_it() -> None:
    synthetic = synthesize(LATE, (SlowWorker((2, 1), 1.8),), seed=3)
    _, error = replacement(synthetic)
    assert abs(error) < 0.005
    # the launches are what it takes: the replay of durations alone is off by more
    healthy = analyze(synthesize(LATE, seed=3).trace).document
    assert healthy["fidelity"]["discrepancy"] > 0.01


def test_a_replacement_brings_nothing_to_a_healthy_job() -> None:
    document = analyze(synthesize(replace(JOB, steps=8), seed=3).trace).document
    assert document["recommendations"] == []
