"""Recordings of other programs over HTTP: whole and in chunks, with and without ``format``."""

from __future__ import annotations

import gzip
import io
import json
import re
import tarfile
from typing import TYPE_CHECKING

import pytest

from tests.integration.api import chunks
from tests.unit.analysis.trace.recordings import (
    test_megascan,
    test_ndtimeline,
    test_otlp,
    test_own_ranges,
)
from tests.unit.analysis.trace.recordings.kineto_files import two_stages
from tests.unit.analysis.trace.recordings.xplane_files import tpu_hosts

if TYPE_CHECKING:
    from collections.abc import Callable

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


@pytest.mark.parametrize("compress", [bytes, gzip.compress])
def test_what_an_exporter_of_opentelemetry_sends_is_a_session(
    installation: Installation, compress: Callable[[bytes], bytes]
) -> None:
    body = compress(b"".join(map(test_otlp.request, test_otlp.TWO_RANKS)))
    headers = {"Content-Type": "application/x-protobuf"}
    if compress is gzip.compress:
        headers["Content-Encoding"] = "gzip"
    answer = installation.post(body, params={}, headers=headers)

    assert answer.status_code == 202, answer.text
    found = installation.client.get(f"/api/v1/sessions/{answer.json()['session']}").json()
    assert found["trace_format"] == "otel"


@pytest.mark.parametrize(("numbered", "steps"), [(True, [11, 21, 31]), (False, [0, 1, 2])])
def test_files_of_one_step_each_are_chunks_of_one_session(
    installation: Installation, *, numbered: bool, steps: list[int]
) -> None:
    for number, step in enumerate((11, 21, 31)):
        for rank in range(2):
            body = two_stages(rank, 1, first=step, numbered=numbered).body()
            final = {"final": "true"} if number == 2 else {}
            answer = installation.client.put(
                chunks.url(1, str(rank), number), content=body, params=final
            )
            assert answer.status_code == 202, answer.text
    installation.analyze_all()
    report = installation.client.get(f"/api/v1/sessions/{answer.json()['session']}/report").json()
    assert report["steps"]["analyzed"] == steps
    assert report["coverage"]["ranks_present"] == 2


def test_a_rank_of_two_producers_is_refused_with_both(installation: Installation) -> None:
    for producer in ("host-1", "host-2"):
        body = two_stages(0, 1, first=11 + (producer == "host-2"), numbered=False).body()
        answer = installation.client.put(
            chunks.url(1, producer, 0), content=body, params={"final": "true"}
        )
    installation.client.post("/api/v1/jobs/job/attempts/1/sessions/1/seal")
    installation.analyze_all()
    found = installation.client.get(f"/api/v1/sessions/{answer.json()['session']}").json()
    assert (found["state"], found["reason_code"]) == ("discarded", "trace.rank_twice")
    assert "chunk host-1/0 and chunk host-2/0 are two recordings of rank 0" in found["reason"]


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
    for number, first in enumerate((10, 30), start=1):
        for rank in range(2):
            # The ranks recorded different steps, so no step is complete.
            file = two_stages(rank, first=first if rank else 10)
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

        assert (state == "discarded") == (first == 30)
        assert row is not None, page
        assert (row[1].strip()[:11], row[2]) == ("record with", "2")


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


def test_many_faults_are_answered_with_the_place_of_the_first(installation: Installation) -> None:
    file = two_stages(0)
    event = '{"ph":"X","cat":"user_annotation","name":"PP:0F9","ts":true,"dur":1}'
    file.events[7:7] = [event] * len(file.events)
    answer = installation.post(file.body(), params={}, headers={})

    assert (answer.status_code, answer.json()["code"]) == (422, "trace.wrong_type")
    assert answer.json()["faults"][0]["row"] == 7


def test_a_run_of_xprof_tells_who_comes_last(installation: Installation) -> None:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:gz") as tar:
        for number, host in enumerate(tpu_hosts()):
            for suffix, body in (("xplane.pb", host.body()), ("trace.json.gz", host.trace_json())):
                member = tarfile.TarInfo(f"plugins/profile/run/host-{number}.{suffix}")
                member.size = len(body)
                tar.addfile(member, io.BytesIO(body))
    answer = installation.post(archive.getvalue(), params={})
    assert answer.status_code == 202, answer.text
    assert [one["name"] for one in answer.json()["not_read"]] == [
        f"plugins/profile/run/host-{number}.trace.json.gz" for number in range(2)
    ]
    installation.analyze_all()
    report = installation.client.get(f"/api/v1/sessions/{answer.json()['session']}/report").json()
    assert not report["fidelity"]["replayed"]
    assert report["sizes"]["dp"] == 8
    assert report["verdict"]["sentence"].startswith("Rank 5 comes last")
    page = installation.client.get(f"/sessions/{answer.json()['session']}")
    assert page.status_code == 200
    assert "Rank 5 comes last" in page.text

    alone = tpu_hosts(hosts=1, slow=1)[0].body()
    headers = {"Content-Type": "application/x-protobuf"}
    answer = installation.post(alone, params={}, headers=headers)
    assert answer.status_code == 202, answer.text


Parts = dict[str, tuple[str | None, str | bytes]]
LABELS = r"""
'(attn|mlp)\(F\) mb(?P<mb>\d+)': forward-compute
'(attn|mlp)\(B\) mb(?P<mb>\d+)': backward-compute
'(dispatch|combine)\([FB]\).*': ep-all-to-all
"""


@pytest.mark.parametrize("form", ["part", "query"])
def test_labels_say_what_ranges_of_the_jobs_own_are(installation: Installation, form: str) -> None:
    address = "/api/v1/jobs/labelled/sessions"
    body = test_own_ranges.layered().body()
    if form == "part":
        parts: Parts = {
            "meta": (None, "dp: 4\npp: 1"),
            "labels": (None, LABELS),
            "trace": ("t", body),
        }
        answer = installation.client.post(address, files=parts)
        again = installation.client.post(address, files=parts)
        other = installation.client.post(
            address, files={**parts, "labels": (None, LABELS.replace("dispatch|", ""))}
        )
    else:
        params = {"dp": "4", "pp": "1", "labels": LABELS}
        answer = installation.client.post(address, content=body, params=params)
        again = installation.client.post(address, content=body, params=params)
        params["labels"] = LABELS.replace("dispatch|", "")
        other = installation.client.post(address, content=body, params=params)

    assert answer.status_code == 202, answer.text
    session = answer.json()["session"]
    found = installation.client.get(f"/api/v1/sessions/{session}").json()
    assert found["operations"] == 42
    # The same body with the same labels is the same session.
    assert (again.status_code, again.json()["session"]) == (200, session)
    assert other.status_code == 202
    assert other.json()["session"] != session


def test_labels_of_a_chunk_are_those_of_its_ranges(installation: Installation) -> None:
    parts: Parts = {
        "meta": (None, "dp: 4\npp: 1"),
        "labels": (None, LABELS + "'head': gc\n"),
        "trace": ("rank2.json", test_own_ranges.layered().body()),
    }
    answer = installation.client.put(chunks.url(1, "2", 0), files=parts)
    assert answer.status_code == 202, answer.text
    assert "'head' (line 5)" in answer.json()["unmapped"][0]["what"]


def test_labels_that_cannot_be_used_are_refused_with_their_line(installation: Installation) -> None:
    body = test_own_ranges.layered().body()
    params = {"labels": "'attn(F': fwd", "dp": "4", "pp": "1"}
    answer = installation.post(body, params=params)
    assert (answer.status_code, answer.json()["code"]) == (422, "labels.bad_pattern")
    (fault,) = answer.json()["faults"]
    assert (fault["line"], fault["column"]) == (1, "attn(F")

    parts: Parts = {"labels": (None, LABELS), "trace": ("t", body)}
    twice = installation.client.post(
        "/api/v1/jobs/job/sessions", files=parts, params={"labels": LABELS}
    )
    assert (twice.status_code, twice.json()["code"]) == (422, "labels.conflict")
