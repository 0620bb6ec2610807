"""The evidence of an incident: a page to print, and an archive."""

from __future__ import annotations

import io
import json
import uuid
import zipfile
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from app.analysis.report.session_verdict import SuspectedCause
from app.incidents.triage import evidence_of, evidence_zip
from tests.support.alerting import Alerting
from tests.support.html import parse
from tests.support.project import build
from tests.support.reads import read

if TYPE_CHECKING:
    from collections.abc import Iterator

    import httpx

    from app.platform.container import Container
    from app.platform.settings import Settings


@pytest.fixture
def container(settings: Settings) -> Iterator[Container]:
    built = build(settings)
    yield built
    built.close()


@pytest.fixture
def alerting(container: Container) -> Alerting:
    return Alerting(container)


def test_the_page_and_the_archive_say_the_same(alerting: Alerting, client: httpx.Client) -> None:
    for job in ("llm", "other"):
        alerting.slow(job, host="node-7")
    incident = alerting.incidents()[0]
    answer = client.get(f"/incidents/{incident.id}/evidence")
    assert answer.status_code == 200
    text = parse(answer.text).one("main").text
    assert "kubectl cordon node-7" in text
    assert "2 jobs on node-7" in text
    packed = client.get(f"/incidents/{incident.id}/evidence.zip")
    assert packed.headers["content-type"] == "application/zip"
    with zipfile.ZipFile(io.BytesIO(packed.content)) as archive:
        assert {"incident.txt", "incident.json", "cordon.txt"} <= set(archive.namelist())
        document = json.loads(archive.read("incident.json"))
        assert (document["job"], document["host"]) == ("llm", "node-7")
        assert [one["job"] for one in document["inside"]] == ["other"]
        assert "scontrol update nodename=node-7" in archive.read("cordon.txt").decode()
    page = parse(client.get(f"/incidents/{incident.id}").text)
    assert "Evidence pack (zip)" in page.one("main").text
    assert "Copy remedy" in page.one("main").text


@pytest.mark.parametrize("host", ["node-[1-99]", "a,b", "-all", "x; rm -rf /", "$(reboot)"])
def test_no_command_for_more_than_one_node(
    alerting: Alerting, client: httpx.Client, host: str
) -> None:
    for _ in range(2):
        alerting.session(1.3, SuspectedCause("slow_worker", (host,), confidence=0.95))
    answer = client.get(f"/incidents/{alerting.incident().id}/evidence")
    assert answer.status_code == 200
    assert "kubectl" not in answer.text
    assert "scontrol" not in answer.text


def test_no_command_where_the_cause_is_the_job_s_own(
    alerting: Alerting, client: httpx.Client
) -> None:
    for _ in range(2):
        alerting.session(
            1.3, SuspectedCause("expert_parallel_imbalance", ("node-7",), confidence=0.95)
        )
    path = f"/incidents/{alerting.incident().id}"
    for page in (path, f"{path}/evidence"):
        answer = client.get(page)
        assert answer.status_code == 200
        assert "cordon" not in answer.text
        assert "scontrol" not in answer.text
    assert "No host is at fault" in client.get(f"{path}/evidence").text
    packed = client.get(f"{path}/evidence.zip")
    with zipfile.ZipFile(io.BytesIO(packed.content)) as archive:
        assert "cordon.txt" not in archive.namelist()
        assert "cordon" not in archive.read("incident.txt").decode()
        document = json.loads(archive.read("incident.json"))
    assert (document["host"], document["commands"]) == (None, {})


def test_the_workers_of_a_map_are_the_slowest_first(alerting: Alerting) -> None:
    alerting.slow()
    found = read(alerting.container, evidence_of, alerting.incident().id)
    heatmap = np.array([[1.0, 1.4], [np.nan, 1.2]], dtype=np.float32)
    proof = replace(found, heatmap=heatmap, picture=b"png", report=None)
    with zipfile.ZipFile(io.BytesIO(evidence_zip(proof, "words"))) as archive:
        assert archive.read("workers.csv").decode().splitlines() == [
            "dp,pp,slowdown",
            "0,1,1.4",
            "1,1,1.2",
            "0,0,1",
            "1,0,",
        ]


def test_what_is_not_there_is_not_found(client: httpx.Client) -> None:
    for name in (uuid.uuid4(), "nonsense"):
        for path in ("evidence", "evidence.zip"):
            assert client.get(f"/incidents/{name}/{path}").status_code == 404
