"""A stream of events ends when its reader's access ends."""

from __future__ import annotations

import asyncio

from app.bootstrap import build
from app.platform.settings import Settings
from app.sessions.api.live import LiveStates


def test_a_stream_ends_by_itself_so_that_who_reads_it_is_asked_again() -> None:
    container = build(
        Settings(database_url="postgresql+psycopg://unknown@127.0.0.1:1/none"),
        application_name="test",
    )

    async def heard() -> list[object]:
        live = LiveStates(container, lasts_s=0.0)
        with live.stream(1) as stream:
            return [change async for change in stream]

    try:
        assert asyncio.run(heard()) == []
    finally:
        container.close()
