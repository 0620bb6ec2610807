from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from app.analysis.diagnosis.causes.garbage_collection import GARBAGE_COLLECTION
from app.analysis.diagnosis.finding import Stalls
from app.analysis.synthesis.injections.base import Injection, Spells
from app.analysis.synthesis.injections.computations import GarbageCollection, MemoryFragmentation
from app.analysis.synthesis.job import JobModel
from tests.oracles.physics.shape import Posting
from tests.oracles.physics.world import World
from tests.unit.analysis.diagnosis.jobs import (
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
from tests.unit.analysis.diagnosis.second_physics import PLAIN, names, pass_s, report_of


@pytest.mark.parametrize(
    ("injection", "job"),
    [
        (GarbageCollection(100 * MS, pauses=0.5), JOB),
        (GarbageCollection(100 * MS, pauses=0.5), ONE_STAGE),
    ],
)
def test_it_is_named_alone_with_its_place_and_most_of_the_lost_time(
    injection: Injection, job: JobModel
) -> None:
    check_named_alone(injection, job)


def test_nothing_is_found_in_a_healthy_job() -> None:
    assert GARBAGE_COLLECTION.find(signs_of(session())) is None


def test_stalls_are_as_long_as_the_pauses_were() -> None:
    finding = found(GARBAGE_COLLECTION, signs_of(session(GarbageCollection(100 * MS, pauses=0.5))))

    stalls = np.concatenate([less[less > 0] for less in finding.change.less_ns.values()])
    assert np.mean(stalls) == pytest.approx(100 * MS, rel=0.1)


def test_pauses_that_grow_are_said_to_grow() -> None:
    diagnosis = diagnosed(session(GarbageCollection(80 * MS, pauses=1.0, growth=2.0)))

    assert "They grow: " in evidence(diagnosis)
    figure = diagnosis.causes[0].figure
    assert isinstance(figure, Stalls)
    assert len(figure.by_step_s) == JOB.steps


def test_stalls_of_one_worker_alone_are_something_else() -> None:
    synthetic = session(MemoryFragmentation((1, 1), 60 * MS, share=0.3, spells=Spells()))

    assert "garbage_collection" not in causes(diagnosed(synthetic))


BLOCKING = replace(PLAIN, posting=Posting.BLOCKING, host_waits=True)


def pauses(world: World, chance: float, kind: int = 0) -> np.ndarray[tuple[int, ...], Any]:
    """Return pauses of hosts at random forward or backward passes, as in `World.launch_s`."""
    found = np.zeros(world.launch_s.shape)
    struck = np.random.default_rng(6).random(found[:, :, :, kind].shape) < chance
    found[:, :, :, kind] = struck * 5 * pass_s(world)
    return found


def test_pauses_that_delay_launches_are_as_good_a_sign() -> None:
    def strike(world: World) -> None:
        world.launch_s[:] += pauses(world, 0.05)

    report, slowdown = report_of(BLOCKING, strike)

    assert names(report) == ["garbage_collection"]
    assert "forwards are launched late" in report.causes[0].evidence[0]
    assert report.headline.slowdown == pytest.approx(slowdown, rel=0.03)
    assert "plan_garbage_collection" in [fix.action for fix in report.recommendations]


def test_pauses_amid_and_between_forwards_are_one_cause() -> None:
    def strike(world: World) -> None:
        world.launch_s[:] += pauses(world, 0.03)
        world.pause_s[:, :, 2::2] += pauses(world, 0.06)[:, :, 1:-1:2]

    report, slowdown = report_of(BLOCKING, strike)

    assert names(report) == ["garbage_collection"]
    assert len(report.causes[0].evidence) >= 4
    assert report.headline.slowdown == pytest.approx(slowdown, rel=0.05)


def test_hosts_that_stall_at_backwards_too_do_not_collect_garbage() -> None:
    def strike(world: World) -> None:
        world.launch_s[:] += pauses(world, 0.03) + pauses(world, 0.03, kind=1)

    report, _ = report_of(BLOCKING, strike)

    assert "garbage_collection" not in names(report)
