"""The fields of a plan in words."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from app.analysis.json_text import json_name
from app.analysis.planning.document import ComparedTemplate, PlanDocument, PlannedStage
from app.analysis.planning.reference import REFERENCE
from app.analysis.reference import members

PAGE = Path(__file__).parents[4] / "docs" / "plan.md"


def test_the_page_of_the_docs_is_the_one_that_the_types_make() -> None:
    assert PAGE.read_text(encoding="utf-8") == REFERENCE.page(), "make report-docs"


@pytest.mark.parametrize("kind", REFERENCE.types(), ids=lambda kind: kind.__name__)
def test_every_field_has_a_meaning(kind: type) -> None:
    found = members(kind)
    assert [member.key for member in found] == [json_name(item.name) for item in fields(kind)]
    assert all(member.kind and member.text for member in found)


def test_every_name_stands_for_one_type() -> None:
    names = [kind.__name__ for kind in REFERENCE.types()]
    assert names[0] == PlanDocument.__name__
    assert len(set(names)) == len(names)


def test_inherited_fields_are_described_where_they_are_declared() -> None:
    assert {"stages", "relative"} <= {member.key for member in members(ComparedTemplate)}


def test_keys_that_may_be_missing_are_marked() -> None:
    assert [member.key for member in members(PlannedStage) if member.optional] == ["replicas"]
