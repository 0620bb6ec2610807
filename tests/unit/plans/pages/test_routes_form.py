"""The form of a plan: its example, its explanations and its table of devices."""

from __future__ import annotations

import pytest

from app.analysis.planning.plan import plan
from app.analysis.planning.spec import METHODS, OBJECTIVES, Spec
from app.plans.pages.routes import (
    DEVICE_COLUMNS,
    EMPTY_FORM,
    EXAMPLE,
    METHOD_NOTES,
    OBJECTIVE_NAMES,
    OBJECTIVE_NOTES,
)
from app.plans.specs.spec import load_spec, parse_spec, read_request


@pytest.mark.parametrize("method", METHODS)
def test_every_method_has_an_answer_to_the_example(method: str) -> None:
    found = plan(parse_spec(load_spec(EXAMPLE)), method=method)
    assert found.template
    assert found.reasons == {}


def test_the_example_is_planned_as_the_form_asks() -> None:
    request = read_request(
        {"spec": EXAMPLE, "method": EMPTY_FORM.method, "objective": EMPTY_FORM.objective}
    )
    assert isinstance(request.spec, Spec)
    found = plan(request.spec, method=request.method, objective=request.objective)
    assert found.optimal


def test_the_table_begins_with_the_devices_of_the_example() -> None:
    rows = [tuple(row.values()) for row in EMPTY_FORM.devices]
    assert rows == [("V100", "2", "4", "", ""), ("A100", "2", "4", "", "")]
    assert list(EMPTY_FORM.devices[0]) == list(DEVICE_COLUMNS)


def test_every_choice_is_explained() -> None:
    assert tuple(METHOD_NOTES) == METHODS
    assert tuple(OBJECTIVE_NAMES) == tuple(OBJECTIVE_NOTES) == OBJECTIVES
