"""Any document is either a valid specification, or refused with its faults."""

from __future__ import annotations

import copy
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from app.analysis.planning.spec import Spec
from app.errors import Fault, InvalidSpecError
from app.plans.specs.spec import parse_spec

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.floats()
    | st.sampled_from(["", "1e9", "A100", "paper", "x" * 200, "\x00"])
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4)
    ),
    max_leaves=10,
)
BASE: dict[str, Any] = {
    "model": {"layers": [{"forward_ms": 1.0}, {"forward_ms": 2.0}]},
    "profiled_on": {"type": "a", "speed": 1.0},
    "devices": [{"type": "a", "nodes": 1, "gpus_per_node": 2, "memory_bytes": 1e9}],
    "microbatches": 4,
    "network": {"allreduce_in_node_ms": {"*": {2: 1.0}}, "allreduce_across_ms": 1.0},
}
OTHERS: list[dict[str, Any]] = [
    {"profile": [{"forward": 1.0, "mem_required": [1.0, 2.0]}, {"forward": 1.0}]},
    {
        "transformer": {
            "layers": 2, "hidden": 64, "heads": 4, "vocabulary": 100, "sequence": 16,
            "microbatch": 1, "measured": [{"type": "a", "layer": 1, "forward_ms": 1.0}],
        }
    },
]  # fmt: skip


def places(value: Any, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:  # noqa: ANN401 - JSON
    items: list[tuple[Any, Any]] = []
    if isinstance(value, dict):
        items = list(value.items())
    elif isinstance(value, list):
        items = list(enumerate(value))
    return [path, *(place for key, item in items for place in places(item, (*path, key)))]


@given(st.data(), st.sampled_from([BASE["model"], *OTHERS]), VALUES)
def test_a_value_anywhere(data: st.DataObject, model: dict[str, Any], value: object) -> None:
    document: Any = copy.deepcopy({**BASE, "model": model})
    path = data.draw(st.sampled_from(places(document)))
    if path:
        place = document
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = value
    else:
        document = value
    found: Spec | None = None
    faults: tuple[Fault, ...] = ()
    try:
        found = parse_spec(document)
    except InvalidSpecError as error:
        faults = error.faults
    assert (found is None) == bool(faults)
    assert all(fault.code and fault.column is not None for fault in faults)
