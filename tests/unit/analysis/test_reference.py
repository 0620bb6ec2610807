"""The reference of the stored documents' fields."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from app.analysis.json_text import json_name
from app.analysis.mitigation.tensor.document import MitigationDocument
from app.analysis.planning.document import ComparedTemplate, PlanDocument, PlannedStage
from app.analysis.reference import Reference, members
from app.analysis.report.coverage import Coverage
from app.analysis.report.document import Report, WorkersRecovery
from scripts.docs_site import REFERENCES, on_page_markdown

if TYPE_CHECKING:
    from mkdocs.structure.pages import Page

DOCS = Path(__file__).parents[3] / "docs"
DOCUMENTS = {"plan.md": PlanDocument, "report.md": Report, "mitigation.md": MitigationDocument}
TYPES = [kind for reference in REFERENCES.values() for kind in reference.types()]


def test_each_stored_document_has_a_page() -> None:
    assert {page: reference.types()[0] for page, reference in REFERENCES.items()} == DOCUMENTS


@pytest.mark.parametrize(("name", "reference"), REFERENCES.items(), ids=REFERENCES)
def test_the_page_of_the_site_has_every_type_after_the_words_of_its_file(
    name: str, reference: Reference
) -> None:
    text = (DOCS / name).read_text(encoding="utf-8")
    page = on_page_markdown(text, cast("Page", SimpleNamespace(file=SimpleNamespace(src_uri=name))))
    words, _, tables = page.partition("## ")

    assert text.startswith(words.rstrip())
    assert text[len(words.rstrip()) :].strip().startswith("Every field is on this page")
    headings = re.findall(r"^## (\w+)$", f"## {tables}", re.MULTILINE)
    assert headings == [kind.__name__ for kind in reference.types()]
    for member in (member for kind in reference.types() for member in members(kind)):
        assert f"`{member.key}`" in tables, member.key


@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.__name__)
def test_every_field_has_a_meaning(kind: type) -> None:
    found = members(kind)
    assert [member.key for member in found] == [json_name(item.name) for item in fields(kind)]
    assert all(member.kind and member.text for member in found)


@pytest.mark.parametrize("reference", REFERENCES.values(), ids=REFERENCES)
def test_every_name_stands_for_one_type(reference: Reference) -> None:
    names = [kind.__name__ for kind in reference.types()]
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
