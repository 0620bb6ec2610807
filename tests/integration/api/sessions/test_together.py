"""Chunks of one session that arrive at the same time are stored in one transaction."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import TYPE_CHECKING

from sqlalchemy import event

from app.sessions.body import Body
from app.sessions.chunks.inbox import ArrivedChunk, ChunkPath, SessionPath
from app.sessions.chunks.intake import seal_session
from app.sessions.chunks.receive import receive_together
from tests.integration.api import bodies, chunks

if TYPE_CHECKING:
    from app.platform.container import Container
    from tests.integration.api.conftest import Installation

SESSION = SessionPath("job", 1, 1)


def arrived(producer: str, rank: int = 0, number: int = 0) -> ArrivedChunk:
    content = chunks.rank_body(rank)
    return arrived_bytes(producer, content, number)


def arrived_bytes(producer: str, content: bytes, number: int = 0) -> ArrivedChunk:
    digest = hashlib.sha256(content).digest()
    body = Body(content, len(content), digest, None, bodies.trace().meta)
    return ArrivedChunk(ChunkPath("job", 1, 1, producer, number), body, final=False)


def statements_of(container: Container, sent: list[ArrivedChunk]) -> int:
    seen: list[str] = []

    def see(*executed: object) -> None:
        seen.append(str(executed[2]))

    event.listen(container.engine, "before_cursor_execute", see)
    assert None not in receive_together(container, SESSION, sent)
    event.remove(container.engine, "before_cursor_execute", see)
    return len(seen)


def test_the_first_makes_the_session_and_all_are_stored(installation: Installation) -> None:
    container = installation.container
    sent = [arrived(f"rank-{rank}", rank) for rank in range(6)]
    receipts = receive_together(container, SESSION, sent)
    assert [one is not None and one.created for one in receipts] == [True] * 6
    assert installation.rows()["inbox"] == 5
    assert chunks.seal(installation).status_code == 202
    installation.analyze_all()
    (found,) = installation.client.get("/api/v1/sessions").json()["sessions"]
    assert found["state"] == "analyzed"


def test_a_hundred_take_as_many_statements_as_two(installation: Installation) -> None:
    container = installation.container
    receive_together(container, SESSION, [arrived("first")])
    two = statements_of(container, [arrived(f"two-{each}") for each in range(2)])
    hundred = statements_of(container, [arrived(f"hundred-{each}") for each in range(100)])
    assert hundred == two


def test_a_chunk_of_a_used_name_with_other_bytes_is_not_stored(
    installation: Installation,
) -> None:
    container = installation.container
    receive_together(container, SESSION, [arrived("0"), arrived("1", 1)])
    twice = [arrived("2", 2), arrived("2", 3), arrived("1", 4), arrived_bytes("3", b"rubbish")]
    stored = [one is not None for one in receive_together(container, SESSION, twice)]
    assert stored == [True, False, False, False]


def test_nothing_is_stored_after_the_seal(installation: Installation) -> None:
    container = installation.container
    receive_together(container, SESSION, [arrived("0"), arrived("1", 1)])
    seal_session(container, "job", 1, 1)
    assert receive_together(container, SESSION, [arrived("2", 2), arrived("3", 3)]) == [None, None]
    assert installation.rows()["inbox"] == 1


def test_a_quota_of_producers_holds_for_those_that_come_together(
    installation: Installation,
) -> None:
    settings = installation.container.settings.model_copy(update={"quota_producers": 3})
    container = replace(installation.container, settings=settings)
    receive_together(container, SESSION, [arrived("0")])
    assert None not in receive_together(container, SESSION, [arrived("1", 1), arrived("2", 2)])
    assert receive_together(container, SESSION, [arrived("3", 3)]) == [None]
    assert None not in receive_together(container, SESSION, [arrived("2", 3, number=1)])
