from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from app.analysis.replay.adaptations.kind import Name
from app.analysis.replay.adaptations.signs import Lags, lags_after_transfers
from app.analysis.replay.session import ShapeGroup, prepare_replay
from app.analysis.synthesis.injections.computations import SlowWorker
from app.analysis.trace.model import Trace
from tests.factories import session
from tests.oracles.physics.world import World
from tests.unit.analysis.diagnosis.second_physics import PLAIN, pass_s, report_of, struck

# A job whose hosts launch nothing while they wait for a transfer.
WAITING = replace(PLAIN, steps=24, host_waits=True)
LAUNCHING = 0.1


def unadapted(trace: Trace) -> ShapeGroup:
    return prepare_replay(trace, [Name.REGULAR_DELAYS]).main


def lags_of(group: ShapeGroup) -> Lags:
    return lags_after_transfers(group.layout, group.graph, group.durations.ideal_ns)


def slow_worker(world: World) -> None:
    """A launch takes a tenth of a forward pass, and one worker computes twice as long as others."""
    world.launch_s[:] = LAUNCHING * pass_s(world)
    world.forward_s[1, ..., 2] *= 2
    world.backward_s[1, ..., 2] *= 2


def test_launching_after_waiting_is_measured_where_hosts_wait() -> None:
    trace, _ = struck(WAITING, slow_worker)
    group = unadapted(trace)

    lags = lags_of(group)

    launch_ns = {
        name: [ns for (node, _), ns in lags.items() if group.layout.of_types(name)[node]]
        for name in ("forward-compute", "backward-compute")
    }
    forward_ns = float(
        np.median(group.durations.recorded_ns[group.layout.of_types("forward-compute")])
    )
    for found in launch_ns.values():
        # On all stages but one, because the first, or the last, stage waits for no transfer.
        assert len(found) == (WAITING.pp - 1) * WAITING.microbatches
        assert found == pytest.approx([LAUNCHING * forward_ns] * len(found), rel=0.1)


def test_hosts_that_launch_ahead_have_none() -> None:
    trace, _ = struck(replace(WAITING, host_waits=False), slow_worker)
    assert lags_of(unadapted(trace)) == {}
    assert lags_of(unadapted(session(SlowWorker((1, 0), 2.0), steps=20).trace)) == {}


def test_a_worker_whose_launches_alone_are_late_makes_nothing_usual() -> None:
    def late(world: World) -> None:
        world.launch_s[:] = 0
        world.launch_s[..., 0] = 0.3 * pass_s(world)

    trace, _ = struck(WAITING, late)
    assert lags_of(unadapted(trace)) == {}


def test_workers_whose_hosts_are_known_to_be_slow_do_not_count() -> None:
    def late(world: World) -> None:
        world.launch_s[:] = LAUNCHING * pass_s(world)
        world.launch_s[:3, ..., :2] += 2 * pass_s(world)

    trace, _ = struck(WAITING, late)
    group = unadapted(trace)
    slow = [(dp, pp) for dp in range(2) for pp in range(3)]
    takes_ns = group.durations.ideal_ns

    lags = lags_after_transfers(group.layout, group.graph, takes_ns, also=slow)
    forward_ns = float(
        np.median(group.durations.recorded_ns[group.layout.of_types("forward-compute")])
    )

    assert lags
    assert list(lags.values()) == pytest.approx([LAUNCHING * forward_ns] * len(lags), rel=0.1)


def test_few_waits_tell_nothing() -> None:
    trace, _ = struck(replace(WAITING, dp=1, pp=2, microbatches=4, steps=2), slow_once)
    assert lags_of(unadapted(trace)) == {}


def slow_once(world: World) -> None:
    world.launch_s[:] = LAUNCHING * pass_s(world)


def test_the_headline_counts_launches_that_a_straggler_hides() -> None:
    two = replace(WAITING, pp=2, microbatches=13)

    def divided(world: World, *stages: float) -> None:
        world.launch_s[:] = LAUNCHING * pass_s(world)
        for stage, share in enumerate(stages):
            world.forward_s[stage] *= share
            world.backward_s[stage] *= share

    report, heavy = report_of(two, lambda world: divided(world, 1.0, 1.4))
    _, even = struck(two, lambda world: divided(world, 1.2, 1.2))

    headline = report.headline
    # Without these launches, the headline would be 3 % too high, and its interval would miss the
    # truth.
    assert headline.slowdown == pytest.approx(heavy / even, rel=0.006)
    assert headline.ci95 is not None
    assert headline.ci95[0] <= heavy / even <= headline.ci95[1]
