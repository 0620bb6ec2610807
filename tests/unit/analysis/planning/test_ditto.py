"""The parts of Ditto, on cases that can be computed by hand."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from app.analysis.planning.ditto import (
    Folding,
    UnrecoverableError,
    fold,
    oobleck_templates,
    plan_ditto,
    recover,
    recover_greedily,
)
from app.analysis.planning.oobleck import Division, TooLargeToDivideError
from app.analysis.planning.problem import PS_PER_MS, compile_problem
from app.analysis.planning.search.budget import SearchBudget
from app.analysis.planning.spec import DeviceType, Layer, Network, Spec
from app.analysis.planning.template import Node
from benchmarks.support.clusters import uniform_example


def spec(*devices: DeviceType, layers: int = 6, network: Network | None = None) -> Spec:
    return Spec((Layer(10.0, 30.0),) * layers, 1.0, devices, 20, network or Network())


@pytest.mark.parametrize(
    ("name", "speeds", "factors"),
    [
        ("Ex3", "code", (1, 2, 2, 3)),
        ("Ex5", "code", (1, 2, 4)),
        ("Ex5", "paper", (1, 2, 6)),
        ("Ex4", "paper", (1, 2, 3)),
    ],
)
def test_folding_without_communication(name: str, speeds: str, factors: tuple[int, ...]) -> None:
    folding = fold(uniform_example(name, speeds))
    assert folding.factors == factors
    assert folding.weakest == 0


def test_virtual_cluster_counts_every_device() -> None:
    folding = fold(uniform_example("Ex3"))
    assert (folding.nodes, folding.gpus_per_node, folding.gpus) == (
        4 + 3 * 2 + 2 * 2 + 2 * 3,
        2,
        40,
    )


def test_folding_with_communication_takes_the_closest_number() -> None:
    # C_w = 240 ms on the slow type, 60 on the fast: d* = 4. With an all-reduce of 10 ms a layer,
    # p(1) = 240, p(2) = 120 + 6·10 = 180, p(3) = 80 + (1·0 + 2·60)/3 = 120 + 5 (across), p(4) = 60
    # + 60 + 2·5: p(3) is nearest.
    network = Network(allreduce_in_node_ms=({2: 10.0},) * 6, allreduce_across_ms=(5.0,) * 6)
    cluster = spec(DeviceType("slow", 1, 2), DeviceType("fast", 1, 2, speed=4.0), network=network)
    assert fold(cluster).factors == (1, 4)
    assert fold(replace(cluster, fold_with_communication=True)).factors == (1, 3)


def test_virtual_template_has_a_stage_for_each_virtual_device() -> None:
    problem = compile_problem(uniform_example("Ex1"))
    found = plan_ditto(problem, SearchBudget())
    assert [gpus for *_, gpus in found.virtual.stages] == [1] * 12
    assert found.virtual.stages[0][0] == 0
    assert found.virtual.stages[-1][1] == 50


def test_oobleck_has_one_template_for_each_number_of_stages() -> None:
    problem = compile_problem(uniform_example("Ex1"))
    templates = oobleck_templates(problem, fold(problem.spec), SearchBudget())
    assert [len(template.stages) for template in templates] == list(range(6, 13))
    assert all(sum(gpus for *_, gpus in template.stages) == 12 for template in templates)


def test_recovery_merges_as_many_stages_as_a_device_is_worth() -> None:
    problem = compile_problem(
        spec(DeviceType("slow", 1, 1), DeviceType("fast", 1, 1, speed=2.0), layers=3)
    )
    template = recover(problem, fold(problem.spec), [(0, 1), (1, 2), (2, 3)])
    assert template is not None
    # T_oobleck is lower if the rightmost slowest stage is further right, so the fast device is
    # first.
    assert sorted((stage.end - stage.first, stage.nodes[0][0]) for stage in template) == [
        (1, 0), (2, 1),
    ]  # fmt: skip


def test_recovery_merges_onto_any_number_of_devices_of_a_node() -> None:
    # All stages take as long with any x, so that the fewest are the fastest: one for each node.
    problem = compile_problem(
        spec(DeviceType("slow", 1, 3), DeviceType("fast", 1, 3, speed=2.0), layers=9),
        any_width=True,
    )
    template = recover(problem, fold(problem.spec), [(n, n + 1) for n in range(9)])
    assert template is not None
    widths = [(stage.end - stage.first, problem.options[stage.option].gpus) for stage in template]
    assert sorted(widths) == [(3, 3), (6, 3)]


@pytest.mark.parametrize("name", ["Ex3", "Ex4"])
def test_recovered_stages_fit_into_the_nodes(name: str) -> None:
    found = plan_ditto(compile_problem(uniform_example(name, "paper")), SearchBudget())
    devices, used = found.problem.spec.devices, Counter[Node]()
    for stage in found.template:
        used[stage.nodes[0]] += found.problem.options[stage.option].gpus
    assert used == {
        (kind, node): device.gpus_per_node
        for kind, device in enumerate(devices)
        for node in range(device.nodes)
    }


def test_three_devices_all_reduce_as_long_as_four() -> None:
    network = Network(allreduce_in_node_ms=({2: 10.0, 4: 30.0},) * 6)
    problem = compile_problem(spec(DeviceType("only", 1, 4), network=network), any_width=True)
    three, four = (problem.cost_ps[problem.option_index(0, gpus), 1, 0] for gpus in (3, 4))
    assert three == pytest.approx((40 / 3 + 2 * 30) * PS_PER_MS)
    assert four == (40 / 4 + 2 * 30) * PS_PER_MS


def test_recovery_ends_nowhere_where_the_devices_do_not_add_up() -> None:
    problem = compile_problem(spec(DeviceType("slow", 1, 1), layers=3))
    folding = Folding(0, (1,), 3, 1)
    assert recover(problem, folding, [(0, 1), (1, 2), (2, 3)]) is None


def test_greedy_replaces_where_it_helps_most() -> None:
    problem = compile_problem(
        spec(DeviceType("slow", 1, 2), DeviceType("fast", 1, 2, speed=2.0), layers=6)
    )
    folding = fold(problem.spec)
    template = recover_greedily(problem, folding, [(0, 2, 2), (2, 4, 2), (4, 6, 2)], "paper")
    kinds = [problem.options[stage.option] for stage in template]
    assert sorted((option.device, option.gpus) for option in kinds) == [(0, 2), (1, 1), (1, 1)]


def test_rule_of_the_program_leaves_small_shares_alone() -> None:
    problem = compile_problem(
        spec(DeviceType("slow", 1, 2), DeviceType("fast", 1, 1, speed=4.0), layers=6)
    )
    folding = fold(problem.spec)
    virtual = [(0, 2, 2), (2, 4, 2), (4, 6, 2)]
    with pytest.raises(UnrecoverableError, match="no stage remains for 1 of 1 fast"):
        recover_greedily(problem, folding, virtual, "code")
    with pytest.raises(UnrecoverableError, match="need 4 slow, there are 2"):
        recover_greedily(problem, folding, virtual, "paper")


def test_divide_and_conquer_ends_when_the_time_is_up() -> None:
    problem = compile_problem(uniform_example("Ex1"))
    with pytest.raises(TooLargeToDivideError, match="time is up"):
        Division(problem, "t_std", SearchBudget(lambda: 2.0, deadline_s=1.0))


def test_divide_and_conquer_is_not_begun_where_it_would_take_too_long() -> None:
    problem = compile_problem(uniform_example("Ex3"))
    with pytest.raises(TooLargeToDivideError, match="divisions would be looked at"):
        Division(problem, "t_std", SearchBudget(most_divisions=1e6))


def test_divide_and_conquer_refuses_what_would_fill_the_memory() -> None:
    devices = tuple(DeviceType(f"t{i}", 6, 2) for i in range(4))
    with pytest.raises(TooLargeToDivideError, match="entries"):
        Division(compile_problem(spec(*devices, layers=60)), "t_std", SearchBudget())
