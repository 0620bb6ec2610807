"""Pages and API of a session that arrives in chunks."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tests.integration.api import bodies, chunks
from tests.integration.api.chunks import put, seal

if TYPE_CHECKING:
    from tests.integration.api.conftest import Installation


def text_of(installation: Installation, path: str) -> str:
    page = installation.client.get(path)
    assert page.status_code == 200
    return " ".join(re.sub(r"<[^>]+>", " ", page.text).split())


def test_an_open_session_shows_how_far_it_has_come(installation: Installation) -> None:
    for rank in ("0", "1"):
        sent = put(installation, rank, final=rank == "1")
    bad = bodies.changed("step", 7, -1)
    put(installation, "2", body=bad)
    installation.absorb_all()
    session = sent.json()["session"]

    intake = installation.client.get(f"/api/v1/sessions/{session}").json()["intake"]
    size = len(chunks.rank_body(0))
    assert intake["chunks"] == 2
    assert (intake["refused_chunks"], intake["refused_bytes"]) == (1, len(bad))
    assert (intake["sealed_at"], intake["sealed_by"]) == (None, None)
    assert intake["seals_at"] > intake["last_chunk_at"]
    assert [entry["producer"] for entry in intake["producers"]] == ["0", "1"]
    assert [entry["final"] for entry in intake["producers"]] == [False, True]
    rows = int((bodies.trace().rank == 0).sum())
    assert intake["producers"][0] == {
        "producer": "0",
        "chunks": 1,
        "operations": rows,
        "body_bytes": size,
        "final": False,
    }

    page = text_of(installation, f"/sessions/{session}")
    assert "Session 1 is arriving: 2 chunks of 2 producers so far" in page
    assert f"Operations {2 * rows} in 2 chunks" in page
    assert "Producers 2 0, 1; the last chunk of 1 has come" in page
    assert re.search(r"Refused [\d.]+ KiB 1 chunk", page)
    assert "Arriving" in text_of(installation, "/")
    listed = installation.client.get("/api/v1/sessions", params={"state": "open"}).json()
    assert [entry["id"] for entry in listed["sessions"]] == [session]


def test_a_page_shows_waiting_and_refused_chunks(installation: Installation) -> None:
    first = put(installation, "0")
    put(installation, "1", body=b"PAR1 rubbish")
    url = f"/sessions/{first.json()['session']}"
    assert "in 1 chunk, 1 waiting" in text_of(installation, url)
    installation.absorb_all()
    assert "1 chunk: 1/0 (trace." in text_of(installation, url)


def test_the_report_names_producers_and_dropped_chunks(installation: Installation) -> None:
    pieces = chunks.parquet_pieces(bodies.trace())
    for producer, number, body in [*pieces, ("late", 0, pieces[4][2])]:
        sent = put(installation, producer, number, body)
    put(installation, "late", 1, b"junk")
    seal(installation)
    installation.analyze_all()
    page = text_of(installation, f"/sessions/{sent.json()['session']}")
    assert "92 repeated operations dropped" in page
    assert "Chunks sealed on request 19" in page
    assert "Producers late, rank-0, rank-1, rank-2, rank-3, rank-4, 1 more 7" in page
    # Producers are processed in the order of their names: "late" is before "rank-1".
    assert "Operations sent twice, dropped chunk rank-1/1 (92) 92" in page
    assert "Chunks refused 4 B 1" in page
