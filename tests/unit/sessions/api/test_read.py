"""The report's JSON Schema."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from app.analysis.json_text import to_json
from app.analysis.report.document import Report
from app.sessions.api.read import reference, report_schemas
from tests.support import reports


def faults(document: Any) -> list[str]:  # noqa: ANN401 - any document
    schema = reference() | {"components": {"schemas": report_schemas()}}
    jsonschema.Draft202012Validator.check_schema(schema)
    found = jsonschema.Draft202012Validator(schema).iter_errors(document)
    return [f"{error.json_path}: {error.message}" for error in found]


def document(report: Report) -> dict[str, Any]:
    read: dict[str, Any] = json.loads(to_json(report))
    return read


@pytest.mark.parametrize(
    "scenario",
    [
        "slow-worker",
        "stage-imbalance",
        "sequence-lengths",
        "garbage-collection",
        "memory-fragmentation",
        "kernel-dependency",
        "network",
        "data-loading",
        "tensor-parallel",
        "healthy",
    ],
)
def test_every_report_fits(scenario: str) -> None:
    assert faults(document(reports.scenario(scenario))) == []


def test_a_document_that_is_no_report_does_not_fit() -> None:
    report = document(reports.slow_worker())
    assert faults(report | {"slowdown": "much"})
    assert faults({key: value for key, value in report.items() if key != "causes"})
    figure = report["causes"][0]["figure"] | {"kind": "stalls"}
    assert faults(report | {"causes": [report["causes"][0] | {"figure": figure}]})


def test_keys_are_described_with_the_words_of_the_types() -> None:
    schemas = report_schemas()
    assert schemas["Report"]["properties"]["waste"]["description"].startswith("Share of the step")
    assert schemas["Report.LinkView"]["properties"]["from"]["description"]
