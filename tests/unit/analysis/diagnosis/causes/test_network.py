from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from app.analysis.diagnosis.causes.network import NETWORK
from app.analysis.diagnosis.diagnose import diagnose
from app.analysis.diagnosis.finding import Links
from app.analysis.diagnosis.locations import Where
from app.analysis.diagnosis.observation import Observation
from app.analysis.replay.metrics import measure
from app.analysis.replay.session import prepare_replay
from app.analysis.synthesis.injections.base import Injection, Spells
from app.analysis.synthesis.injections.delays import SlowLink
from app.analysis.synthesis.job import CostModel, JobModel
from app.analysis.trace.model import Sizes
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
    uneven_chunks,
    where,
)
from tests.unit.analysis.diagnosis.second_physics import PLAIN, names, pass_s, report_of


@pytest.mark.parametrize(
    ("injection", "job"),
    [
        (SlowLink((2, 1), 30.0), JOB),
        (SlowLink((2, 1), 40.0, Spells(share=0.5)), JOB),
    ],
)
def test_it_is_named_alone_with_its_place_and_most_of_the_lost_time(
    injection: Injection, job: JobModel
) -> None:
    check_named_alone(injection, job)


def test_nothing_is_found_in_a_healthy_job() -> None:
    assert NETWORK.find(signs_of(session())) is None


def test_one_worker_has_no_transfers() -> None:
    signs = signs_of(session(job=replace(JOB, sizes=Sizes(dp=1, pp=1))))

    assert NETWORK.cannot_judge(signs) == "one worker has no transfers to compare"
    assert NETWORK.find(signs) is None


def test_slow_links_without_the_fault_take_the_median_of_the_other_links() -> None:
    signs = signs_of(session(SlowLink((2, 1), 30.0)))
    observation = signs.observation
    nodes = observation.layout.nodes
    elsewhere = np.delete(observation.recorded_ns, 2, axis=2)
    finding = found(NETWORK, signs)

    assert finding.where.workers == ((2, 1),)
    for node, transfer in finding.change.transfers_ns.items():
        finite = transfer[np.isfinite(transfer)]
        assert finite.max() < 1.05 * np.median(elsewhere[nodes.op == nodes.op[node]])


def test_where_half_of_the_links_are_slow_the_others_say_what_is_typical() -> None:
    job = replace(JOB, sizes=Sizes(dp=2, pp=2))
    finding = found(NETWORK, signs_of(session(SlowLink((1, 0), 30.0), job=job)))
    healthy = signs_of(session(job=job)).observation

    for node, transfer in finding.change.transfers_ns.items():
        typical = healthy.group.durations.ideal_ns[node]
        assert transfer[np.isfinite(transfer)].max() < 1.2 * typical


def test_slow_links_name_the_worker_that_they_share() -> None:
    diagnosis = diagnosed(session(SlowLink((2, 1), 30.0)))

    assert where(diagnosis).links == ((2, 0, 1), (2, 1, 2))
    assert "2 of 12 links are slow" in evidence(diagnosis)
    assert "1 of 12 links is slow" in evidence(diagnosed(session(SlowLink((2, 0), 30.0))))
    assert "Collectives over the DP ranks of stage 1" in evidence(diagnosis)
    figure = diagnosis.causes[0].figure
    assert isinstance(figure, Links)
    assert figure.ends == ((0, 1), (1, 2), (2, 3))


def test_a_network_that_flaps_shows_even_with_one_stage() -> None:
    job = replace(ONE_STAGE, costs=CostModel(grads_ns=200 * MS))
    diagnosis = diagnosed(session(SlowLink((2, 0), 6.0, Spells(from_step=8)), job=job))

    assert causes(diagnosis) == ["network"]
    assert where(diagnosis) == Where(links=(), stage=0)


def test_it_shows_where_stages_have_other_chunks() -> None:
    trace = uneven_chunks()
    slow = (trace.pp == 0) & (trace.op == trace.op_names.index("grads-reduce-scatter"))
    longer = replace(trace, duration_ns=trace.duration_ns + slow * 5_000_000_000)
    replayed = prepare_replay(longer)
    diagnosis = diagnose(Observation(longer, replayed.main), replayed, measure(replayed))

    assert causes(diagnosis) == ["network"]
    assert where(diagnosis).stage == 0


def test_a_slow_link_counts_where_half_of_the_links_are_as_slow() -> None:
    # With two DP ranks, the slow link's own times may be the median of their type.
    job = replace(JOB, sizes=Sizes(dp=2, pp=2))
    slow = session(SlowLink((1, 0), 30.0), job=job)
    diagnosis = diagnosed(slow)

    assert causes(diagnosis)[0] == "network"
    healthy_s = float(np.mean(slow.truth.healthy_step_times_s))
    observed_s = float(np.mean(measure(prepare_replay(slow.trace)).simulated_s))
    assert diagnosis.slowdown == pytest.approx(observed_s / healthy_s, rel=0.05)


@pytest.mark.parametrize("recorded", [True, False])
def test_slow_collectives_cost_what_they_do_whether_all_are_recorded_or_not(
    *, recorded: bool
) -> None:
    def strike(world: World) -> None:
        world.gather_s[1] += 6 * pass_s(world)
        world.scatter_s[1] += 6 * pass_s(world)

    report, slowdown = report_of(replace(PLAIN, scatter_recorded=recorded), strike)

    assert names(report) == ["network"]
    assert report.causes[0].where.stage == 1
    assert report.headline.slowdown == pytest.approx(slowdown, rel=0.03)


@pytest.mark.parametrize(("pp", "groups"), [(1, 2), (2, 2), (1, 3)])
def test_a_group_of_a_stage_that_is_slow_against_others_is_named_with_what_it_costs(
    pp: int, groups: int
) -> None:
    dp = 2 * groups

    def strike(world: World) -> None:
        world.of_group_s[0, 2:4] += 3 * pass_s(world)

    report, slowdown = report_of(replace(PLAIN, pp=pp, dp=dp, groups=groups), strike)
    (cause,) = report.causes
    recorded_s = float(np.mean(report.step_times.recorded))

    assert cause.cause == "network"
    assert cause.where.workers == ((2, 0), (3, 0))
    assert f"those of the other {dp - 2}, step after step" in cause.evidence[0]
    assert cause.cost_s is not None
    assert recorded_s / (recorded_s - cause.cost_s) == pytest.approx(slowdown, rel=0.03)


def test_groups_that_do_not_wait_for_each_other_have_no_slow_network() -> None:
    def strike(world: World) -> None:
        # The first group computes longer, so it is late to its collectives.
        world.forward_s[0, ..., :2] *= 1.5

    report, _ = report_of(replace(PLAIN, pp=2, groups=2), strike)

    assert "network" not in names(report)


def test_of_two_stages_the_slow_collectives_of_one_do_not_hide() -> None:
    def strike(world: World) -> None:
        world.gather_s[1] += 3 * pass_s(world)
        world.scatter_s[1] += 3 * pass_s(world)

    report, slowdown = report_of(replace(PLAIN, pp=2), strike)

    assert slowdown > 1.1
    assert names(report) == ["network"]
    assert report.headline.slowdown == pytest.approx(slowdown, rel=0.03)


@pytest.mark.parametrize("pp", [2, 4])
def test_with_half_of_the_links_slow_what_healthy_ones_do_is_typical(pp: int) -> None:
    def strike(world: World) -> None:
        for times in (world.activation_s, world.gradient_s):
            times[..., :2] += 2 * pass_s(world)

    report, slowdown = report_of(replace(PLAIN, pp=pp), strike)

    assert names(report) == ["network"]
    assert report.headline.slowdown == pytest.approx(slowdown, rel=0.03)
    assert report.recommendations[0].action == "repair_link"
    assert report.recommendations[0].predicted_gain == pytest.approx(1 - 1 / slowdown, rel=0.05)
