"""What arrives, what was refused and why, and how the installation is doing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.analysis.trace.encode import to_parquet
from tests import factories
from tests.integration.dashboard.test_routes import analyzed

if TYPE_CHECKING:
    import httpx

    from app.bootstrap import Container

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


def test_open_sessions_their_producers_and_what_they_cover_are_told(client: httpx.Client) -> None:
    send(client, 0, 1)
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


def test_what_came_of_a_job_is_told(client: httpx.Client, container: Container) -> None:
    analyzed(container, "llm")
    [job] = client.get("/api/v1/ingest").json()["jobs"]
    assert (job["job"], job["sessions"], job["analyzed"], job["failed"]) == ("llm", 1, 1, 0)


def test_nothing_has_a_page_too(client: httpx.Client) -> None:
    assert "Nothing arrived" in client.get("/ingest?range=1h").text


def test_the_installation_is_told(client: httpx.Client, container: Container) -> None:
    analyzed(container, "llm")
    found = client.get("/api/v1/installation").json()
    assert found["revision"] == found["expected_revision"]
    assert {one["kind"] for one in found["queues"]} == set(container.kinds)
    assert found["database_bytes"] > 0
    assert "blob_part" in {one["name"] for one in found["tables"]}
    assert found["projects"]["default"]["jobs"] >= 0
    text = client.get("/installation").text
    assert "No live worker takes analyses" in text
    assert found["version"] in text
