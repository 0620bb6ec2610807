"""Operation names of recorders."""

from __future__ import annotations

from typing import Any

import pytest

from app.analysis.trace.decode import decode
from app.analysis.trace.model import KNOWN_OP_TYPES, Trace
from app.errors import InvalidTraceError
from tests.unit.analysis.trace import bodies
from tests.unit.analysis.trace.bodies import LIMITS, META


def operation(op: str, start: int, **changes: object) -> dict[str, Any]:
    base = {"rank": 0, "dp": 0, "pp": 0, "step": 1, "mb": -1, "mc": -1, "dur_ns": 5}
    return {**base, "op": op, "start_ns": start, **changes}


def decoded(*operations: dict[str, Any]) -> Trace:
    return bodies.decoded(bodies.parquet(bodies.native_table(operations)))


@pytest.mark.parametrize(
    ("recorded", "ours"),
    [
        ("unshard-all-gather", "params-all-gather"),
        ("grad-reduce-scatter", "grads-reduce-scatter"),
        ("grad-all-reduce", "grads-reduce-scatter"),
        ("tp-allgather", "tp-all-gather"),
        ("tp-reducescatter", "tp-reduce-scatter"),
        ("tp-allreduce", "tp-all-reduce"),
        ("grads-reduce-scatter-nonoverlapping", "grads-reduce-scatter"),
        ("params-all-gather-nonoverlapping", "params-all-gather"),
        ("unshard-all-gather-nonoverlapping", "params-all-gather"),
    ],
)
def test_aliases_get_the_published_name(recorded: str, ours: str) -> None:
    trace = decoded(operation(recorded, 3))
    assert bodies.names_of(trace) == [ours]
    assert trace.op_names == KNOWN_OP_TYPES


def test_unknown_names_are_kept() -> None:
    trace = decoded(operation("checkpoint-save", 3), operation("gc", 4), operation("Ω", 5))
    assert bodies.names_of(trace) == ["checkpoint-save", "gc", "Ω"]
    assert trace.op_names == (*KNOWN_OP_TYPES, "checkpoint-save", "Ω")


def test_two_names_of_one_type_are_ordered_together() -> None:
    columns = {name: values[:4] for name, values in bodies.published_columns().items()}
    columns |= {
        "optype": ["grads-reduce-scatter", "grad-all-reduce"] * 2,
        "seq_id": [0, 0, 1, 1],
        "start_ts": [0.0, 2.0, 1.0, 3.0],
        "mb_id": [-1] * 4,
    }
    trace = bodies.decoded(bodies.parquet(bodies.published_table(**columns)))
    assert bodies.names_of(trace) == ["grads-reduce-scatter"] * 4
    assert trace.order.tolist() == [0, 2, 1, 3]


def test_a_fused_transfer_becomes_its_two_halves() -> None:
    trace = decoded(
        operation("forward-send", 1, mb=0, mc=0),
        operation("forward-send-backward-recv", 10, mb=1, mc=0, dur_ns=7),
        operation("backward-send-forward-recv", 20),
        operation("gc", 30),
    )
    assert bodies.names_of(trace) == [
        "forward-send",
        "forward-send",
        "backward-recv",
        "backward-send",
        "forward-recv",
        "gc",
    ]
    assert trace.start_ns.tolist() == [1, 10, 10, 20, 20, 30]
    assert trace.duration_ns.tolist() == [5, 7, 7, 5, 5, 5]
    assert trace.mb.tolist() == [0, -1, -1, -1, -1, -1]
    assert trace.order.tolist() == [0, 1, 0, 0, 0, 0]
    assert trace.op_names == KNOWN_OP_TYPES


def test_a_transfer_of_four_becomes_four() -> None:
    trace = decoded(operation("forward-backward-send-forward-backward-recv", 10))
    assert sorted(bodies.names_of(trace)) == [
        "backward-recv",
        "backward-send",
        "forward-recv",
        "forward-send",
    ]


def test_faults_behind_a_split_name_the_row_of_the_body() -> None:
    made = [
        operation("forward-send-backward-recv", 1),
        operation("forward-compute", 2, mb=0),
        operation("gc", 2),
        operation("forward-compute", 3, mb=0),
    ]
    with pytest.raises(InvalidTraceError) as caught:
        decode(bodies.parquet(bodies.native_table(made)), META, limits=LIMITS)
    assert caught.value.stable_code == "trace.duplicate_operation"
    assert caught.value.faults[0].row == 3


def test_cross_mesh_transfers_get_the_direction_of_the_computation_next_to_them() -> None:
    trace = decoded(
        operation("cross-mesh-recv", 1),
        operation("forward-compute", 10, mb=0),
        operation("cross-mesh-send", 20),
        operation("cross-mesh-recv", 30),
        operation("backward-compute", 40, mb=0),
        operation("cross-mesh-send", 50),
    )
    assert bodies.names_of(trace) == [
        "forward-recv",
        "forward-compute",
        "forward-send",
        "backward-recv",
        "backward-compute",
        "backward-send",
    ]
    assert trace.op_names == KNOWN_OP_TYPES


def test_a_cross_mesh_transfer_next_to_no_computation_stays_unknown() -> None:
    trace = decoded(
        operation("cross-mesh-send", 1),
        operation("forward-compute", 10, mb=0),
        operation("cross-mesh-recv", 20),
        operation("forward-compute", 30, mb=0, step=2),
        operation("cross-mesh-recv", 5, rank=1),
    )
    assert bodies.names_of(trace) == [
        "cross-mesh-send",
        "forward-compute",
        "cross-mesh-recv",
        "forward-compute",
        "cross-mesh-recv",
    ]
