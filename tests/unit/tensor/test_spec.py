"""Specifications of `paceline mitigate`: accepted ones, and every fault with its path."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.analysis.json_text import plain
from app.analysis.mitigation.tensor.advice import Problem, advise
from app.analysis.mitigation.tensor.document import Method
from app.analysis.mitigation.tensor.prediction import Kind
from app.errors import Fault, InvalidTensorError
from app.tensor.measured import read_text
from app.tensor.spec import parse_problem

BASE: dict[str, Any] = {
    "times_s": [8.0, 1.0, 1.0, 1.0],
    "matmul_s": [7.0, 0.8, 0.8, 0.8],
    "columns": 1024,
    "unit": 64,
    "accuracy_budget": 0.5,
    "methods": ["zero", "semi"],
    "costs": {"communicate": [[256, 0.5], [512, 0.9]], "compute": [[64, 0.1]]},
    "sizes": {"kind": "hidden_unit", "width": 512, "tokens": 2048, "layers": 4},
    "plan_in_force": {"ranks": [{"rank": 0, "resized_columns": 256, "to": {"2": 128}}]},
}


def changed(**changes: object) -> dict[str, Any]:
    return {**copy.deepcopy(BASE), **changes}


def faults(document: object) -> list[tuple[str | None, str]]:
    with pytest.raises(InvalidTensorError) as caught:
        parse_problem(document)
    assert caught.value.stable_code == "tensor.invalid"
    assert caught.value.message
    return [(fault.column, fault.code) for fault in caught.value.faults]


def test_a_specification_is_read_and_freed_of_its_plan() -> None:
    problem = parse_problem(BASE)
    group = problem.group
    # 640 of 1,024 columns took 7 s; rank 2 computed 128 columns in addition to its own.
    assert group.matmul_s.tolist() == pytest.approx([11.2, 0.8, 0.8 / 1.125, 0.8])
    assert group.time_s.tolist() == pytest.approx([12.2, 1.0, 0.2 + 0.8 / 1.125, 1.0])
    assert (group.units, problem.accuracy_budget) == (16, 0.5)
    assert problem.methods == {Method.NONE, Method.ZERO, Method.SEMI}
    assert problem.costs is not None
    assert problem.costs.communicate(512) == pytest.approx(0.9)
    (sizes,) = problem.sizes
    assert (sizes.kind, sizes.value_bytes) == (Kind.HIDDEN_UNIT, 2)


def test_times_and_columns_are_enough() -> None:
    problem = parse_problem({"times_s": [2, 1], "matmul_s": [2, 1], "columns": 8})
    assert problem.accuracy_budget == 0.25
    assert problem.costs is None
    assert problem.methods == set(Method)


def test_samples_of_communication_may_have_several_senders() -> None:
    costs = {"communicate": [[256, 0.5], [512, 0.9, 1], [512, 1.3, 2]]}
    problem = parse_problem(changed(costs=costs))
    assert problem.costs is not None
    communicate = problem.costs.communicate
    assert [communicate(512, senders) for senders in (1, 2, 3)] == pytest.approx([0.9, 1.3, 1.7])


@pytest.mark.parametrize("method", [Method.SEMI, Method.STICKY, Method.NONE])
def test_an_alternative_of_an_answer_is_a_plan_in_force(method: Method) -> None:
    group = {key: BASE[key] for key in ("times_s", "matmul_s", "columns", "unit")}
    document = advise(parse_problem(group))
    item = next(item for item in document.alternatives if item.method is method)
    fixed = np.array(BASE["times_s"]) - np.array(BASE["matmul_s"])
    times = [rank.predicted_time_s for rank in item.ranks]

    again = advise(
        parse_problem(
            group
            | {
                "times_s": times,
                "matmul_s": (np.array(times) - fixed).tolist(),
                "plan_in_force": plain(item),
            }
        )
    )
    assert again.slowest_time_s == pytest.approx(8.0)
    assert again.chosen is document.chosen


@pytest.mark.parametrize(
    ("document", "found"),
    [
        pytest.param([], [("", "bad_type")], id="no mapping"),
        pytest.param(
            {},
            [("times_s", "missing"), ("matmul_s", "missing"), ("columns", "missing")],
            id="nothing",
        ),
        pytest.param(
            changed(times_s=[8.0, float("nan"), 1.0, float("inf")]),
            [("times_s[1]", "not_finite"), ("times_s[3]", "not_finite")],
            id="NaN and infinity",
        ),
        pytest.param(
            changed(times_s=[8.0, -1.0, 1.0, "x"]),
            [("times_s[1]", "out_of_range"), ("times_s[3]", "bad_type")],
            id="negative, and no number",
        ),
        pytest.param(
            changed(times_s=[1.0], matmul_s=[1.0]),
            [("times_s", "bad_length"), ("matmul_s", "bad_length")],
            id="a group of one",
        ),
        pytest.param(
            changed(matmul_s=[7.0, 0.8]), [("matmul_s", "bad_length")], id="ranks that differ"
        ),
        pytest.param(
            changed(matmul_s=[7.0, 0.8, 1.1, 0.8]),
            [("matmul_s[2]", "conflict")],
            id="a part over the whole",
        ),
        pytest.param(
            changed(matmul_s=[7.0, 1e-8, 0.8, 0.8]),
            [("matmul_s[1]", "out_of_range")],
            id="no multiplications to shed",
        ),
        pytest.param(changed(unit=100), [("unit", "conflict")], id="half a head"),
        pytest.param(
            changed(accuracy_budget=1.5, colums=3),
            [("accuracy_budget", "out_of_range"), ("colums", "unknown_key")],
            id="too large a budget, and a slip",
        ),
        pytest.param(
            changed(methods=["zero", "magic", 3]),
            [("methods[1]", "unknown_value"), ("methods[2]", "bad_type")],
            id="methods that there are not",
        ),
        pytest.param(
            changed(costs={"communicate": [[1, 0.5, 0], [1, 0.5, 1, 1]]}),
            [("costs.communicate[0][2]", "out_of_range"), ("costs.communicate[1]", "bad_length")],
            id="samples of communication",
        ),
        pytest.param(
            changed(costs={"communicate": [], "extract": [[1]], "allocate": [[1, -1]]}),
            [
                ("costs.communicate", "bad_length"),
                ("costs.allocate[0][1]", "out_of_range"),
                ("costs.extract[0][1]", "missing"),
            ],
            id="samples",
        ),
        pytest.param(
            changed(sizes={"kind": "row", "width": 0, "tokens": 8, "plans": "never"}),
            [
                ("sizes.width", "out_of_range"),
                ("sizes.plans", "unknown_value"),
            ],
            id="sizes",
        ),
        pytest.param(
            changed(sizes={"kind": "row", "width": 9, "tokens": 8, "units": 2048}),
            [("sizes.units", "conflict")],
            id="more units than columns",
        ),
        pytest.param(
            changed(
                sizes=[
                    {"kind": "row", "width": 9, "tokens": 8, "units": 8},
                    {"kind": "row", "width": 9, "tokens": 8, "units": 1025},
                ]
            ),
            [("sizes[1].units", "conflict")],
            id="more units in one kind of layers",
        ),
        pytest.param(changed(sizes=[]), [("sizes", "bad_length")], id="sizes of nothing"),
    ],
)
def test_every_fault_has_its_path(document: object, found: list[tuple[str, str]]) -> None:
    assert [(column or "", code) for column, code in faults(document)] == found


@pytest.mark.parametrize(
    ("ranks", "path", "code"),
    [
        pytest.param([{"rank": 4}], "[0].rank", "unknown_rank", id="a rank beyond the group"),
        pytest.param([{"rank": 1}, {"rank": 1}], "[1].rank", "duplicate", id="twice"),
        pytest.param(
            [{"rank": 0, "to": {"9": 64}}], "[0].to.9", "unknown_rank", id="to a rank beyond"
        ),
        pytest.param([{"rank": 0, "to": {"0": 64}}], "[0].to.0", "conflict", id="to itself"),
        pytest.param(
            [{"rank": 0, "to": {"1": 64}, "migrated_columns": 128}],
            "[0].migrated_columns",
            "conflict",
            id="a sum that is none",
        ),
        pytest.param(
            [{"rank": 0, "resized_columns": 1024}], "[0]", "conflict", id="nothing is left"
        ),
        pytest.param([{"rank": 0, "resized_columns": 65}], "[0]", "conflict", id="a head in parts"),
        pytest.param(
            [{"rank": 0, "to": {"1": 64}}, {"rank": 1, "received_columns": 0}],
            "[1].received_columns",
            "conflict",
            id="received is not what was handed over",
        ),
        pytest.param(
            [{"rank": 0, "resized_columns": 64, "gamma": 0.5}], "[0].gamma", "conflict", id="γ"
        ),
    ],
)
def test_a_plan_in_force_that_contradicts_the_group(
    ranks: list[object], path: str, code: str
) -> None:
    found = faults(changed(plan_in_force={"ranks": ranks}))
    assert found == [(f"plan_in_force.ranks{path}", code)]


def test_json_knows_no_nan() -> None:
    with pytest.raises(InvalidTensorError) as caught:
        read_text('{"times_s": [NaN]}', "spec.json")
    assert caught.value.stable_code == "tensor.malformed"


def test_a_fault_of_yaml_has_its_line() -> None:
    with pytest.raises(InvalidTensorError) as caught:
        read_text("times_s: [1, 2]\ncolumns: [\n", "spec.yaml")
    assert caught.value.faults[0].line == 3


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(["", "0", "zero"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(st.sampled_from(sorted(BASE)), VALUES)
def test_any_value_anywhere_is_a_problem_or_faults(key: str, value: object) -> None:
    problem: Problem | None = None
    found: tuple[Fault, ...] = ()
    try:
        problem = parse_problem(changed(**{key: value}))
    except InvalidTensorError as error:
        found = error.faults
    assert (problem is None) == bool(found)
    if problem is not None:
        assert advise(problem).best.within_budget
