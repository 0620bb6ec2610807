from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from app.analysis.diagnosis.causes.data_loading import DATA_LOADING, first_delays
from app.analysis.diagnosis.places import Where
from app.analysis.synthesis.injections.base import Injection
from app.analysis.synthesis.injections.transfers import SlowDataLoading
from app.analysis.synthesis.job import JobModel
from tests.unit.analysis.diagnosis.jobs import (
    JOB,
    MS,
    ONE_STAGE,
    check_named_alone,
    diagnosed,
    found,
    observe,
    session,
    signs_of,
    where,
)


@pytest.mark.parametrize(
    ("injection", "job"),
    [
        (SlowDataLoading(200 * MS), JOB),
        (SlowDataLoading(200 * MS), ONE_STAGE),
        (SlowDataLoading(200 * MS), replace(JOB, edge_transfers=True)),
    ],
)
def test_it_is_named_alone_with_its_place_and_most_of_the_lost_time(
    injection: Injection, job: JobModel
) -> None:
    check_named_alone(injection, job)


def test_nothing_is_found_in_a_healthy_job() -> None:
    assert DATA_LOADING.find(signs_of(session())) is None


def test_late_first_operations_are_as_late_as_the_batch() -> None:
    delays = first_delays(observe(session(SlowDataLoading(200 * MS))))

    assert len(delays) == JOB.sizes.pp
    assert np.mean(list(delays.values())) == pytest.approx(200 * MS, rel=0.3)


def test_replays_have_the_late_launches_until_they_are_on_time() -> None:
    finding = found(DATA_LOADING, signs_of(session(SlowDataLoading(200 * MS))))

    assert finding.late_ns.keys() == finding.change.on_time.keys()
    assert all(on_time.all() for on_time in finding.change.on_time.values())


def test_data_that_is_late_for_all_has_no_place() -> None:
    assert where(diagnosed(session(SlowDataLoading(200 * MS)))) == Where()


def test_nothing_can_be_said_where_nothing_is_recorded_before_the_first_forward() -> None:
    bare = signs_of(session(job=replace(JOB, op_types=frozenset())))

    assert "before a step's first forward" in (DATA_LOADING.cannot_judge(bare) or "")
    assert DATA_LOADING.cannot_judge(signs_of(session())) is None
