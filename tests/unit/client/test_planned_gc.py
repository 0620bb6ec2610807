"""Planned garbage collection in a job of several processes."""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator

import pytest

from paceline_client import PlannedGC
from paceline_client.planned_gc import Collection, HeapGrowth, advised_interval
from tests.support.collecting import leave_garbage, run_job

# The tests of this file take seconds together.
pytestmark = pytest.mark.slow

STEPS = 40
RINGS = 200


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    yield
    assert gc.isenabled()


def test_python_collects_on_each_rank_in_steps_of_its_own() -> None:
    logs = run_job(3, STEPS, RINGS, None)
    assert all(log.automatic for log in logs)
    assert len({tuple(log.automatic) for log in logs}) == 3


def test_planned_all_ranks_collect_in_the_same_steps_and_nowhere_else() -> None:
    logs = run_job(3, STEPS, RINGS, {"every": 8})
    assert [log.automatic for log in logs] == [[], [], []]
    for rank, log in enumerate(logs):
        assert [step for step, _ in log.planned] == [8, 16, 24, 32, 40]
        # The garbage of eight steps, two objects in each ring.
        assert all(found >= 8 * 2 * RINGS * (1 + rank) for _, found in log.planned)
        assert log.most_objects < 1.5 * 8 * 2 * RINGS * (1 + rank)
        assert log.enabled_again


def test_ranks_agree_on_the_interval_that_the_fullest_heap_needs() -> None:
    # Rank 0 grows by 400 containers of 200 bytes a step, rank 2 by three times as much.
    allowed = 6 * 3 * 2 * RINGS * 200
    settings = {"every": None, "watch": 5, "max_growth_bytes": allowed}
    logs = run_job(3, STEPS, RINGS, settings)
    (every,) = {log.every for log in logs}
    assert every is not None
    assert 1 <= every <= 6
    assert len({tuple(step for step, _ in log.planned) for log in logs}) == 1
    assert logs[0].planned[0][0] == 5
    assert [log.automatic for log in logs] == [[], [], []]


def test_a_heap_that_outgrows_its_plan_is_collected_at_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    seen: list[Collection] = []
    with (
        caplog.at_level(logging.WARNING, "paceline_client"),
        PlannedGC(100, max_growth_bytes=40_000, on_collection=seen.append) as plan,
    ):
        assert not plan.step()
        leave_garbage(1_000)
        assert plan.step()
        assert not plan.step()
    (collection,) = seen
    assert collection.step == 2
    assert not collection.planned
    assert collection.found >= 2_000
    assert collection.duration_ns > 0
    assert "use a shorter interval" in caplog.text


def test_steps_count_by_their_number() -> None:
    with PlannedGC(10) as plan:
        assert [number for number in range(95, 125) if plan.step(number)] == [100, 110, 120]


def test_stopped_it_does_nothing_and_python_collects_as_before() -> None:
    plan = PlannedGC(1)
    assert not plan.step(1)
    plan.start().start()
    assert not gc.isenabled()
    assert plan.step(1)
    plan.stop()
    plan.stop()
    assert not plan.step(2)
    gc.disable()
    try:
        with PlannedGC(1, freeze=False):
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_the_interval_follows_from_what_a_step_leaves_behind() -> None:
    with PlannedGC(watch=4, freeze=False) as plan:
        for _ in range(4):
            leave_garbage(500)
            plan.step()
        assert plan.growth is not None
        assert plan.growth.objects == pytest.approx(1_000, rel=0.2)
        assert plan.every == 500


@pytest.mark.parametrize(
    ("growth", "every"),
    [
        (HeapGrowth(0, 0), 500),
        (HeapGrowth(0, 2**30), 1),
        (HeapGrowth(0, 2**34), 1),
        (HeapGrowth(0, 2**25), 32),
        (HeapGrowth(2**20, 0), 5),
    ],
)
def test_the_heap_grows_by_no_more_than_it_may(growth: HeapGrowth, every: int) -> None:
    assert advised_interval(growth) == every


@pytest.mark.parametrize("settings", [{"every": 0}, {"watch": 0}, {"max_growth_bytes": 0}])
def test_numbers_below_one_are_refused(settings: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        PlannedGC(**settings)  # type: ignore[arg-type]
