"""The adapter to Metis, on a stand-in that reads and prints the formats of its program."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from app.analysis.planning.problem import PS_PER_MS, compile_problem
from app.analysis.planning.spec import DeviceType, Layer, Network, Spec
from app.analysis.planning.template import evaluate
from benchmarks.metis import (
    NotExpressibleError,
    PeerError,
    PeerPlan,
    check_spec,
    describe,
    parse_plans,
    run_metis,
    translate,
    write_inputs,
)
from benchmarks.planner import measure_peer

STAND_IN = Path(__file__).parents[2] / "support" / "metis"
# As its repository shows a result: node sequences are tuples, strategies lists or tuples.
PRINTED = """valid_strategies: [(8, 1), (8, 1)]
len(costs): 1124
rank, cost, node_sequence, device_groups, strategies(dp_deg, tp_deg), batches(number of batch)
1, 2396.737190744151, (<DeviceType.T4: 't4'>, <DeviceType.A100: 'a100'>), [8, 8], \
[(4, 2), (4, 2)], 8, [0, 4, 10]
2, 4012.1525642560878, (<DeviceType.A100: 'a100'>, <DeviceType.T4: 't4'>), [4, 4, 4, 4], \
[[4, 1], [4, 1], [4, 1], (1, 4)], 32, [0, 3, 5, 7, 10]
"""


def cluster(**changes: object) -> Spec:
    layers = tuple(
        Layer(ms, 3 * ms, parameter_bytes=2**20, output_bytes=4096) for ms in (1, 2, 3, 4, 5, 6)
    )
    devices = (
        DeviceType("old", nodes=2, gpus_per_node=2, memory_bytes=16 * 2**30),
        DeviceType("new", nodes=1, gpus_per_node=2, speed=2.0),
    )
    network = Network(
        intra_node_gbytes_per_s=10.0, allreduce_in_node_ms=tuple({2: 0.5} for _ in layers)
    )
    spec = Spec(layers, 1.0, devices, microbatches=8, network=network, replicate=True)
    return replace(spec, **changes)  # type: ignore[arg-type] # each test names a field


def peer_plan(**changes: object) -> PeerPlan:
    base = PeerPlan(
        rank=1,
        cost_ms=1.0,
        types=("V100", "A100"),
        groups=(2, 2, 2),
        strategies=((1, 2), (1, 2), (1, 2)),
        batches=8,
        cuts=(0, 3, 4, 6),
    )
    return replace(base, **changes)  # type: ignore[arg-type] # each test names a field


def test_reads_the_list_that_metis_prints() -> None:
    first, second = parse_plans(PRINTED)
    assert first == PeerPlan(
        1, 2396.737190744151, ("T4", "A100"), (8, 8), ((4, 2), (4, 2)), 8, (0, 4, 10)
    )
    assert second.strategies == ((4, 1), (4, 1), (4, 1), (1, 4))
    assert second.cuts == (0, 3, 5, 7, 10)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Traceback\n", "no list"),
        (PRINTED + "3, nothing\n", "not a line"),
        (PRINTED + "3, __import__('os'), (), [], [], 1, []\n", "not a line"),
    ],
)
def test_what_is_no_list_is_said(text: str, message: str) -> None:
    with pytest.raises(PeerError, match=message):
        parse_plans(text)


def test_writes_times_memory_and_bandwidth_in_its_units(tmp_path: Path) -> None:
    arguments = write_inputs(cluster(), tmp_path)
    assert "--gbs=8" in arguments
    assert "--max_profiled_tp_degree=2" in arguments
    assert "--hidden_size=4096" in arguments
    assert (tmp_path / "hostfile").read_text() == (
        "10.0.0.0 slots=2\n10.0.0.1 slots=2\n10.0.0.2 slots=2\n"
    )
    nodes = json.loads((tmp_path / "clusterfile.json").read_text())
    assert [node["instance_type"] for node in nodes.values()] == ["A100", "A100", "V100"]
    assert nodes["10.0.0.0"]["memory"] == 16
    # it divides bytes by the bandwidth × 2^20 and takes the quotient for milliseconds
    assert 10**10 / (nodes["10.0.0.0"]["intra_bandwidth"] * 2**20) == pytest.approx(1e3)
    profile = json.loads((tmp_path / "profile" / "DeviceType.V100_tp2_bs4.json").read_text())
    # twice as fast, on two devices, four microbatches, an all-reduce in each direction
    assert profile["execution_time"]["layer_compute_total_ms"][0] == pytest.approx(
        4 * (4 / 2 / 2 + 2 * 0.5)
    )
    assert profile["execution_memory"]["layer_memory_total_mb"][0] == pytest.approx(3.0)


def test_its_plan_costs_here_what_our_model_says() -> None:
    problem = compile_problem(cluster())
    template = translate(problem, peer_plan())
    # V100 stands for "new": ranks go to it first
    assert [problem.spec.devices[stage.nodes[0][0]].name for stage in template] == [
        "new",
        "old",
        "old",
    ]
    lengths = [4 * 6 / 2 / 2 + 3, 4 * 4 / 2 + 1, 4 * 11 / 2 + 2]
    expected = sum(lengths) + 7 * max(lengths)
    # transfers of 4 KiB take under a microsecond
    assert evaluate(problem, template).t_std / PS_PER_MS == pytest.approx(expected, rel=1e-3)


def test_replicas_are_whole_nodes_here() -> None:
    problem = compile_problem(cluster())
    found = peer_plan(groups=(2, 4), strategies=((1, 2), (2, 2)), cuts=(0, 3, 6))
    replicated = translate(problem, found)[1]
    assert problem.options[replicated.option].nodes == (2, 0)
    assert describe(found, problem.spec) == "0–2 on 2 new; 3–5 on 2×2 old"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"groups": (6,), "strategies": ((1, 4),), "cuts": (0, 6)}, "over 3 nodes"),
        ({"strategies": ((1, 2), (2, 1), (1, 2))}, "2 replicas that are not 2 whole nodes"),
        ({"cuts": (0, 3, 3, 6)}, "without layers"),
        ({"cuts": (0, 2, 3, 5)}, "layers 0 to 4 only"),
    ],
)
def test_what_no_template_can_be_is_said(changes: dict[str, object], message: str) -> None:
    with pytest.raises(NotExpressibleError, match=message):
        translate(compile_problem(cluster()), peer_plan(**changes))


@pytest.mark.parametrize(
    ("devices", "message"),
    [
        (tuple(DeviceType(f"t{i}", 1, 2) for i in range(5)), "4 types"),
        ((DeviceType("a", 1, 2), DeviceType("b", 1, 4)), "as many devices as the first"),
        ((DeviceType("a", 1, 16),), "one digit"),
    ],
)
def test_what_its_formats_cannot_say_is_refused(
    devices: tuple[DeviceType, ...], message: str
) -> None:
    with pytest.raises(PeerError, match=message):
        check_spec(cluster(devices=devices))


def test_a_program_of_its_formats_is_run_on_our_specification() -> None:
    run = run_metis(STAND_IN, cluster(), time_limit_s=60)
    first, *others = run.plans
    assert first.groups == (6,)
    assert run.taken_s > 0
    problem = compile_problem(cluster())
    with pytest.raises(NotExpressibleError):
        translate(problem, first)
    tensor = next(found for found in others if found.groups == (2, 2, 2) and found.batches == 8)
    # it was told our times, so it says what we say, transfers and a microsecond aside
    ours = evaluate(problem, translate(problem, tensor)).t_std / PS_PER_MS
    assert tensor.cost_ms == pytest.approx(ours, rel=1e-3)


def test_examples_are_listed_with_the_peer_next_to_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.planner.CLUSTERS", {"Ex1": {}})
    monkeypatch.setattr("benchmarks.planner.SPEEDS", {"code": {}})
    monkeypatch.delenv("PACELINE_REFERENCE_PROFILE", raising=False)
    monkeypatch.delenv("PACELINE_REFERENCE_DATA", raising=False)
    ours, theirs, judged = measure_peer(STAND_IN)
    assert ours.startswith("Ex1   uniform")
    assert "optimum 83.792 s" in ours
    assert "metis, first of 6" in theirs
    assert "splits its tensors over 4 nodes" in judged
    assert "its number 3 by our model: t_std" in judged


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("raise SystemExit('no numpy here')", "ended with 1: no numpy here"),
        ("print('rank, cost, node_sequence, device_groups')", "printed no plan"),
        ("import time; time.sleep(60)", "no plan within 1 s"),
    ],
)
def test_a_peer_that_fails_is_said(tmp_path: Path, program: str, message: str) -> None:
    (tmp_path / "cost_het_cluster.py").write_text(program)
    with pytest.raises(PeerError, match=message):
        run_metis(tmp_path, cluster(), time_limit_s=1 if "sleep" in program else 60)


def test_a_folder_that_is_no_checkout_is_said(tmp_path: Path) -> None:
    with pytest.raises(PeerError, match="no folder"):
        run_metis(tmp_path / "absent", cluster(), time_limit_s=1)
    with pytest.raises(PeerError, match=r"it has no cost_het_cluster\.py"):
        run_metis(tmp_path, cluster(), time_limit_s=1)
