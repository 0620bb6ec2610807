from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from app.analysis.diagnosis.causes.data_loading import DATA_LOADING
from app.analysis.diagnosis.late_launches import first_delays
from app.analysis.diagnosis.locations import Where
from app.analysis.synthesis.injections.base import Injection
from app.analysis.synthesis.injections.delays import SlowDataLoading
from app.analysis.synthesis.job import JobModel
from app.analysis.trace.model import PARAMS_ALL_GATHER
from tests.oracles.physics.world import World
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
from tests.unit.analysis.diagnosis.second_physics import (
    INTERLEAVED,
    PLAIN,
    names,
    pass_s,
    report_of,
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
    observation = observe(session(SlowDataLoading(200 * MS)))
    nodes, gather = observation.layout.nodes, observation.layout.codes(PARAMS_ALL_GATHER)[0]
    late = {
        node: delay for node, delay in first_delays(observation).items() if nodes.op[node] != gather
    }

    assert len(late) == JOB.sizes.pp
    assert np.mean(list(late.values())) == pytest.approx(200 * MS, rel=0.3)


def test_replays_have_the_late_launches_until_they_are_on_time() -> None:
    finding = found(DATA_LOADING, signs_of(session(SlowDataLoading(200 * MS))))

    assert finding.launches.late_ns.keys() == finding.change.on_time.keys()
    assert all(on_time.all() for on_time in finding.change.on_time.values())


def test_data_that_is_late_for_all_has_no_place() -> None:
    assert where(diagnosed(session(SlowDataLoading(200 * MS)))) == Where()


def test_nothing_can_be_said_where_nothing_is_recorded_before_the_first_forward() -> None:
    bare = signs_of(session(job=replace(JOB, op_types=frozenset())))

    assert "before a step's first forward" in (DATA_LOADING.cannot_judge(bare) or "")
    assert DATA_LOADING.cannot_judge(signs_of(session())) is None


def test_a_wait_before_the_gathering_is_one_too() -> None:
    def strike(world: World) -> None:
        world.before_s[0] += 5 * pass_s(world)

    report, slowdown = report_of(PLAIN, strike)

    assert names(report) == ["data_loading"]
    assert report.causes[0].where == Where(stages=(0,))
    assert not report.fidelity.verdict
    assert report.headline.kind == "launches"
    assert report.verdict.sentence == (
        f"{report.headline.slowdown:.2f}× slower than without its cause: steps wait for data on "
        "stage 0"
    )
    assert report.headline.slowdown == pytest.approx(slowdown, rel=0.03)


def test_receives_of_a_later_chunk_come_amid_the_step() -> None:
    for seed in range(3):
        report, _ = report_of(replace(INTERLEAVED, pp=2, microbatches=4), lambda _: None, seed)
        assert names(report) == []


def test_a_stage_that_ends_its_steps_later_does_not_wait_for_data() -> None:
    def strike(world: World) -> None:
        world.optimizer_s[0] += 8 * pass_s(world)

    report, _ = report_of(PLAIN, strike)

    assert "data_loading" not in names(report)
