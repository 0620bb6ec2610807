"""The fields of stored documents in words."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from app.analysis.json_text import json_name
from app.analysis.mitigation.tensor.document import MitigationDocument
from app.analysis.mitigation.tensor.reference import REFERENCE as MITIGATION
from app.analysis.planning.document import ComparedTemplate, PlanDocument, PlannedStage
from app.analysis.planning.reference import REFERENCE as PLAN
from app.analysis.reference import Reference, members
from app.analysis.report.coverage import Coverage
from app.analysis.report.document import Report, WorkersRecovery
from app.analysis.report.reference import REFERENCE as REPORT

DOCS = Path(__file__).parents[3] / "docs"
DOCUMENTS = [
    pytest.param(PLAN, PlanDocument, "plan.md", id="plan"),
    pytest.param(REPORT, Report, "report.md", id="report"),
    pytest.param(MITIGATION, MitigationDocument, "mitigation.md", id="mitigation"),
]


@pytest.mark.parametrize(("reference", "root", "page"), DOCUMENTS)
def test_the_page_of_the_docs_is_the_one_that_the_types_make(
    reference: Reference, root: type, page: str
) -> None:
    assert root in reference.types()
    assert (DOCS / page).read_text(encoding="utf-8") == reference.page(), "make report-docs"


@pytest.mark.parametrize(
    "kind", PLAN.types() + REPORT.types() + MITIGATION.types(), ids=lambda kind: kind.__name__
)
def test_every_field_has_a_meaning(kind: type) -> None:
    found = members(kind)
    assert [member.key for member in found] == [json_name(item.name) for item in fields(kind)]
    assert all(member.kind and member.text for member in found)


@pytest.mark.parametrize(("reference", "root", "page"), DOCUMENTS)
def test_every_name_stands_for_one_type(reference: Reference, root: type, page: str) -> None:
    names = [kind.__name__ for kind in reference.types()]
    assert names[0] == root.__name__, page
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    ("kind", "inherited"),
    [(ComparedTemplate, {"stages", "relative"}), (WorkersRecovery, {"rem", "workers"})],
)
def test_inherited_fields_are_described_where_they_are_declared(
    kind: type, inherited: set[str]
) -> None:
    assert inherited <= {member.key for member in members(kind)}


@pytest.mark.parametrize(
    ("kind", "keys"),
    [
        (PlannedStage, ["replicas"]),
        (Coverage, ["chunks", "copies", "impossible_durations", "missing", "unmapped"]),
    ],
)
def test_keys_that_may_be_missing_are_marked(kind: type, keys: list[str]) -> None:
    assert [member.key for member in members(kind) if member.optional] == keys
