"""Infeasible specifications: the reason, and changes that suffice."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.analysis.planning.plan import plan
from app.analysis.planning.spec import DeviceType, Layer, Spec
from app.errors import InfeasiblePlanError

MIB = 2**20


def spec(layers: int, *devices: DeviceType) -> Spec:
    layer = Layer(1.0, 3.0, 100 * MIB, 10 * MIB, 10 * MIB)
    return Spec((layer,) * layers, 1.0, devices, microbatches=8)


def refused(problem: Spec) -> InfeasiblePlanError:
    with pytest.raises(InfeasiblePlanError) as caught:
        plan(problem)
    assert caught.value.stable_code == "plan.infeasible"
    return caught.value


def test_more_nodes_than_layers() -> None:
    problem = spec(3, DeviceType("a", 5, 1))
    error = refused(problem)
    assert "5 nodes each need a stage" in error.message
    assert [fault.code for fault in error.faults] == ["allow_idle", "fewer_nodes"]
    assert plan(replace(problem, allow_idle=True), compare=False).template


def test_nodes_that_cannot_be_used_up() -> None:
    # Three devices make two stages, seven make three.
    error = refused(spec(2, DeviceType("a", 1, 7)))
    assert "too few layers" in error.message


def test_too_little_memory_names_the_memory_that_would_suffice() -> None:
    devices = (DeviceType("a", 1, 1, memory_bytes=500 * MIB), DeviceType("b", 1, 1))
    error = refused(spec(4, *devices))
    assert error.message == "no template fits the memory"
    change = next(fault for fault in error.faults if fault.column == "devices[0].memory_bytes")
    assert change.code == "more_memory"
    # The last stage with one layer: 600 MiB of weights and one microbatch in flight.
    enough = replace(devices[0], memory_bytes=611 * MIB)
    assert plan(spec(4, enough, devices[1]), compare=False).template
    assert "0.60 GiB" in change.message


def test_memory_on_several_types_needs_more_on_all_of_them() -> None:
    devices = tuple(DeviceType(name, 1, 1, memory_bytes=500 * MIB) for name in "ab")
    error = refused(spec(4, *devices))
    assert [fault.column for fault in error.faults] == ["devices"]
    scale = float(error.faults[0].message.split()[1])
    roomy = tuple(replace(d, memory_bytes=500 * MIB * (scale + 0.01)) for d in devices)
    assert plan(spec(4, *roomy), compare=False).template
    tight = tuple(replace(d, memory_bytes=500 * MIB * scale * 0.97) for d in devices)
    refused(spec(4, *tight))
