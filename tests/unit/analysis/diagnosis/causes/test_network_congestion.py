from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from app.analysis.diagnosis.causes.network import NETWORK
from app.analysis.diagnosis.causes.network_congestion import NETWORK_CONGESTION
from app.analysis.diagnosis.finding import TransferLevels
from app.analysis.synthesis.injections.base import Spells
from app.analysis.synthesis.injections.delays import Congestion, SlowDataLoading, SlowLink
from app.analysis.synthesis.job import JobModel
from app.analysis.trace.model import Sizes
from tests.oracles.physics.shape import Shape
from tests.oracles.physics.world import World
from tests.unit.analysis.diagnosis.jobs import (
    INTERLEAVED,
    JOB,
    MS,
    ONE_RANK,
    ONE_STAGE,
    causes,
    check_named_alone,
    diagnosed,
    evidence,
    found,
    session,
    signs_of,
)
from tests.unit.analysis.diagnosis.second_physics import (
    PLAIN,
    WITHOUT_SCATTER,
    names,
    pass_s,
    report_of,
)

LONGER = replace(JOB, steps=20)
BUSY = Congestion(30.0, 9, offset=2)
TWO_STAGES = replace(LONGER, sizes=Sizes(dp=1, pp=2))


@pytest.mark.parametrize(
    "job",
    [LONGER, replace(ONE_RANK, steps=20), replace(INTERLEAVED, steps=20), TWO_STAGES],
    ids=["stages", "one rank", "virtual stages", "one link"],
)
def test_it_is_named_alone_with_most_of_the_lost_time(job: JobModel) -> None:
    check_named_alone(BUSY, job)


def test_nothing_is_found_in_a_healthy_job_nor_where_links_are_slow_one_by_one() -> None:
    for job in (LONGER, TWO_STAGES, INTERLEAVED):
        assert NETWORK_CONGESTION.find(signs_of(session(job=job))) is None
    for spells in (Spells(), Spells(share=0.5)):
        slow = session(SlowLink((2, 1), 30.0, spells), job=LONGER)
        assert NETWORK_CONGESTION.find(signs_of(slow)) is None


def test_half_of_the_links_by_spells_are_not_the_whole_network() -> None:
    job = replace(LONGER, sizes=Sizes(dp=2, pp=2))
    slow = session(SlowLink((1, 0), 30.0, Spells(share=0.5)), job=job)

    assert NETWORK_CONGESTION.find(signs_of(slow)) is None


def test_a_single_link_with_typical_collectives_may_as_well_be_slow_by_itself() -> None:
    slow = SlowLink((0, 1), 60.0, Spells(from_step=10))
    cause, other = diagnosed(session(slow, job=TWO_STAGES)).causes

    assert (cause.cause, other.cause) == ("network_congestion", "network")
    assert (cause.confidence or 1) <= 0.8
    assert other.cost_s is None


def test_a_network_that_is_slow_all_the_time_has_no_spells() -> None:
    slow = session(Congestion(30.0, 1e9, busy=1.0, offset=5e8), job=LONGER)

    assert NETWORK_CONGESTION.find(signs_of(slow)) is None


def test_slow_links_are_not_its_sign() -> None:
    assert NETWORK.find(signs_of(session(BUSY, job=LONGER))) is None


def test_the_slow_steps_are_named_with_their_time_of_the_day() -> None:
    synthetic = session(BUSY, job=LONGER)
    finding = found(NETWORK_CONGESTION, signs_of(synthetic))
    figure, spells = finding.figure, finding.where.spells
    assert isinstance(figure, TransferLevels)
    assert spells is not None
    height = np.array(figure.by_step)
    slow = np.isin(synthetic.truth.steps, synthetic.truth.slow_steps)

    assert height[slow].min() > height[~slow].max()
    assert spells.of == LONGER.steps
    assert spells.steps == (height >= 1.8).sum()
    assert f"all at once in {spells.steps} of 20" in evidence(diagnosed(synthetic))
    assert "UTC)" in evidence(diagnosed(synthetic))


def test_without_it_transfers_take_what_they_do_in_quiet_steps() -> None:
    signs = signs_of(session(BUSY, job=LONGER))
    nodes = signs.observation.layout.nodes
    healthy = signs_of(session(job=LONGER)).observation

    finding = found(NETWORK_CONGESTION, signs)
    busy = np.array(finding.figure.by_step if isinstance(finding.figure, TransferLevels) else ())
    for node, transfer in finding.change.transfers_ns.items():
        assert not np.isfinite(transfer[busy < 1.2]).any()
        typical = healthy.recorded_ns[nodes.op == nodes.op[node]]
        assert transfer[busy >= 1.2].max() < 1.5 * np.median(typical)


def test_with_another_cause_both_are_named() -> None:
    diagnosis = diagnosed(session(BUSY, SlowDataLoading(150 * MS), job=LONGER))

    assert sorted(causes(diagnosis)) == ["data_loading", "network_congestion"]


def test_a_few_steps_do_not_tell_spells_and_one_stage_has_no_links() -> None:
    few = signs_of(session(BUSY, job=replace(JOB, steps=7)))

    assert NETWORK_CONGESTION.find(few) is None
    reason = NETWORK_CONGESTION.cannot_judge(few)
    assert reason is not None
    assert "fewer than 8 steps" in reason
    one_stage = signs_of(session(BUSY, job=ONE_STAGE))
    assert NETWORK_CONGESTION.find(one_stage) is None
    assert NETWORK_CONGESTION.cannot_judge(one_stage) is None


def test_where_most_steps_are_slow_the_ideal_is_not_what_the_job_is_held_against() -> None:
    mostly = Congestion(30.0, 18, busy=0.75, offset=1)
    synthetic = session(mostly, job=LONGER)
    diagnosis = diagnosed(synthetic)

    assert NETWORK_CONGESTION.slows_ideal
    assert NETWORK_CONGESTION.slows_ideal(signs_of(synthetic))
    assert causes(diagnosis) == ["network_congestion"]
    assert diagnosis.slowdown == pytest.approx(synthetic.truth.slowdown, rel=0.05)


@pytest.mark.parametrize("shape", [PLAIN, WITHOUT_SCATTER], ids=["recorded", "no scatter"])
def test_on_the_second_physics_the_slowdown_is_what_it_is(shape: Shape) -> None:
    def strike(world: World) -> None:
        height = np.clip(np.sin(np.arange(world.shape.steps) * 0.7), 0, None)
        world.activation_s[:] += 2 * pass_s(world) * height[:, None]
        world.gradient_s[:] += 2 * pass_s(world) * height[:, None]
        world.gather_s[:] *= 1 + 4 * height
        world.scatter_s[:] *= 1 + 4 * height

    report, slowdown = report_of(shape, strike)

    assert names(report) == ["network_congestion"]
    assert report.headline.slowdown == pytest.approx(slowdown, rel=0.03)
    assert report.recommendations[0].action == "separate_traffic"
    assert report.recommendations[0].predicted_gain == pytest.approx(1 - 1 / slowdown, rel=0.05)
