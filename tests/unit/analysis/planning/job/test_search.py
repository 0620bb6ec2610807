"""The search for a whole job's plan, compared with trying all plans."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import numpy as np
import pytest

from app.analysis.planning.job.counted_bounds import counted_bound
from app.analysis.planning.job.heterogeneous import divided, near_divisions
from app.analysis.planning.job.price_bounds import priced_bound
from app.analysis.planning.job.schedule import executed_ps, iteration_ps
from app.analysis.planning.job.search import lower_bounds_ps, search_job
from app.analysis.planning.job.space import Sizes, space_of
from app.analysis.planning.job.spec import FixedParallelism, JobDevice, JobSpec, Recompute
from app.analysis.planning.search.budget import SearchBudget
from app.analysis.planning.transformer import Accelerator, Transformer
from tests.oracles.jobs import least_time_ps
from tests.support.nightly import BY_NIGHT, by_night

CLUSTERS = 1000
# By day, every fifth job is tested.
EACH = 1 if BY_NIGHT else 5


def small_job(seed: int) -> JobSpec:
    """Return a job on at most three nodes, often with little memory."""
    draw = random.Random(seed)  # noqa: S311 - the same clusters each time
    types = draw.choice((1, 2, 2))
    hidden, sequence = draw.choice((512, 1024)), draw.choice((256, 1024))
    layers = draw.randint(1, 4)
    scale = 1e6 * layers * hidden / 16
    devices = tuple(
        JobDevice(
            Accelerator(
                f"type {number}",
                draw.choice((1.0, 1.5, 3.0)) * 1e14,
                draw.choice((1.0, 2.0)) * 1e12,
                draw.choice((None, draw.uniform(0.5, 3) * scale, 6 * scale)),
            ),
            draw.randint(1, 3 if types == 1 else 2),
            draw.uniform(0.3, 0.7),
            draw.choice((None, 50.0)),
        )
        for number in range(types)
    )
    return JobSpec(
        Transformer(layers, hidden, 4, 4000, sequence, 1, 4 * hidden, 4),
        devices,
        gpus_per_node=draw.choice((1, 2, 2)),
        global_batch=draw.choice((2, 4, 6)),
        inter_node_gbytes_per_s=draw.choice((None, 5.0, 50.0)),
        allow_idle=draw.random() < 0.3,
        shard_optimizer=draw.random() < 0.7,
        gradient_bytes=draw.choice((2, 4)),
    )


@pytest.mark.parametrize("block", range(20))
def test_finds_what_trying_everything_finds(block: int) -> None:
    feasible = 0
    seeds = range(block * CLUSTERS // 20, (block + 1) * CLUSTERS // 20, EACH)
    for seed in seeds:
        spec = small_job(seed)
        found = search_job(spec)
        least = least_time_ps(spec)
        if found is None:
            assert least == math.inf, seed
            continue
        feasible += 1
        assert found.least_ps == least, seed
        assert found.plan.time_ps <= 1.01 * least, seed
        assert found.optimal, seed
    assert feasible > len(seeds) / 3


def test_no_plan_is_below_its_bound() -> None:
    for seed in range(0, 120, EACH):
        found = search_job(small_job(seed))
        for plan in () if found is None else found.alternatives:
            [bound] = lower_bounds_ps(plan.space, np.array([plan.dp]))
            assert bound <= plan.time_ps, seed
            if plan.space.sizes.interleave == 1:
                for some in ((plan.dp,), tuple(range(max(plan.dp - 1, 1), plan.dp + 2))):
                    priced = priced_bound(plan.space, some, 2 * plan.time_ps, SearchBudget())
                    assert priced.bound_ps <= plan.time_ps, seed


@pytest.mark.slow
def test_counted_microbatches_raise_the_bound_up_to_the_best_plan() -> None:
    above = 0
    seeds = range(0, 200, EACH)
    for seed in seeds:
        spec = small_job(seed)
        found = search_job(spec)
        if found is None or found.plan.space.sizes.interleave > 1:
            continue
        space, dp = found.plan.space, found.plan.dp
        sizes = space.sizes
        fixed = FixedParallelism(
            sizes.tp, None, dp, sizes.microbatch, sizes.recompute, sizes.interleave
        )
        best = search_job(replace(spec, fixed=fixed))
        assert best is not None
        for some in ((dp,), tuple(range(max(dp - 1, 1), dp + 2))):
            priced = priced_bound(space, some, 2 * best.least_ps, SearchBudget())
            for target_ps in (best.least_ps, 2 * best.least_ps):
                counted = counted_bound(space, some, target_ps, SearchBudget(), priced.prices)
                assert 0 < counted.bound_ps <= best.least_ps, seed
            above += counted.bound_ps > priced.bound_ps
    assert above > len(seeds) / 2


def transformer(layers: int = 32, hidden: int = 4096) -> Transformer:
    return Transformer(layers, hidden, 32, 50257, 2048, 1, 4 * hidden, 32)


def cluster(**nodes: int) -> tuple[JobDevice, ...]:
    return tuple(
        JobDevice(Accelerator.known(name), number, 0.6, 200.0) for name, number in nodes.items()
    )


def job(**nodes: int) -> JobSpec:
    return JobSpec(transformer(), cluster(**nodes), 8, 256, 100.0)


def test_all_microbatches_are_done_and_every_node_is_used_once() -> None:
    spec = job(A100=3, H100=2)
    found = search_job(spec)
    assert found is not None
    plan = found.plan
    assert sum(one.microbatches for one in plan.pipelines) == plan.space.microbatches
    nodes = {one.template.unit: set[tuple[int, int]]() for one in plan.pipelines}
    for one in plan.pipelines:
        nodes[one.template.unit].update(one.nodes)
    assert sorted({node for some in nodes.values() for node in some}) == [
        (0, 0), (0, 1), (0, 2), (1, 0), (1, 1),
    ]  # fmt: skip
    assert sum(len(one) for one in nodes.values()) == spec.nodes


def test_divisions_share_all_nodes_of_their_types_nearly_equally() -> None:
    spec = job(A100=7, H100=5, L40S=3)
    space = space_of(spec, Sizes(4, 1, Recompute.FULL, 1))
    found = near_divisions(space)
    assert {one.types for one in found} == set(range(1, 8))
    for one in found:
        nodes = np.array([unit.nodes for unit in one.units])
        expected = [
            device.nodes if one.types >> kind & 1 else 0 for kind, device in enumerate(spec.devices)
        ]
        assert nodes.sum(axis=0).tolist() == expected
        assert (nodes.max(axis=0) - nodes.min(axis=0)).max() <= 1
        assert max(space.stages(unit) for unit in one.units) <= space.layers
    plan = divided(space, found, 4)
    assert plan is not None
    assert sum(one.microbatches for one in plan.pipelines) == space.microbatches


def test_fast_nodes_take_more_of_the_batch() -> None:
    spec = replace(job(A100=1, H100=1), fixed=FixedParallelism(tp=8, pp=1, dp=2))
    found = search_job(spec)
    assert found is not None
    shares = {one.nodes[0][0]: one.microbatches for one in found.plan.pipelines}
    assert shares[1] > 1.5 * shares[0]
    assert shares[0] + shares[1] == found.plan.space.microbatches


def test_what_is_fixed_stays() -> None:
    fixed = FixedParallelism(4, 2, 8, 2, Recompute.FULL, 2)
    found = search_job(replace(job(A100=8), fixed=fixed))
    assert found is not None
    sizes = found.plan.space.sizes
    assert (sizes.tp, found.plan.pp, found.plan.dp) == (4, 2, 8)
    assert (sizes.microbatch, sizes.recompute, sizes.interleave) == (2, Recompute.FULL, 2)


def test_time_limit_gives_a_plan_and_its_gap() -> None:
    ticks = iter(range(10**6))
    found = search_job(job(A100=4, H100=4), SearchBudget(lambda: float(next(ticks)), 3.0))
    whole = search_job(job(A100=4, H100=4))
    assert found is not None
    assert whole is not None
    assert found.lower_bound_ps <= whole.least_ps <= found.least_ps
    assert whole.optimal


def test_even_stages_execute_in_what_was_searched_by() -> None:
    fixed = FixedParallelism(tp=8, pp=4, dp=1, microbatch=1, recompute=Recompute.FULL)
    for chunks in (1, 2):
        spec = replace(job(A100=4), fixed=replace(fixed, interleave=chunks))
        found = search_job(spec)
        assert found is not None
        executed = executed_ps(found.plan.space, found.plan.pipelines[0])
        assert executed == pytest.approx(found.plan.time_ps, rel=0.02)


def test_of_plans_as_good_by_formula_the_fastest_to_execute_is_taken() -> None:
    for nodes in ({"A100": 3}, {"A100": 2, "H100": 1}, {"H100": 2, "L40S": 2}):
        found = search_job(job(**nodes))
        assert found is not None
        near = [one for one in found.alternatives if one.time_ps <= 1.01 * found.least_ps]
        assert iteration_ps(found.plan) == min(map(iteration_ps, near))


@by_night
@pytest.mark.slow
def test_a_thousand_gpus_of_four_types_are_planned_to_within_five_per_cent() -> None:
    counts = (27, 41, 19, 41)
    names = ("A100", "H100", "H200", "L40S")
    devices = cluster(**dict(zip(names, counts, strict=True)))
    spec = JobSpec(transformer(80, 8192), devices, 8, 1536, 200.0)
    found = search_job(spec)
    assert found is not None
    assert found.gap <= 0.05
    plan = found.plan
    assert sum(one.microbatches for one in plan.pipelines) == plan.space.microbatches
    nodes = {node for one in plan.pipelines for node in one.nodes}
    assert len(nodes) == spec.nodes
