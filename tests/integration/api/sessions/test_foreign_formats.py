"""Recordings of other programs over HTTP: whole and in chunks, recognized or named."""

from __future__ import annotations

import gzip
import json
import re
from typing import TYPE_CHECKING

import pytest

from tests.integration.api import chunks
from tests.unit.analysis.trace.recordings import test_megascan, test_ndtimeline
from tests.unit.analysis.trace.recordings.kineto_files import two_stages

if TYPE_CHECKING:
    from tests.integration.api.conftest import Installation

SIZES = {"dp": 2, "pp": 2, "tp": 2}


@pytest.mark.parametrize(
    ("headers", "params"),
    [
        ({}, {}),
        ({"Content-Type": "application/json"}, {}),
        ({"Content-Type": "application/vnd.paceline.kineto+json"}, {}),
        ({"Content-Type": "application/json", "Content-Encoding": "gzip"}, {}),
        ({}, {"format": "kineto"}),
    ],
    ids=["looked at", "json", "named by type", "coded", "named"],
)
def test_a_kineto_file_is_a_session(
    installation: Installation, headers: dict[str, str], params: dict[str, str]
) -> None:
    file = two_stages(0)
    file.add("gloo:broadcast", 5, 10, Process_Group_Description="checkpoint")
    body = gzip.compress(file.body()) if "Content-Encoding" in headers else file.body()
    answer = installation.post(body, params=params, headers=headers)

    assert answer.status_code == 202, answer.text
    assert answer.json()["unmapped"] == [
        {"what": "broadcast of the process group checkpoint", "count": 1, "remedy": None}
    ]
    found = installation.client.get(f"/api/v1/sessions/{answer.json()['session']}").json()
    assert found["trace_format"] == "kineto"


def test_the_ranks_of_a_job_are_chunks_of_one_session(installation: Installation) -> None:
    for rank in range(2):
        answer = installation.client.put(
            chunks.url(1, str(rank), 0), content=two_stages(rank).body(), params={"final": "true"}
        )
        assert answer.status_code == 202, answer.text
    sealed = installation.client.post(f"{chunks.of_session(1)}/seal")
    installation.analyze_all()
    report = installation.client.get(f"/api/v1/sessions/{sealed.json()['session']}/report").json()

    assert report["sizes"]["pp"] == 2
    assert len(report["steps"]["analyzed"]) > 4


def test_the_page_shows_what_was_not_mapped_with_a_report_and_without(
    installation: Installation,
) -> None:
    for number, ranks in enumerate((2, 1), start=1):
        for rank in range(ranks):
            file = two_stages(rank)
            file.add("gloo:all_reduce", 5, 10)
            answer = installation.client.put(
                chunks.url(number, str(rank), 0), content=file.body(), params={"final": "true"}
            )
            assert answer.status_code == 202, answer.text
        sealed = installation.client.post(f"{chunks.of_session(number)}/seal")
        installation.analyze_all()
        session = sealed.json()["session"]
        state = installation.client.get(f"/api/v1/sessions/{session}").json()["state"]
        page = installation.client.get(f"/sessions/{session}").text
        row = re.search(r"Not mapped: collectives [^<]*<span[^>]*>([^<]*).*?num\">(\d+)<", page)

        assert (state == "discarded") == (ranks == 1)
        assert row is not None, page
        assert (row[1].strip()[:11], row[2]) == ("record with", str(ranks))


def test_sizes_that_a_recording_does_not_say_come_next_to_it(installation: Installation) -> None:
    for body, trace_format in (
        (test_ndtimeline.FORMS["records"], "ndtimeline"),
        (json.dumps(test_megascan.own()), "megascan"),
    ):
        refused = installation.post(body.encode(), params={}, headers={})
        assert (refused.status_code, refused.json()["code"]) == (422, "metadata.missing")
        taken = installation.post(body.encode(), params={**SIZES}, headers={})
        assert taken.status_code == 202, taken.text
        session = taken.json()["session"]
        found = installation.client.get(f"/api/v1/sessions/{session}").json()
        assert found["trace_format"] == trace_format


@pytest.mark.parametrize("headers", [{}, {"Content-Type": "application/vnd.sqlite3"}])
def test_a_database_is_answered_with_the_command(
    installation: Installation, headers: dict[str, str]
) -> None:
    answer = installation.post(b"SQLite format 3\0" + bytes(100), params={}, headers=headers)

    assert (answer.status_code, answer.json()["code"]) == (415, "trace.command_line_only")
    assert "paceline convert nsys" in answer.json()["detail"]


def test_a_format_that_there_is_not_is_answered_with_those_that_there_are(
    installation: Installation,
) -> None:
    answer = installation.post(b"{}", params={"format": "perfetto"}, headers={})

    assert (answer.status_code, answer.json()["code"]) == (415, "trace.unknown_format")
    assert "kineto" in answer.json()["detail"]


def test_a_fault_is_answered_with_its_place(installation: Installation) -> None:
    file = two_stages(0)
    file.events.insert(7, '{"ph":"X","cat":"user_annotation","name":"PP:0F9","ts":true,"dur":1}')
    answer = installation.post(file.body(), params={}, headers={})

    assert (answer.status_code, answer.json()["code"]) == (422, "trace.wrong_type")
    assert answer.json()["faults"][0]["row"] == 7
