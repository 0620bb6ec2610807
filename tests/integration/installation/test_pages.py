"""The pages of ingestion and the installation: sessions, refusals and state."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from app.analysis.trace.encode import to_parquet
from app.analysis.trace.metadata import metadata_document, parse_metadata
from app.sessions.chunks.absorb import absorb
from tests import factories
from tests.integration.pages.test_routes import analyzed
from tests.support.command import paceline
from tests.support.sessions import small_trace, store

if TYPE_CHECKING:
    import httpx
    import pytest

    from app.platform.container import Container
    from app.platform.settings import Settings

PATH = "/api/v1/jobs/chunked/attempts/1/sessions/1/chunks"
SIZES = {"dp": 3, "pp": 2, "world": 6}


def send(client: httpx.Client, *producers: int) -> None:
    trace = factories.session(dp=3, pp=2).trace
    for producer in producers:
        answer = client.put(
            f"{PATH}/p{producer}/0",
            content=to_parquet(factories.select(trace, trace.rank == producer)),
            params=SIZES,
        )
        assert answer.status_code == 202, answer.text


def test_open_sessions_are_listed_with_their_producers_and_coverage(
    client: httpx.Client, container: Container
) -> None:
    send(client, 0, 1)
    while absorb(container):
        pass
    found = client.get("/api/v1/ingest").json()
    [one] = found["open"]
    assert (one["job"], one["producers"], one["covered"], one["cells"]) == ("chunked", 2, 2, 6)
    assert {lagging["producer"] for lagging in found["lagging"]} == {"p0", "p1"}
    assert found["open_count"] == 1
    text = client.get("/ingest").text
    assert "chunked, session 1" in text
    assert "2 of 6" in text


def test_refused_bodies_are_counted_by_reason(client: httpx.Client) -> None:
    send(client, 0)
    for number in (1, 2):
        answer = client.put(f"{PATH}/p0/{number}", content=b"no parquet", params=SIZES)
        assert answer.status_code >= 400
    code = answer.json()["code"]
    answer = client.post("/api/v1/jobs/whole/sessions", content=b"no trace", params=SIZES)
    assert answer.status_code >= 400
    found = client.get("/api/v1/ingest").json()
    bodies = {one["code"]: one for one in found["refusals"]}
    assert sum(one["bodies"] for one in bodies.values()) == 3
    assert bodies[code]["bodies"] >= 2
    assert found["jobs"][0]["refused"] == 2
    assert "refused, most often" in client.get("/ingest").text


def test_the_results_of_a_job_are_listed(client: httpx.Client, container: Container) -> None:
    analyzed(container, "llm")
    [job] = client.get("/api/v1/ingest").json()["jobs"]
    assert (job["job"], job["sessions"], job["analyzed"], job["failed"]) == ("llm", 1, 1, 0)


def guess(container: Container, job: str, *guessed: str) -> None:
    """Store a session of four hosts, some of whose names are guesses."""
    hosts = {"0": "node-0", "1": "node-1", "2": "node-2", "3": "node-3"}
    hosts |= {str(rank): name for rank, name in enumerate(guessed)}
    said = metadata_document(small_trace().meta) | {
        "hosts": hosts,
        "guessed_hosts": dict.fromkeys(guessed, "hostname"),
    }
    store(container, replace(small_trace(), meta=parse_metadata(said)), job=job)


def test_jobs_that_guess_their_nodes_are_listed(
    client: httpx.Client, container: Container, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    guess(container, "told")
    assert "on which nodes they run" not in client.get("/ingest").text
    guess(container, "one", "one-worker-0")
    guess(container, "two", "two-worker-1", "two-worker-0")
    # Only the latest session of a job counts.
    guess(container, "corrected", "corrected-0")
    guess(container, "corrected")
    found = client.get("/api/v1/ingest").json()["guessing"]
    assert [(one["job"], one["guessed"], one["hosts"], one["example"]) for one in found] == [
        ("two", 2, 4, "two-worker-0"),
        ("one", 1, 4, "one-worker-0"),
    ]
    page = client.get("/ingest").text
    assert "guess on which nodes they run" in page
    assert "two-worker-0" in page
    assert "two,2,4" in client.get("/ingest/guesses.csv").text

    for name, value in settings.environment().items():
        if name in {"PACELINE_DATABASE_URL", "PACELINE_DATA_DIR"}:
            monkeypatch.setenv(name, value)
    monkeypatch.setenv("COLUMNS", "900")
    [line] = [
        line for line in paceline("doctor").stdout.splitlines() if line.startswith("names of nodes")
    ]
    assert "ok" in line
    assert "guessed by two (2 of 4), one (1 of 4): set PACELINE_NODE" in line


def test_nothing_has_a_page_too(client: httpx.Client) -> None:
    assert "Nothing arrived" in client.get("/ingest?range=1h").text


def test_the_installation_is_described(client: httpx.Client, container: Container) -> None:
    analyzed(container, "llm")
    found = client.get("/api/v1/installation").json()
    assert found["revision"] == found["expected_revision"]
    assert {one["kind"] for one in found["queues"]} == set(container.kinds)
    assert found["database_bytes"] > 0
    assert "blob_part" in {one["name"] for one in found["tables"]}
    assert found["projects"]["default"]["jobs"] == 1
    text = client.get("/installation").text
    assert "No live worker takes analyses" in text
    assert found["version"] in text
