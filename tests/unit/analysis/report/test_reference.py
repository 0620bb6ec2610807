"""The fields of a report in words."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from app.analysis.json_text import json_name
from app.analysis.reference import members
from app.analysis.report.coverage import Coverage
from app.analysis.report.document import Report
from app.analysis.report.measures import WorkersRecovery
from app.analysis.report.reference import REFERENCE

PAGE = Path(__file__).parents[4] / "docs" / "report.md"


def test_the_page_of_the_docs_is_the_one_that_the_types_make() -> None:
    assert PAGE.read_text(encoding="utf-8") == REFERENCE.page(), "make report-docs"


@pytest.mark.parametrize("kind", REFERENCE.types(), ids=lambda kind: kind.__name__)
def test_every_field_has_a_meaning(kind: type) -> None:
    found = members(kind)
    assert [member.key for member in found] == [json_name(item.name) for item in fields(kind)]
    assert all(member.kind and member.text for member in found)


def test_every_name_stands_for_one_type() -> None:
    names = [kind.__name__ for kind in REFERENCE.types()]
    assert names[0] == Report.__name__
    assert len(set(names)) == len(names)


def test_inherited_fields_are_described_where_they_are_declared() -> None:
    assert {"rem", "workers"} <= {member.key for member in members(WorkersRecovery)}


def test_keys_that_may_be_missing_are_marked() -> None:
    assert [member.key for member in members(Coverage) if member.optional] == ["chunks"]
