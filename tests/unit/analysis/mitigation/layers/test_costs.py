"""Costs of layers, embedding and head, estimated from the usual times of the stages."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from app.analysis.diagnosis.observation import Observation
from app.analysis.mitigation.layers.costs import LayerCosts, estimate_costs
from app.analysis.replay.session import prepare_replay
from app.analysis.synthesis.injections.base import Injection, Spells
from app.analysis.synthesis.injections.computations import SlowWorker, StageImbalance
from app.analysis.synthesis.job import CostModel, JobModel, Schedule
from app.analysis.synthesis.synthesize import synthesize
from app.analysis.trace.model import Sizes

COSTS = CostModel(forward_ns=40e6, backward_ns=80e6, embedding_fraction=0.1)
JOB = JobModel(Sizes(dp=2, pp=4), microbatches=8, steps=6, layers=(8, 8, 8, 8), costs=COSTS)


def estimated(*injections: Injection, job: JobModel = JOB) -> LayerCosts:
    trace = synthesize(job, injections, seed=3).trace
    observation = Observation(trace, prepare_replay(trace).main)
    vpp = job.sizes.vpp
    costs = estimate_costs(observation, [[count // vpp] * vpp for count in job.layers])
    assert costs is not None
    return costs


def test_layers_embedding_and_head_are_told_apart() -> None:
    costs = estimated(StageImbalance(forward_factor=1.5, backward_factor=1.5))
    # 120 ms for eight layers; the embedding is a tenth of that, the head half of it.
    assert costs.median_layer_ns == pytest.approx(15e6, rel=0.01)
    assert costs.embedding_ns == pytest.approx(12e6, rel=0.1)
    assert costs.head_ns == pytest.approx(60e6, rel=0.05)


def test_a_middle_stage_of_heavier_layers_keeps_them() -> None:
    costs = estimated(StageImbalance(forward_factor=1.5, backward_factor=1.5, at=1))
    per_layer = costs.layer_ns.sum(axis=0)
    np.testing.assert_allclose(per_layer[8:16] / per_layer[0], 1.5, rtol=0.02)
    np.testing.assert_allclose(per_layer[16:] / per_layer[0], 1.0, rtol=0.02)
    assert costs.head_ns < 0.05 * costs.median_layer_ns


def test_more_layers_are_no_heavier_layers() -> None:
    job = replace(JOB, layers=(8, 12, 8, 8))
    costs = estimated(StageImbalance(forward_factor=1.5, backward_factor=1.5, at=1), job=job)
    per_layer = costs.layer_ns.sum(axis=0)
    np.testing.assert_allclose(per_layer / per_layer[0], 1.0, rtol=0.03)


@pytest.mark.parametrize(
    "slow",
    [SlowWorker((1, 2), 2.0), SlowWorker((0, 3), 3.0, Spells(share=0.4))],
    ids=["worker", "spells"],
)
def test_a_slow_worker_makes_no_layer_cost_more(slow: Injection) -> None:
    plain, slowed = estimated(), estimated(slow)
    np.testing.assert_allclose(slowed.level_ns, plain.level_ns, rtol=0.02)


def test_today_takes_what_it_takes() -> None:
    costs = estimated(StageImbalance())
    np.testing.assert_allclose(costs.times_ns(costs.layers), costs.level_ns)


@pytest.mark.parametrize(
    ("stages", "heavy", "told"),
    [(4, True, True), (2, True, False), (2, False, True)],
    ids=["between", "ends", "alike"],
)
def test_two_uneven_ends_do_not_tell_layers_from_a_head(
    stages: int, *, heavy: bool, told: bool
) -> None:
    job = replace(
        JOB,
        sizes=Sizes(dp=2, pp=stages),
        layers=(8,) * stages,
        costs=replace(COSTS, embedding_fraction=0.0),
    )
    assert estimated(*[StageImbalance()] * heavy, job=job).separable is told


def test_virtual_stages_come_in_the_order_of_the_model() -> None:
    job = JobModel(
        Sizes(dp=1, pp=2, vpp=2),
        microbatches=4,
        steps=6,
        schedule=Schedule.INTERLEAVED,
        layers=(8, 8),
    )
    costs = estimated(StageImbalance(), job=job)
    assert costs.places == ((0, 0), (1, 0), (0, 1), (1, 1))
    assert costs.head_ns > 3 * costs.median_layer_ns
