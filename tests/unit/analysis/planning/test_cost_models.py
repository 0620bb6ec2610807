"""Layer costs without a profile."""

from __future__ import annotations

from typing import Any

import pytest

from app.analysis.planning.plan import plan
from app.analysis.planning.transformer import CATALOGUE, find_device
from app.errors import InvalidSpecError
from app.plans.specs.spec import parse_spec

SHAPE = {
    "layers": 4,
    "hidden": 1024,
    "heads": 16,
    "vocabulary": 32000,
    "sequence": 2048,
    "microbatch": 2,
}


def document(**shape: object) -> dict[str, Any]:
    return {
        "model": {"transformer": {**SHAPE, **shape}},
        "devices": [
            {"type": "A100", "nodes": 1, "gpus_per_node": 2},
            {"type": "v100_16gb", "nodes": 1, "gpus_per_node": 2},
        ],
        "microbatches": 16,
    }


@pytest.mark.parametrize("device", CATALOGUE, ids=lambda device: device.name)
def test_catalogue_is_plausible_and_says_where_from(device: Any) -> None:  # noqa: ANN401 - ids
    assert 50 < device.peak_tflops < 5000
    assert 500 < device.memory_gbytes_per_s < 10_000
    assert 8e9 < device.memory_bytes < 400e9
    assert device.source.startswith("https://")
    assert find_device(device.name) is device


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("4090", "RTX 4090"),
        ("rtx_4090_24gb", "RTX 4090"),
        ("v100_16gb", "V100"),
        ("NVIDIA A100-SXM", "A100"),
        ("h100-pcie", "H100"),
        ("rtx_a6000", "A6000"),
        ("a_100_80gb_pcie", "A100"),
        ("Tesla V100", "V100"),
        ("mi300x", "MI300X"),
        ("A1000", None),
        ("abacus", None),
    ],
)
def test_names_of_devices(name: str, found: str | None) -> None:
    device = find_device(name)
    assert (device.name if device else None) == found


def test_block_has_the_flops_of_the_formula() -> None:
    spec = parse_spec(document())
    tokens, h, s = 4096, 1024, 2048
    flops = 24 * tokens * h * h + 4 * tokens * s * h
    a100 = spec.times_of(spec.devices[0])
    assert a100.forward_ms[1] == pytest.approx(flops / (312e12 * 0.5) * 1e3)
    assert a100.backward_ms[1] == pytest.approx(2 * a100.forward_ms[1])
    # Embedding and head have equal tables.
    assert spec.layers[0].parameter_bytes == spec.layers[-1].parameter_bytes == 32000 * h * 2
    assert spec.layers[1].parameter_bytes == 12 * h * h * 2
    assert spec.layers[1].output_bytes == tokens * h * 2
    assert spec.layers[1].stored_activation_bytes == 34 * tokens * h


def test_memory_is_the_catalogues_unless_said() -> None:
    changed = document()
    changed["devices"][1]["memory_bytes"] = 5e9
    spec = parse_spec(changed)
    assert [device.memory_bytes for device in spec.devices] == [80 * 2**30, 5e9]


def test_experts_hold_more_than_they_compute() -> None:
    dense = parse_spec(document())
    mixture = parse_spec(document(experts=8, active_experts=1))
    assert mixture.layers[1].parameter_bytes > 5 * dense.layers[1].parameter_bytes
    times = [spec.times_of(spec.devices[0]).forward_ms[1] for spec in (dense, mixture)]
    assert times[0] == pytest.approx(times[1])


def test_measured_layers_calibrate_their_type() -> None:
    plain = parse_spec(document())
    expected = plain.times_of(plain.devices[0]).forward_ms[1]
    measured = [
        {"type": "A100", "layer": 1, "forward_ms": expected * 3, "backward_ms": expected * 4}
    ]
    spec = parse_spec(document(measured=measured))
    a100, v100 = (spec.times_of(device) for device in spec.devices)
    assert a100.forward_ms[2] == pytest.approx(expected * 3)
    assert a100.backward_ms[2] == pytest.approx(expected * 4)
    assert v100 == plain.times_of(plain.devices[1])


def test_a_device_that_is_unknown_can_be_described() -> None:
    changed = document()
    changed["devices"][0] = {"type": "mine", "nodes": 1, "gpus_per_node": 1}
    with pytest.raises(InvalidSpecError) as caught:
        parse_spec(changed)
    assert [(f.column, f.code) for f in caught.value.faults] == [
        ("devices[0].type", "unknown_type")
    ]
    changed["devices"][0] |= {"peak_tflops": 10, "memory_gbytes_per_s": 100, "efficiency": 0.9}
    assert plan(parse_spec(changed), compare=False).optimal


@pytest.mark.parametrize(
    ("shape", "path"),
    [
        ({"hidden": 0}, "model.transformer.hidden"),
        ({"experts": 2, "active_experts": 4}, "model.transformer.active_experts"),
        ({"gated": "yes"}, "model.transformer.gated"),
        ({"color": "red"}, "model.transformer.color"),
        ({"measured": [{"type": "A100"}]}, "model.transformer.measured[0].layer"),
        (
            {"measured": [{"type": "A100", "layer": 9, "forward_ms": 1}]},
            "model.transformer.measured[0].layer",
        ),
    ],
)
def test_faults_of_a_transformer(shape: dict[str, object], path: str) -> None:
    with pytest.raises(InvalidSpecError) as caught:
        parse_spec(document(**shape))
    assert path in [fault.column for fault in caught.value.faults]
