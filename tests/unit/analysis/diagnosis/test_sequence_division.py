from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from app.analysis.diagnosis.group_waits import (
    Waiting,
    computing_ns,
    measure_waits,
    waiting_groups,
    without_waits,
)
from app.analysis.diagnosis.observation import Observation
from app.analysis.diagnosis.sequence_division import as_divided_evenly, is_division
from app.analysis.replay.session import prepare_replay
from app.analysis.trace.model import CONTEXT_TYPES
from tests.oracles.physics.shape import Shape
from tests.oracles.physics.world import World
from tests.unit.analysis.diagnosis.second_physics import PLAIN, names, report_of, struck

SHAPE = replace(PLAIN, dp=3, pp=2, cp=4, steps=24)
MORE = (0.7, 0.9, 1.1, 1.3)


def causal(world: World) -> None:
    for rank, factor in enumerate(MORE):
        world.context_s[rank] *= factor


@cache
def observed(shape: Shape, *, divided: bool) -> Observation:
    trace, _ = struck(shape, causal if divided else lambda _world: None)
    return Observation(trace, prepare_replay(trace).main)


def waiting(observation: Observation) -> list[Waiting]:
    return waiting_groups(observation, measure_waits(observation, CONTEXT_TYPES), to_median=0.0)


def test_a_division_costs_what_it_does_against_the_same_job_divided_evenly() -> None:
    report, slowdown = report_of(SHAPE, causal)

    assert names(report) == ["context_parallel_straggler"]
    assert report.headline.slowdown == pytest.approx(slowdown, rel=0.001)
    assert report.headline.ci95 is not None
    low, high = report.headline.ci95
    assert low < slowdown < high


def test_what_evenly_divided_groups_wait_is_told_by_how_their_ranks_differ_otherwise() -> None:
    observation = observed(SHAPE, divided=True)
    groups = waiting(observation)
    assert is_division(observation, groups)
    even = as_divided_evenly(observation, groups)

    healthy = observed(SHAPE, divided=False)
    total_ns = computing_ns(healthy)
    waits = [
        (wait.duration_ns.mean(axis=1) - wait.duration_ns.min(axis=1)).sum()
        / total_ns[wait.cell[1], wait.cell[0]]
        for wait in measure_waits(healthy, CONTEXT_TYPES)
    ]
    assert all(group.typical_known for group in even)
    assert even[0].typical == pytest.approx(np.mean(waits), rel=0.1)
    # Each group has the same uncertainty, and the job that of six independent groups.
    assert without_waits(observation, even).reference == pytest.approx(even[0].typical / 2 / 6**0.5)


def test_groups_wait_for_what_the_last_rank_takes_longer_than_all_do_on_average() -> None:
    observation = observed(SHAPE, divided=True)
    even = as_divided_evenly(observation, waiting(observation))

    # The last rank does 1.3 of an even share of the work, the other three ranks 0.9.
    assert [group.share for group in even] == pytest.approx([0.3 / 1.3] * len(even), rel=0.02)


def test_a_single_group_does_not_tell_how_groups_differ() -> None:
    observation = observed(replace(SHAPE, dp=1, pp=1), divided=True)
    (group,) = as_divided_evenly(observation, waiting(observation))

    assert 0.0005 < group.typical < 0.01
    assert not group.typical_known
