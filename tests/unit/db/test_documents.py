"""Stored reports: those of today, those that version 0.1.0 wrote, and later ones."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.analysis.json_text import to_json
from app.analysis.report.document import REVISION
from app.dashboard.session.report import report_view
from app.db.documents import UPGRADES, current_report, open_report
from app.errors import UnknownDocumentError
from tests.support import reports

# What version 0.1.0 stored of a slow worker with a template, a slow link, and late batches, which
# withhold the verdict.
OLD = gzip.decompress((Path(__file__).parent / "reports-0.1.0.jsonl.gz").read_bytes()).splitlines()


@pytest.mark.parametrize("text", OLD, ids=["slow-worker", "network", "data-loading"])
def test_a_report_of_0_1_0_opens_with_what_came_later(text: bytes) -> None:
    old = json.loads(text)
    report = open_report(text)
    assert report.job == "llm-70b"
    assert report_view(report).causes
    assert report.fidelity.adaptations == ()
    # Nothing but another analysis tells how sure the headline is.
    assert report.headline.ci95 is None
    assert report.headline.slowdown == report.diagnosis.slowdown
    now = json.loads(current_report(text))
    assert now.pop("revision") == REVISION
    del now["headline"], now["fidelity"]["adaptations"]
    said, before = now.pop("verdict"), old.pop("verdict")
    assert now == old
    assert said["level"] == before["level"]
    if before["level"] == "slow":
        why = before["sentence"].partition(" because ")[2]
        assert why
        slow = f"{report.headline.slowdown:.2f}×"
        assert said["sentence"] == f"{slow} slower than without its cause: {why}"
    else:
        assert said == before


def test_what_this_version_stored_goes_out_as_it_is() -> None:
    text = to_json(reports.scenario("slow-worker"), compact=True).encode()
    assert current_report(text) is text


@pytest.mark.parametrize(
    "scenario",
    ["slow-worker", "network", "garbage-collection", "sequence-lengths", "tensor-parallel"],
)
def test_what_is_stored_is_read_as_it_was(scenario: str) -> None:
    report = reports.scenario(scenario)
    assert open_report(to_json(report, compact=True).encode()) == report


def test_every_earlier_revision_has_an_upgrade() -> None:
    assert set(UPGRADES) == set(range(1, REVISION))


def test_a_stored_report_is_upgraded_step_by_step() -> None:
    def third(document: dict[str, Any]) -> dict[str, Any]:
        return document | {"waste": document.pop("lost"), "revision": 3}

    first = json.loads(OLD[0])
    first["lost"] = first.pop("waste")
    upgrades = {**UPGRADES, 2: third}
    report = open_report(json.dumps(first).encode(), 3, upgrades)
    assert report == replace(open_report(OLD[0]), revision=3)
    halfway = json.dumps(UPGRADES[1](first)).encode()
    assert open_report(halfway, 3, upgrades) == report


@pytest.mark.parametrize(
    "later",
    [{"revision": REVISION + 1}, {"schema": "paceline.report/2"}],
    ids=["revision", "schema"],
)
def test_a_report_of_a_later_version_is_refused_with_a_code(later: dict[str, Any]) -> None:
    text = json.dumps(json.loads(OLD[0]) | later).encode()
    with pytest.raises(UnknownDocumentError, match="A later one stored it") as caught:
        open_report(text)
    assert caught.value.stable_code == "report.unknown_version"
