"""Specifications: accepted ones, and every fault with its path."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from app.analysis.planning.spec import Layer
from app.errors import InvalidSpecError
from app.plans.specs.spec import parse_spec, read_request
from tests.support.plans import small_spec


def document() -> dict[str, Any]:
    return {
        "model": {
            "layers": [
                {"forward_ms": 1.0, "backward_ms": 2.0, "parameter_bytes": 10, "output_bytes": 5},
                {"forward_ms": 4.0, "stored_activation_bytes": 7},
            ]
        },
        "profiled_on": {"type": "fast", "speed": 2.0},
        "devices": [
            {"type": "slow", "nodes": 1, "gpus_per_node": 2, "memory_bytes": 1e9},
            {"type": "fast", "nodes": 2, "gpus_per_node": 4, "speed": 2.0},
        ],
        "microbatches": 8,
        "network": {
            "intra_node_gbytes_per_s": 12,
            "allreduce_in_node_ms": {"*": {2: 0.5}, 1: {"2": 0.25, "4": 0.75}},
            "allreduce_across_ms": 3,
        },
    }


def faults(changed: object) -> list[tuple[str | None, str]]:
    with pytest.raises(InvalidSpecError) as caught:
        parse_spec(changed)
    assert caught.value.stable_code == "spec.invalid"
    return [(fault.column, fault.code) for fault in caught.value.faults]


def test_reads_a_whole_specification() -> None:
    spec = parse_spec(document())
    assert spec.layers == (Layer(1.0, 2.0, 10.0, 5.0, 5.0), Layer(4.0, 12.0, 0.0, 0.0, 7.0))
    assert spec.profiled_speed == 2.0
    assert spec.gpus == 10
    assert spec.nodes == 3
    slow, fast = spec.devices
    assert (slow.memory_bytes, fast.memory_bytes) == (1e9, None)
    # The layers were profiled on the fast type.
    assert spec.times_of(fast).forward_ms == (1.0, 4.0)
    assert spec.times_of(slow).backward_ms == (4.0, 24.0)
    assert spec.network.allreduce_in_node_ms == ({2: 0.5}, {2: 0.25, 4: 0.75})
    assert spec.network.allreduce_across_ms == (3.0, 3.0)
    assert spec.network.inter_node_gbytes_per_s is None
    assert (spec.allow_idle, spec.replicate, spec.greedy_rule) == (False, False, "paper")


def test_names_every_fault_at_once() -> None:
    wrong = {
        "model": {"layers": [{"forward_ms": -1}, {"backward_ms": "x", "foo": 2}]},
        "profiled_on": {"speed": 0},
        "devices": [
            {"type": "v100", "nodes": 0, "gpus_per_node": 2.5},
            {"type": "v100", "nodes": 2},
        ],
        "microbatches": "many",
        "network": {"inter_node_gbytes_per_s": 0, "allreduce_in_node_ms": {7: {2: 1}}},
        "greedy_rule": "both",
        "replicate": 1,
        "objective": "t_std",
    }
    assert sorted(faults(wrong), key=str) == sorted(
        [
            ("model.layers[0].forward_ms", "out_of_range"),
            ("model.layers[1].forward_ms", "missing"),
            ("model.layers[1].backward_ms", "bad_type"),
            ("model.layers[1].foo", "unknown_key"),
            ("profiled_on.speed", "out_of_range"),
            ("devices[0].nodes", "out_of_range"),
            ("devices[0].gpus_per_node", "bad_type"),
            ("devices[1].gpus_per_node", "missing"),
            ("microbatches", "bad_type"),
            ("network.inter_node_gbytes_per_s", "out_of_range"),
            ("network.allreduce_in_node_ms.7", "out_of_range"),
            ("greedy_rule", "unknown_value"),
            ("replicate", "bad_type"),
            ("objective", "unknown_key"),
        ],
        key=str,
    )


@pytest.mark.parametrize(
    ("path", "value", "fault"),
    [
        (("model",), [], ("model", "bad_type")),
        (("model",), {}, ("model", "conflict")),
        (("model", "layers"), [], ("model.layers", "bad_length")),
        (("model", "layers"), "many", ("model.layers", "bad_type")),
        (("model", "layers", 0), 3, ("model.layers[0]", "bad_type")),
        (("model", "layers", 0, "forward_ms"), True, ("model.layers[0].forward_ms", "bad_type")),
        (
            ("model", "layers", 0, "forward_ms"),
            float("nan"),
            ("model.layers[0].forward_ms", "bad_type"),
        ),
        (("model", "layers", 0, "forward_ms"), 10**400, ("model.layers[0].forward_ms", "bad_type")),
        (("model", "profile"), "x.json", ("model", "conflict")),
        (("devices",), [], ("devices", "bad_length")),
        (("devices", 0, "type"), "", ("devices[0].type", "bad_type")),
        (("devices", 0, "type"), "fast", ("devices[1].type", "duplicate")),
        (("devices", 0, "speed"), 0, ("devices[0].speed", "out_of_range")),
        (("devices", 0, "memory_bytes"), -1, ("devices[0].memory_bytes", "out_of_range")),
        (("devices", 0, "forward_ms"), [1.0], ("devices[0].forward_ms", "bad_length")),
        (("devices", 0, "backward_ms"), [1.0, 2.0], ("devices[0].forward_ms", "missing")),
        (("profiled_on", "speed"), 3.0, ("profiled_on.speed", "conflict")),
        (("profiled_on",), {"type": "other"}, ("profiled_on.speed", "missing")),
        (("profiled_on",), 4, ("profiled_on", "bad_type")),
        (("microbatches",), 0, ("microbatches", "out_of_range")),
        (("network",), 1, ("network", "bad_type")),
        (
            ("network", "allreduce_in_node_ms"),
            [1],
            ("network.allreduce_in_node_ms", "bad_type"),
        ),
        (
            ("network", "allreduce_in_node_ms", 0),
            3,
            ("network.allreduce_in_node_ms.0", "bad_type"),
        ),
        (
            ("network", "allreduce_in_node_ms", 0),
            {1: 3},
            ("network.allreduce_in_node_ms.0.1", "out_of_range"),
        ),
        (
            ("network", "allreduce_across_ms"),
            {0: 1.0, 1: "x"},
            ("network.allreduce_across_ms.1", "bad_type"),
        ),
    ],
)
def test_one_fault(path: tuple[str | int, ...], value: object, fault: tuple[str, str]) -> None:
    changed: Any = copy.deepcopy(document())
    place = changed
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    assert fault in faults(changed)


def test_not_a_mapping() -> None:
    assert faults([1, 2]) == [("", "bad_type")]


def test_too_many_combinations() -> None:
    changed = document()
    changed["devices"] = [
        {"type": f"t{i}", "nodes": 200, "gpus_per_node": 8, "speed": 2.0} for i in range(5)
    ]
    assert ("devices", "too_large") in faults(changed)


def test_profile_of_oobleck() -> None:
    changed = document()
    rows = [
        {"forward": 1.0, "backward": 2.5, "mem_required": [100.0, 20.0]},
        {"forward": 2.0},
    ]
    changed["model"] = {"profile": rows}
    spec = parse_spec(changed)
    assert spec.layers == (Layer(1.0, 2.5, 100.0, 20.0, 20.0), Layer(2.0, 6.0))
    changed["model"] = {"profile": "layers.json"}
    assert faults(changed) == [
        ("model.profile", "not_readable"),
        ("network.allreduce_in_node_ms.1", "out_of_range"),
    ]
    assert parse_spec(changed, lambda name: rows if name == "layers.json" else None) == spec


def test_own_times_of_a_type_override_its_speed() -> None:
    changed = document()
    changed["devices"][0]["forward_ms"] = [3.0, 5.0]
    spec = parse_spec(changed)
    assert spec.times_of(spec.devices[0]).forward_ms == (3.0, 5.0)
    assert spec.times_of(spec.devices[0]).backward_ms == (9.0, 15.0)


def test_numbers_that_yaml_leaves_as_text_are_read() -> None:
    changed = document()
    changed["devices"][0]["memory_bytes"] = "1e9"
    changed["devices"][0]["type"] = 3090
    spec = parse_spec(changed)
    assert spec.devices[0].memory_bytes == 1e9
    assert spec.devices[0].name == "3090"


def test_null_means_an_absent_value() -> None:
    plain, changed = document(), document()
    changed["model"]["layers"][0]["stored_activation_bytes"] = None
    changed["profiled_on"]["speed"] = None
    changed["network"]["inter_node_gbytes_per_s"] = None
    assert parse_spec(changed) == parse_spec(plain)


def test_faults_across_parts_are_named_with_those_of_one_part() -> None:
    changed = document()
    changed["microbatches"] = 0
    changed["model"]["layers"][0]["forward_ms"] = "x"
    changed["model"]["foo"] = 1
    changed["devices"][1]["type"] = "slow"
    changed["devices"][0]["forward_ms"] = [1.0]
    assert set(faults(changed)) == {
        ("model.layers[0].forward_ms", "bad_type"),
        ("model.foo", "unknown_key"),
        ("devices[0].forward_ms", "bad_length"),
        ("devices[1].type", "duplicate"),
        ("microbatches", "out_of_range"),
    }


def test_a_type_that_is_predicted_has_to_be_known() -> None:
    changed = document()
    changed["model"] = {
        "transformer": {
            "layers": 2, "hidden": 64, "heads": 4, "vocabulary": 100, "sequence": 16,
            "microbatch": 1, "gated": "yes", "active_experts": 2,
            "measured": [{"type": "a", "layer": 4, "forward_ms": 1.0}],
        }
    }  # fmt: skip
    assert set(faults(changed)) == {
        ("model.transformer.gated", "bad_type"),
        ("model.transformer.active_experts", "conflict"),
        ("model.transformer.measured[0].layer", "out_of_range"),
        ("devices[0].type", "unknown_type"),
        ("devices[1].type", "unknown_type"),
    }


def test_a_table_of_more_layers_than_any_model_has_is_one_fault() -> None:
    changed = document()
    changed["network"]["allreduce_in_node_ms"] = {layer: {2: "x"} for layer in range(1100)}
    assert faults(changed) == [("network.allreduce_in_node_ms", "bad_length")]


@pytest.mark.parametrize(
    "model",
    [
        {"layers": None, "profile": None, "transformer": {}},
        {"layers": None},
        {"layers": None, "profile": None, "transformer": None},
    ],
)
def test_a_null_is_no_alternative_of_a_model(model: dict[str, object]) -> None:
    with pytest.raises(InvalidSpecError) as refused:
        read_request({"spec": small_spec(model=model)})
    assert {(fault.column or "").partition(".")[0] for fault in refused.value.faults} == {"model"}


def test_a_null_next_to_an_alternative_changes_nothing() -> None:
    model = {**small_spec()["model"], "profile": None, "transformer": None}
    assert (
        read_request({"spec": small_spec(model=model)}).spec
        == read_request({"spec": small_spec()}).spec
    )
