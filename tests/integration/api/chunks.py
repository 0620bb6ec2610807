"""Chunks of a session, and functions to send them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from app.analysis.trace.encode import to_ndjson_gz, to_parquet
from app.analysis.trace.model import Trace
from tests import factories
from tests.integration.api import bodies

if TYPE_CHECKING:
    import httpx

    from tests.integration.api.conftest import Installation

Pieces = list[tuple[str, int, bytes]]

RANKS = [str(rank) for rank in range(6)]


def url(session: int, producer: str, number: int, job: str = "job", attempt: int = 1) -> str:
    """Return the path of a chunk."""
    return f"{of_session(session, job, attempt)}/chunks/{producer}/{number}"


def of_session(session: int, job: str = "job", attempt: int = 1) -> str:
    """Return the path of a session."""
    return f"/api/v1/jobs/{job}/attempts/{attempt}/sessions/{session}"


def put(
    installation: Installation,
    producer: str = "0",
    number: int = 0,
    body: bytes | None = None,
    *,
    session: int = 1,
    **params: Any,  # noqa: ANN401 - query parameters
) -> httpx.Response:
    """Send a chunk; by default with the operations of this producer's rank."""
    content = rank_body(int(producer)) if body is None else body
    return installation.client.put(
        url(session, producer, number), content=content, params=bodies.SIZES | params
    )


def seal(installation: Installation, session: int = 1) -> httpx.Response:
    """Seal a session."""
    return installation.client.post(f"{of_session(session)}/seal")


def rank_body(rank: int) -> bytes:
    """Return the operations of one rank of the sample session."""
    trace = bodies.trace()
    return to_parquet(factories.select(trace, trace.rank == rank))


def by_rank_and_flush(trace: Trace, flushes: int = 3) -> list[tuple[str, int, Trace]]:
    """Divide a trace into chunks by rank and time, which divides steps too."""
    pieces = []
    for rank in np.unique(trace.rank).tolist():
        rows = np.flatnonzero(trace.rank == rank)
        rows = rows[np.argsort((trace.start_ns + trace.duration_ns)[rows], kind="stable")]
        for number, part in enumerate(np.array_split(rows, flushes)):
            pieces.append((f"rank-{rank}", number, factories.select(trace, part)))
    return pieces


def parquet_pieces(trace: Trace) -> Pieces:
    """Return chunks with our Parquet columns."""
    return [(name, number, to_parquet(part)) for name, number, part in by_rank_and_flush(trace)]


def ndjson_pieces(trace: Trace) -> Pieces:
    """Return chunks in NDJSON."""
    return [(name, number, to_ndjson_gz(part)) for name, number, part in by_rank_and_flush(trace)]


def send(installation: Installation, pieces: Pieces, session: int, seed: int, **params: Any) -> str:  # noqa: ANN401 - query parameters
    """Send chunks in random order, seal the session and return its id."""
    for place in np.random.default_rng(seed).permutation(len(pieces)).tolist():
        producer, number, body = pieces[place]
        answer = put(installation, producer, number, body, session=session, **params)
        assert answer.status_code == 202, answer.text
    answer = seal(installation, session)
    assert answer.status_code == 202, answer.text
    found: str = answer.json()["session"]
    return found


def report(installation: Installation, session: str) -> tuple[str, dict[str, Any]]:
    """Return a report as text without the ids of its session, and its coverage of chunks."""
    answer = installation.client.get(f"/api/v1/sessions/{session}/report")
    assert answer.status_code == 200, answer.text
    document = answer.json()
    document["session"] = None
    chunks = document["coverage"].pop("chunks", {})
    return json.dumps(document), chunks


def detail(installation: Installation, answer: httpx.Response) -> dict[str, Any]:
    """Return the API's document of the session in an answer."""
    found = installation.client.get(f"/api/v1/sessions/{answer.json()['session']}")
    assert found.status_code == 200
    document: dict[str, Any] = found.json()
    return document
