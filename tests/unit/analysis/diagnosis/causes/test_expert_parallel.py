from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from app.analysis.diagnosis.causes.expert_parallel import EXPERT_PARALLEL
from app.analysis.diagnosis.causes.slow_worker import SLOW_WORKER
from app.analysis.diagnosis.finding import LateRanks
from app.analysis.diagnosis.observation import Explained
from app.analysis.report.build import analyze
from app.analysis.synthesis.injections.computations import SlowWorker, UnevenExperts
from app.analysis.synthesis.job import JobModel
from app.analysis.synthesis.synthesize import SyntheticSession
from app.analysis.trace.model import FORWARD_COMPUTE
from tests.oracles.physics.execute import execute
from tests.oracles.physics.shape import Posting, Schedule, Shape
from tests.oracles.physics.world import World, shared_evenly
from tests.unit.analysis.diagnosis.jobs import (
    JOB,
    causes,
    diagnosed,
    evidence,
    found,
    session,
    signs_of,
    where,
)
from tests.unit.analysis.diagnosis.second_physics import PLAIN, healthy, names, pass_s, report_of

EXPERTS = replace(JOB, experts_over=2)
ALL_RANKS = replace(JOB, experts_over=4)
UNEVEN = UnevenExperts(0.8)


def without(synthetic: SyntheticSession, key: str, **said: object) -> SyntheticSession:
    """Return a session with changed metadata."""
    meta = synthetic.trace.meta
    extra = {name: value for name, value in meta.extra.items() if name != key}
    return replace(
        synthetic, trace=replace(synthetic.trace, meta=replace(meta, extra=extra | said))
    )


@pytest.mark.parametrize("job", [EXPERTS, ALL_RANKS], ids=["groups", "one group"])
@pytest.mark.parametrize("lasting", [0.0, 0.8])
def test_it_is_named_alone_with_most_of_the_lost_time(job: JobModel, lasting: float) -> None:
    synthetic = session(UnevenExperts(0.8, lasting), job=job)
    diagnosis = diagnosed(synthetic)

    assert causes(diagnosis) == ["expert_parallel_imbalance"]
    assert diagnosis.causes[0].contribution == pytest.approx(1, abs=0.1)
    assert diagnosis.slowdown == pytest.approx(synthetic.truth.slowdown, rel=0.03)


def test_nothing_is_found_where_tokens_are_spread_evenly_or_no_rank_shares_experts() -> None:
    assert EXPERT_PARALLEL.find(signs_of(session(job=EXPERTS))) is None
    assert EXPERT_PARALLEL.find(signs_of(session())) is None


def test_the_worker_whose_experts_are_sent_most_is_named() -> None:
    synthetic = session(UnevenExperts(0.8, lasting=1.0), job=ALL_RANKS)
    diagnosis = diagnosed(synthetic)
    trace = synthetic.trace
    shortest = {}
    for stage in range(4):
        rows = (trace.op == trace.op_names.index("ep-all-to-all")) & (trace.pp == stage)
        rows &= trace.order % 2 == 1
        mean = [trace.duration_ns[rows & (trace.dp == dp)].mean() for dp in range(4)]
        shortest[stage] = int(np.argmin(mean))

    assert set(where(diagnosis).workers) == {(dp, stage) for stage, dp in shortest.items()}
    assert where(diagnosis).stages == (0, 1, 2, 3)
    assert "DP ranks 0 to 3 of stage" in evidence(diagnosis)
    figure = diagnosis.causes[0].figure
    assert isinstance(figure, LateRanks)
    assert sum(figure.share) == pytest.approx(1)


def test_a_router_that_spreads_tokens_evenly_does_so_in_groups_that_hardly_wait() -> None:
    shape = replace(PLAIN, dp=4, pp=2, ep=2, steps=24)

    def sent(world: World, more: tuple[float, float]) -> World:
        tokens = np.ones_like(world.tokens)
        for stage, factor in enumerate(more):
            tokens[stage, ..., ::2] = factor
        return replace(world, tokens=shared_evenly(shape, tokens))

    report, slowdown = report_of(shape, lambda world: sent(world, (1.8, 1.1)))
    even_s = execute(sent(healthy(shape), (1.0, 1.0))).step_s.sum()
    true = slowdown * execute(healthy(shape)).step_s.sum() / even_s

    assert names(report) == ["expert_parallel_imbalance"]
    assert report.causes[0].where.stages == (0,)
    assert report.headline.slowdown == pytest.approx(true, rel=0.002)
    assert report.headline.ci95 is not None
    low, high = report.headline.ci95
    assert low < true < high


def test_ranks_wait_for_one_another_before_the_experts_and_so_long_after_even_ones() -> None:
    finding = found(EXPERT_PARALLEL, signs_of(session(UNEVEN, job=ALL_RANKS)))
    shared_by_two = found(EXPERT_PARALLEL, signs_of(session(UNEVEN, job=EXPERTS)))

    # The uncertainty is at most half of the waiting, and decreases with the number of groups.
    assert 0 < finding.uncertainty.reference < 0.01
    assert 0 < shared_by_two.uncertainty.reference < finding.uncertainty.reference
    # Three of four ranks wait for the last one, or one of two for the other, and that at half of
    # the all-to-alls: those after the experts.
    assert (finding.uncertainty.hiding, shared_by_two.uncertainty.hiding) == (0.75 / 2, 0.5 / 2)


# Weight gradients are computed between the experts and the next all-to-all, and blocked hosts
# launch at random times: ranks are late to the all-to-all before the experts, and not later after
# them.
@pytest.mark.parametrize(
    "shape",
    [
        replace(PLAIN, pp=2, ep=2, steps=24, schedule=Schedule.ZERO_BUBBLE),
        replace(PLAIN, pp=2, ep=2, steps=24, posting=Posting.BLOCKING, host_waits=True),
    ],
    ids=["weights", "hosts"],
)
def test_even_experts_wait_for_what_ranks_differ_by_while_they_compute(shape: Shape) -> None:
    launches = np.random.default_rng(1).uniform(0, 0.1, healthy(shape).launch_s.shape)

    def sent(world: World, factor: float) -> World:
        tokens = np.ones_like(world.tokens)
        tokens[..., ::2] = factor
        for computing_s in (world.forward_s, world.backward_s):
            computing_s[..., ::2] *= 1.02
        world.launch_s[:] = launches * pass_s(world)
        return replace(world, tokens=shared_evenly(shape, tokens))

    report, slowdown = report_of(shape, lambda world: sent(world, 1.4))
    even_s = execute(sent(healthy(shape).copy(), 1.0)).step_s.sum()
    true = slowdown * execute(healthy(shape)).step_s.sum() / even_s

    assert names(report) == ["expert_parallel_imbalance"]
    assert report.headline.slowdown == pytest.approx(true, rel=0.001)


def test_without_the_all_to_alls_before_the_experts_those_after_them_tell_of_uneven_ones() -> None:
    trace = session(UNEVEN, job=ALL_RANKS).trace
    kept = (trace.op != trace.op_names.index("ep-all-to-all")) | (trace.order % 2 == 1)
    columns = ("rank", "dp", "pp", "step", "op", "mb", "mc", "order", "start_ns", "duration_ns")
    trace = replace(trace, **{name: getattr(trace, name)[kept] for name in columns})

    assert names(analyze(trace).report) == ["expert_parallel_imbalance"]


def test_where_tokens_are_recorded_it_says_how_uneven_they_are() -> None:
    synthetic = session(UNEVEN, job=ALL_RANKS)
    tokens = {
        str(step): [[9000 if dp == 1 else 1000] * 4 for dp in range(4)]
        for step in synthetic.truth.steps
    }
    said = evidence(diagnosed(without(synthetic, "", expert_tokens=tokens)))
    # Each rank gives only its own token counts, for four steps.
    trace = synthetic.trace
    places = set(zip(trace.dp.tolist(), trace.pp.tolist(), trace.rank.tolist(), strict=True))
    own = {
        step: {str(rank): tokens[step][dp][pp] for dp, pp, rank in places}
        for step in list(tokens)[:4]
    }
    assert evidence(diagnosed(without(synthetic, "", expert_tokens=own))) == said
    nonsense = evidence(diagnosed(without(synthetic, "", expert_tokens={"11": "many"})))

    assert "are sent 75\N{NO-BREAK SPACE}% of the tokens of their 4 ranks" in said
    assert "3.00× the mean" in said
    assert "of the tokens" not in nonsense


def test_a_rank_that_comes_late_before_the_experts_as_well_is_slow_itself() -> None:
    trace = session(UNEVEN, job=EXPERTS).trace
    code = trace.op_names.index("ep-all-to-all")
    after = (trace.op == code) & (trace.order % 2 == 1)
    before = (trace.op == code) & (trace.order % 2 == 0)
    duration = trace.duration_ns.copy()
    duration[before] = duration[after]
    both = replace(session(UNEVEN, job=EXPERTS), trace=replace(trace, duration_ns=duration))

    assert EXPERT_PARALLEL.find(signs_of(both)) is None


def test_time_of_uneven_experts_makes_no_worker_slow() -> None:
    signs = signs_of(session(UnevenExperts(0.8, lasting=1.0), job=EXPERTS))
    finding = found(EXPERT_PARALLEL, signs)

    assert SLOW_WORKER.find(signs.net_of(Explained(finding.change.less_ns))) is None
    assert {
        signs.observation.layout.op_names[signs.observation.layout.nodes.op[node]]
        for node in finding.change.less_ns
    } >= {FORWARD_COMPUTE}


def test_a_slow_worker_with_even_experts_is_still_a_slow_worker() -> None:
    assert causes(diagnosed(session(SlowWorker((2, 1), 1.6), job=EXPERTS))) == ["slow_worker"]


def test_uneven_experts_that_cannot_be_judged_are_listed_with_the_reason() -> None:
    unnamed = without(session(UNEVEN, job=EXPERTS), "ep")
    silent = without(session(job=JOB), "", ep=2)

    assert "expert-parallel size" in diagnosed(unnamed).unjudged["expert_parallel_imbalance"]
    reason = "no expert-parallel operations recorded"
    assert diagnosed(silent).unjudged["expert_parallel_imbalance"] == reason
    for size in (0, 3, True, "two"):
        assert EXPERT_PARALLEL.find(signs_of(without(unnamed, "", ep=size))) is None
