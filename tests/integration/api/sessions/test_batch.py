"""Many chunks in one body: each has its own answer."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tests.integration.api import bodies, chunks

if TYPE_CHECKING:
    import httpx

    from tests.integration.api.conftest import Installation

Chunk = tuple[str, int, bytes]


def send(
    installation: Installation, *sent: Chunk, more: bytes = b"", session: int = 1
) -> httpx.Response:
    """Send a batch; `more` is appended to the announced bytes."""
    listed = [{"producer": one, "n": number, "bytes": len(body)} for one, number, body in sent]
    content = json.dumps({"chunks": listed}).encode() + b"\n"
    content += b"".join(body for _, _, body in sent) + more
    return installation.client.post(
        f"{chunks.of_session(session)}/chunks", content=content, params=bodies.SIZES
    )


def outcomes(answer: httpx.Response) -> list[tuple[int, str | None]]:
    assert answer.status_code == 200, answer.text
    said: list[dict[str, Any]] = answer.json()["chunks"]
    return [(one["status"], one["code"]) for one in said]


def test_a_batch_is_the_session_that_its_chunks_make_alone(installation: Installation) -> None:
    alone = installation.post().json()["session"]
    pieces = chunks.parquet_pieces(bodies.trace())
    assert outcomes(send(installation, *pieces, session=2)) == [(202, None)] * len(pieces)
    together = chunks.seal(installation, 2).json()["session"]
    installation.analyze_all()
    assert chunks.report(installation, together)[0] == chunks.report(installation, alone)[0]


def test_a_refused_part_of_a_batch_does_not_affect_the_others(installation: Installation) -> None:
    good = [(str(rank), 0, chunks.rank_body(rank)) for rank in range(4)]
    assert outcomes(send(installation, *good[:2])) == [(202, None)] * 2
    sent = [good[0], ("1", 0, chunks.rank_body(5)), ("stray", 0, b"rubbish"), *good[2:]]
    assert outcomes(send(installation, *sent)) == [
        (200, None),
        (409, "chunk.differs"),
        (415, "trace.unknown_format"),
        (202, None),
        (202, None),
    ]
    installation.absorb_all()
    session = installation.client.get("/api/v1/sessions").json()["sessions"][0]
    found = installation.client.get(f"/api/v1/sessions/{session['id']}").json()
    assert (found["intake"]["chunks"], found["intake"]["refused_chunks"]) == (4, 2)


def test_a_body_that_is_no_batch_stores_nothing(installation: Installation) -> None:
    whole = ("0", 0, chunks.rank_body(0))
    longer = send(installation, whole, more=b"more")
    twice = installation.client.post(f"{chunks.of_session(1)}/chunks", content=b'{"chunks": []}')
    named = send(installation, whole, ("a/b", 0, b"x"))
    codes = [one.json()["code"] for one in (longer, twice, named)]
    assert codes == ["batch.malformed", "batch.malformed", "producer.invalid_name"]
    assert installation.rows()["session"] == 0
