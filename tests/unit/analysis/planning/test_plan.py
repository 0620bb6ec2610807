"""The result of planning, by method and objective."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from app.analysis.json_text import to_json
from app.analysis.planning.build import MOST_DRAWN, plan_document, simulated_iteration
from app.analysis.planning.plan import FoundPlan, plan, with_oobleck_templates
from app.analysis.planning.problem import PS_PER_MS
from app.analysis.planning.search.best_first import Certificate, Leaf
from app.analysis.planning.search.budget import SearchBudget
from app.analysis.planning.spec import DeviceType, Layer, Network, Spec
from app.analysis.planning.template import evaluate, stage_times
from app.analysis.planning.warm_up import warm_up
from app.errors import InfeasiblePlanError, InvalidSpecError
from benchmarks.support.clusters import CLUSTERS, uniform_example
from tests.oracles.plan_checker import faults_of_certificate, faults_of_template


def cost_ms(found: FoundPlan, objective: str) -> float:
    return evaluate(found.problem, found.template).by(objective) / PS_PER_MS


@pytest.mark.parametrize(("name", "optimum"), [("Ex1", 94_387), ("Ex3", 31_235)])
def test_optimum_of_equal_blocks_by_oobleck(name: str, optimum: float) -> None:
    found = plan(uniform_example(name), objective="t_oobleck", compare=False)
    assert cost_ms(found, "t_oobleck") == pytest.approx(optimum, abs=0.5)
    assert found.optimal


@pytest.mark.slow
def test_ditto_on_equal_blocks() -> None:
    ex1 = plan(uniform_example("Ex1"), objective="t_oobleck")
    assert cost_ms(ex1.comparison["ditto"], "t_oobleck") == pytest.approx(
        cost_ms(ex1, "t_oobleck"), rel=5e-4
    )
    assert cost_ms(ex1.comparison["greedy"], "t_oobleck") == pytest.approx(
        cost_ms(ex1, "t_oobleck") * 1.037, rel=5e-4
    )
    ex3 = plan(uniform_example("Ex3"), objective="t_oobleck")
    # The ratio depends on the order of ties in the virtual template.
    assert 1.20 <= cost_ms(ex3.comparison["ditto"], "t_oobleck") / cost_ms(ex3, "t_oobleck") <= 1.44
    assert "there are 8" in ex3.reasons["greedy"]


@pytest.mark.parametrize("speeds", ["code", "paper"])
@pytest.mark.parametrize("name", CLUSTERS)
def test_optimum_of_every_example_is_proven(name: str, speeds: str) -> None:
    found = plan(uniform_example(name, speeds), objective="t_std", compare=False)
    assert found.optimal
    assert found.certificate is not None
    assert found.certificate.lower_bound_ps == found.certificate.upper_bound_ps
    assert faults_of_template(found.problem, found.template) == []


@pytest.mark.slow
@pytest.mark.parametrize("objective", ["t_std", "t_oobleck"])
def test_divide_and_conquer_is_never_below_the_optimum(objective: str) -> None:
    spec = uniform_example("Ex2")
    best = plan(spec, objective=objective, compare=False)
    divided = plan(spec, method="exhaustive", objective=objective, compare=False)
    assert cost_ms(divided, objective) >= cost_ms(best, objective)
    assert faults_of_template(divided.problem, divided.template) == []
    assert divided.lower_bound_ps is None
    assert not divided.optimal


def test_near_templates_are_ranked_by_execution() -> None:
    found = plan(uniform_example("Ex5"), objective="t_std", compare=False)
    times = [evaluate(found.problem, template) for template in found.alternatives]
    assert len(times) == 10
    assert [time.simulated for time in times] == sorted(time.simulated for time in times)
    best = evaluate(found.problem, found.template)
    assert all(time.t_std <= best.t_std * 1.02 for time in times)
    assert times[0].simulated <= best.simulated


def test_by_default_the_plan_executes_fastest_and_says_what_is_proven() -> None:
    spec = uniform_example("Ex5")
    standard = plan(spec, objective="t_std", compare=False)
    found = plan(spec, compare=False)
    assert found.objective == "simulated"
    assert found.template == found.alternatives[0]
    assert cost_ms(found, "simulated") < cost_ms(standard, "simulated")
    assert found.lower_bound_ps is not None
    assert found.lower_bound_ps <= evaluate(found.problem, found.template).simulated
    assert found.gap is not None
    assert 0 < found.gap < 0.01
    assert not found.optimal


def test_time_limit_leaves_a_proven_gap() -> None:
    ticks = iter(range(10**6))
    gaps: list[float] = []
    budget = SearchBudget(lambda: float(next(ticks)), deadline_s=2.0, report=gaps.append)
    found = plan(uniform_example("Ex3"), objective="t_std", budget=budget, compare=False)
    assert not found.optimal
    assert found.certificate is not None
    assert 0 < found.certificate.gap < 1
    best = plan(uniform_example("Ex3"), compare=False)
    assert found.certificate.lower_bound_ps <= evaluate(best.problem, best.template).t_std
    assert faults_of_template(found.problem, found.template) == []


class CancelledError(Exception):
    pass


def test_progress_is_reported_and_may_end_the_search() -> None:
    def cancel(gap: float) -> None:
        assert gap >= 0
        raise CancelledError

    with pytest.raises(CancelledError):
        plan(uniform_example("Ex3"), budget=SearchBudget(report=cancel), compare=False)


@pytest.mark.parametrize("method", ["optimal", "ditto", "greedy", "exhaustive"])
def test_every_method_is_canceled_by_its_clock(method: str) -> None:
    readings = 0

    def clock() -> float:
        nonlocal readings
        readings += 1
        if readings > 3:
            raise CancelledError
        return 0.0

    with pytest.raises(CancelledError):
        plan(uniform_example("Ex1"), method=method, budget=SearchBudget(clock), compare=False)


@pytest.mark.slow
def test_checker_refuses_a_certificate_that_claims_too_much() -> None:
    found = plan(uniform_example("Ex1"), objective="t_std", compare=False)
    certificate = found.certificate
    assert certificate is not None

    def faults(changed: Certificate) -> list[str]:
        return faults_of_certificate(found.problem, found.template, changed)

    assert faults(certificate) == []
    leaves = certificate.leaves
    dearer = tuple(
        Leaf(leaf.low_ps, leaf.high_ps, None if leaf.bound_ps is None else leaf.bound_ps * 2)
        for leaf in leaves
    )
    assert any("claims too much" in fault for fault in faults(replace(certificate, leaves=dearer)))
    gone = replace(certificate, leaves=leaves[1:])
    assert any("in no leaf" in fault for fault in faults(gone))
    impossible = tuple(Leaf(leaf.low_ps, leaf.high_ps, None) for leaf in leaves)
    higher = replace(certificate, leaves=impossible, lower_bound_ps=certificate.lower_bound_ps + 1)
    assert any("holds a template" in fault for fault in faults(higher))
    twice = replace(certificate, leaves=(leaves[0], *leaves))
    assert "the leaves overlap" in faults(twice)
    cheaper = replace(certificate, upper_bound_ps=certificate.upper_bound_ps - 1)
    assert any("the template costs" in fault for fault in faults(cheaper))


def test_checker_refuses_templates_that_break_a_rule() -> None:
    found = plan(uniform_example("Ex1"), compare=False)
    first, *rest = found.template
    problem = found.problem

    assert "a node is not used" in faults_of_template(problem, tuple(rest))
    assert "the stages do not follow each other" in faults_of_template(problem, tuple(rest))
    short = (*found.template[:-1], replace(found.template[-1], end=49))
    assert "the stages do not cover the layers" in faults_of_template(problem, short)
    elsewhere = (replace(first, nodes=((0, 7),)), *rest)
    assert any("no node 7" in fault for fault in faults_of_template(problem, elsewhere))
    crowded = (replace(first, nodes=rest[-1].nodes), *rest)
    faults = faults_of_template(problem, crowded)
    assert any("do not follow each other" in fault for fault in faults)
    assert any("do not fit a node" in fault for fault in faults)


def test_replicated_stages_are_never_worse_and_share_by_speed() -> None:
    spec = replace(uniform_example("Ex3"), replicate=True)
    plain = plan(uniform_example("Ex3"), compare=False)
    found = plan(spec, compare=False)
    assert found.optimal
    assert cost_ms(found, "t_std") < cost_ms(plain, "t_std")
    assert faults_of_template(found.problem, found.template) == []
    document = plan_document(found)
    replicated = [stage.replicas for stage in document.stages if stage.replicas]
    assert replicated
    speeds = {device.name: device.speed for device in spec.devices}
    for replicas in replicated:
        assert sum(one.share for one in replicas) == pytest.approx(1)
        assert all(
            one.share / speeds[one.device]
            == pytest.approx(replicas[0].share / speeds[replicas[0].device])
            for one in replicas
        )


def test_replicas_pay_for_their_gradients() -> None:
    layers = tuple(Layer(10.0, 20.0, parameter_bytes=1e9) for _ in range(2))
    devices = (DeviceType("gpu", 2, 1),)
    network = Network(inter_node_gbytes_per_s=10.0)
    free = Spec(layers, 1.0, devices, 10, replicate=True)
    found = plan(free, compare=False)
    assert [len(stage.nodes) for stage in found.template] == [2]
    assert stage_times(found.problem, found.template) == [30 * PS_PER_MS]
    paid = plan(replace(free, network=network), compare=False)
    # 2 GB over a ring of 2 at 10 GB/s: 200 ms an iteration, 20 ms for each of 10 microbatches
    times = {
        len(template): stage_times(paid.problem, template) for template in (*paid.alternatives,)
    }
    assert times.get(1, [50 * PS_PER_MS]) == [50 * PS_PER_MS]
    assert cost_ms(paid, "t_std") == pytest.approx(330.0)  # two stages of 30 ms win


def test_document_is_complete_and_plain_json() -> None:
    found = plan(uniform_example("Ex1"), method="ditto")
    found = with_oobleck_templates(found)
    document = json.loads(to_json(plan_document(found)))
    assert document["schema"] == "paceline.plan/1"
    assert document["folding"]["factors"] == {"v100": 1, "3090": 2}
    assert document["folding"]["virtual_nodes"] == 6
    assert len(document["virtual_template"]["stages"]) == 12
    counts = [len(template["stages"]) for template in document["oobleck_templates"]]
    assert counts == list(range(6, 13))
    assert document["optimal"] is False
    assert document["lower_bound_ms"] is None
    assert set(document["comparison"]) == {"greedy"}
    first = document["stages"][0]
    assert first["layers"][0] == 0
    assert set(first) >= {"device", "gpus", "node", "forward_ms", "backward_ms", "memory_bytes"}


@pytest.mark.slow
def test_list_of_templates_stays_empty_where_it_would_take_long() -> None:
    layers = (Layer(1.0, 3.0),) * 98
    devices = (DeviceType("slow", 6, 8), DeviceType("fast", 2, 8, speed=2.0))
    found = plan(Spec(layers, 1.0, devices, 100), method="ditto", compare=False)
    assert with_oobleck_templates(found).oobleck == ()


def test_timeline_has_every_computation_and_the_bubbles() -> None:
    found = plan(uniform_example("Ex1"), compare=False)
    line = simulated_iteration(found.problem, found.template)
    assert line.starts is not None
    assert len(line.starts.forward) == len(found.template)
    assert {len(row) for row in (*line.starts.forward, *line.starts.backward)} == {50}
    assert line.iteration_time_ms == pytest.approx(cost_ms(found, "simulated"))
    assert all(0 <= share < 1 for share in line.bubble)


def test_of_an_iteration_with_too_many_computations_only_the_bubbles_are_kept() -> None:
    spec = Spec((Layer(1.0, 2.0),) * 2, 1.0, (DeviceType("a", 2, 1),), MOST_DRAWN)
    found = plan(spec, compare=False)
    line = simulated_iteration(found.problem, found.template)
    assert line.starts is None
    assert len(line.bubble) == len(found.template) == 2


def test_idle_devices_are_counted() -> None:
    layers = (Layer(10.0, 20.0), Layer(10.0, 20.0))
    devices = (DeviceType("fast", 1, 2, speed=100.0), DeviceType("slow", 2, 2))
    found = plan(Spec(layers, 1.0, devices, 4, allow_idle=True), compare=False)
    assert plan_document(found).idle["slow"] == 4


@pytest.mark.parametrize(
    ("method", "objective", "microbatches", "path"),
    [
        ("best", "t_std", 8, "method"),
        ("optimal", "speed", 8, "objective"),
        ("optimal", "t_oobleck", 3, "microbatches"),
    ],
)
def test_requests_that_cannot_be_planned(
    method: str, objective: str, microbatches: int, path: str
) -> None:
    spec = Spec((Layer(1.0, 2.0),) * 4, 1.0, (DeviceType("a", 2, 2),), microbatches)
    with pytest.raises(InvalidSpecError) as caught:
        plan(spec, method=method, objective=objective)
    assert [fault.column for fault in caught.value.faults] == [path]


def test_ditto_needs_a_layer_for_each_virtual_device() -> None:
    spec = Spec(
        (Layer(1.0, 2.0),) * 4,
        1.0,
        (DeviceType("slow", 1, 2), DeviceType("fast", 1, 2, speed=3.0)),
        8,
    )
    with pytest.raises(InfeasiblePlanError, match="8 virtual devices, the model has 4") as caught:
        plan(spec, method="ditto")
    assert caught.value.stable_code == "plan.ditto_too_few_layers"


def test_exhaustive_refuses_what_it_does_not_know() -> None:
    spec = replace(uniform_example("Ex1"), allow_idle=True)
    with pytest.raises(InfeasiblePlanError) as caught:
        plan(spec, method="exhaustive")
    assert caught.value.stable_code == "plan.not_supported"


def test_warming_up_leaves_nothing_behind() -> None:
    warm_up()
    assert plan(uniform_example("Ex1"), compare=False).optimal
