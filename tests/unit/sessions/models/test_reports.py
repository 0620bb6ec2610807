"""Stored reports of this version and of other versions."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from app.analysis.json_text import to_json
from app.analysis.report.document import OLDEST_REVISION, REVISION
from app.errors import UnknownDocumentError
from app.sessions.models.reports import open_report
from tests.support import reports


@pytest.mark.parametrize(
    "scenario",
    ["slow-worker", "network", "garbage-collection", "sequence-lengths", "tensor-parallel"],
)
def test_a_stored_report_is_read_unchanged(scenario: str) -> None:
    report = reports.scenario(scenario)
    assert open_report(to_json(report, compact=True).encode()) == report


@pytest.mark.parametrize(
    "later",
    [{"revision": REVISION + 1}, {"schema": "paceline.report/2"}],
    ids=["revision", "schema"],
)
def test_a_report_of_a_later_version_is_refused_with_a_code(later: dict[str, Any]) -> None:
    text = json.dumps({"schema": "paceline.report/1", "revision": REVISION} | later).encode()
    with pytest.raises(UnknownDocumentError, match="A later one stored it") as caught:
        open_report(text)
    assert caught.value.stable_code == "report.unknown_version"


def test_a_report_of_an_older_revision_is_upgraded() -> None:
    report = replace(reports.scenario("slow-worker"), arrivals=None, breakdown=None)
    text = to_json(replace(report, revision=OLDEST_REVISION)).encode()
    assert open_report(text) == report
    assert report.revision == REVISION
