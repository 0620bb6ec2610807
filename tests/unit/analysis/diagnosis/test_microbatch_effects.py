from __future__ import annotations

from dataclasses import replace

import numpy as np

from app.analysis.diagnosis.microbatch_effects import split_effects
from app.analysis.diagnosis.observation import Observation
from app.analysis.replay.session import prepare_replay
from tests.oracles.physics.world import World
from tests.unit.analysis.diagnosis.second_physics import PLAIN, report_of, struck

EVEN = replace(PLAIN, dp=6, microbatches=6, steps=24)


def unequal(world: World) -> None:
    """Each microbatch has a random length, so that some DP ranks have longer ones by chance."""
    lengths = np.random.default_rng(8).uniform(0.3, 2.0, (EVEN.microbatches, EVEN.steps, EVEN.dp))
    world.forward_s[:] *= lengths
    world.backward_s[:] *= lengths


def alike(world: World) -> None:
    lengths = np.random.default_rng(8).uniform(0.3, 2.0, (EVEN.microbatches, EVEN.steps, EVEN.dp))
    world.forward_s[:] *= lengths.mean()
    world.backward_s[:] *= lengths.mean()


def test_without_their_lengths_all_dp_ranks_take_alike() -> None:
    trace, _ = struck(EVEN, unequal)
    passes = Observation(trace, prepare_replay(trace).main).passes

    typical = split_effects(passes)

    assert typical.difference.differ
    for name, own in passes.items():
        for stage, times_ns in enumerate(own.times_ns):
            left = times_ns / typical.microbatches[name].of_stage(stage)
            by_rank = left.mean(axis=(0, 1))
            # A comparison of each rank with its own peers would put half of the DP ranks 3 to 5 %
            # above the others.
            assert np.ptp(by_rank) < 0.012 * by_rank.mean()


def test_the_headline_of_lengths_is_not_too_low_for_a_few_dp_ranks() -> None:
    report, slow = report_of(EVEN, unequal)
    _, typical = struck(EVEN, alike)
    assert abs(report.headline.slowdown / (slow / typical) - 1) < 0.012
