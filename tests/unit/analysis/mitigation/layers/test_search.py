"""The search for the best division, compared with trying all divisions."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from app.analysis.diagnosis.observation import Observation
from app.analysis.mitigation.layers.costs import StageCapacity, estimate_costs, stage_capacity
from app.analysis.mitigation.layers.execution import TypicalStep
from app.analysis.mitigation.layers.search import EQUAL, RankedDivisions, search
from app.analysis.replay.layout.dense import IntArray
from app.analysis.replay.session import prepare_replay
from app.analysis.synthesis.injections.computations import StageImbalance
from app.analysis.synthesis.job import CostModel, JobModel, Schedule
from app.analysis.synthesis.synthesize import synthesize
from app.analysis.trace.model import Sizes

# The tests of this file take seconds together.
pytestmark = pytest.mark.slow

LOSS = StageImbalance(forward_factor=1.9, backward_factor=1.5)
MIDDLE = StageImbalance(forward_factor=1.6, backward_factor=1.6, at=1)


def lane_of(job: JobModel, injection: StageImbalance, seed: int) -> TypicalStep:
    trace = synthesize(job, [injection], seed=seed).trace
    replayed = prepare_replay(trace)
    vpp = job.sizes.vpp
    costs = estimate_costs(
        Observation(trace, replayed.main), [[count // vpp] * vpp for count in job.layers]
    )
    assert costs is not None
    return TypicalStep(replayed.main, costs)


def every(places: int, total: int) -> Iterator[tuple[int, ...]]:
    if places == 1:
        yield (total,)
        return
    for first in range(1, total - places + 2):
        for rest in every(places - 1, total - first):
            yield (first, *rest)


def least(lane: TypicalStep, room: StageCapacity) -> float:
    """Return the shortest step of all divisions that fit."""
    costs = lane.costs
    stages = range(len(room.layers))

    def fits(counts: IntArray) -> bool:
        return all(counts[room.stage == stage].sum() <= room.layers[stage] for stage in stages)

    divisions = map(np.array, every(len(costs.layers), int(costs.layers.sum())))
    return min(lane.longest(counts)[0] for counts in divisions if fits(counts))


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("injection", [LOSS, MIDDLE], ids=["head", "heavier layers"])
@pytest.mark.parametrize(
    "job",
    [
        JobModel(Sizes(dp=1, pp=2), microbatches=4, steps=6, layers=(9, 9)),
        JobModel(Sizes(dp=1, pp=3), microbatches=6, steps=6, layers=(5, 5, 5)),
        JobModel(
            Sizes(dp=1, pp=4),
            microbatches=3,
            steps=6,
            layers=(3, 4, 4, 3),
            costs=CostModel(p2p_ns=9e6, params_ns=90e6),
        ),
        JobModel(
            Sizes(dp=1, pp=3), microbatches=5, steps=6, schedule=Schedule.GPIPE, layers=(4, 5, 4)
        ),
        JobModel(
            Sizes(dp=1, pp=2, vpp=2),
            microbatches=6,
            steps=6,
            schedule=Schedule.INTERLEAVED,
            layers=(8, 8),
        ),
    ],
    ids=["two", "three", "slow links", "gpipe", "virtual"],
)
def test_no_division_is_better(job: JobModel, injection: StageImbalance, seed: int) -> None:
    lane = lane_of(job, injection, seed)
    room = stage_capacity({}, lane.costs)
    found = search(lane, room)
    best = least(lane, room)
    assert found.proven
    assert best <= found.best[0][0] <= best * (1 + 2 * EQUAL)


def test_a_stage_holds_no_more_than_it_can() -> None:
    job = JobModel(Sizes(dp=1, pp=3), microbatches=6, steps=6, layers=(5, 5, 5))
    lane = lane_of(job, LOSS, 1)
    free = search(lane, stage_capacity({}, lane.costs))
    room = stage_capacity({"max_layers": [5, 7, 6]}, lane.costs)
    found = search(lane, room)
    assert free.best[0][1][0] > 5
    assert found.best[0][1][0] <= 5
    assert found.best[0][0] == pytest.approx(least(lane, room), rel=2 * EQUAL)
    assert all((counts <= room.layers).all() for _, counts in found.best)


def test_today_is_among_what_was_tried_and_even_stages_stay() -> None:
    job = JobModel(Sizes(dp=1, pp=4), microbatches=8, steps=6, layers=(6, 6, 6, 6))
    lane = lane_of(job, StageImbalance(forward_factor=1.0, backward_factor=1.0), 3)
    found: RankedDivisions = search(lane, stage_capacity({}, lane.costs))
    assert found.proven
    np.testing.assert_array_equal(found.best[0][1], [6, 6, 6, 6])


def test_large_models_are_proven_as_well() -> None:
    job = JobModel(Sizes(dp=1, pp=8), microbatches=24, steps=5, layers=(10,) * 8)
    lane = lane_of(job, StageImbalance(), 3)
    found = search(lane, stage_capacity({}, lane.costs))
    assert found.proven
    assert found.best[0][1].sum() == 80


@pytest.mark.parametrize("given", [None, "9", [3], [9, 0, 9], [True, 9, 9]])
def test_without_memory_figures_nothing_is_limited(given: object) -> None:
    job = JobModel(Sizes(dp=1, pp=3), microbatches=6, steps=6, layers=(5, 5, 5))
    costs = lane_of(job, LOSS, 1).costs
    room = stage_capacity({"max_layers": given}, costs)
    assert not room.is_known
    assert room.most(0) > 1000


def test_a_number_of_layers_is_meant_for_all_stages() -> None:
    job = JobModel(Sizes(dp=1, pp=3), microbatches=6, steps=6, layers=(5, 7, 5))
    room = stage_capacity({"max_layers": 6}, lane_of(job, LOSS, 1).costs)
    # The layers that a stage has today fit into its memory.
    assert room.layers.tolist() == [6, 7, 6]
