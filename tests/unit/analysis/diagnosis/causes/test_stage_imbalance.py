from __future__ import annotations

import pytest

from app.analysis.diagnosis.causes.stage_imbalance import STAGE_IMBALANCE
from app.analysis.diagnosis.locations import Where
from app.analysis.synthesis.injections.base import Injection
from app.analysis.synthesis.injections.computations import StageImbalance
from app.analysis.synthesis.job import JobModel
from tests.unit.analysis.diagnosis.jobs import (
    JOB,
    ONE_RANK,
    check_named_alone,
    found,
    session,
    signs_of,
)


@pytest.mark.parametrize(
    ("injection", "job"),
    [
        (StageImbalance(), JOB),
        (StageImbalance(1.8, 1.8, at=1), JOB),
        (StageImbalance(), ONE_RANK),
    ],
)
def test_it_is_named_alone_with_its_place_and_most_of_the_lost_time(
    injection: Injection, job: JobModel
) -> None:
    check_named_alone(injection, job)


def test_nothing_is_found_in_a_healthy_job() -> None:
    assert STAGE_IMBALANCE.find(signs_of(session())) is None


def test_even_stages_keep_the_total_work() -> None:
    signs = signs_of(session(StageImbalance()))
    finding = found(STAGE_IMBALANCE, signs)

    assert finding.where == Where(stage=3)
    observation = signs.observation
    nodes = observation.passes["forward-compute"].nodes
    before = observation.recorded_ns[nodes].sum()
    after = sum(
        (observation.recorded_ns[node] * finding.change.times[node]).sum()
        for node in nodes.ravel().tolist()
    )
    assert after == pytest.approx(before, rel=0.01)
