"""Requests without authentication are checked on separate, limited threads."""

from __future__ import annotations

import threading

import anyio
import anyio.to_thread
import pytest

from app.access.guard import Turns
from app.errors import BusyError


def test_they_hold_no_thread_of_others_and_one_too_many_is_refused() -> None:
    anyio.run(_wait_for_turns)


async def _wait_for_turns() -> None:
    turns, release = Turns(1, 2), threading.Event()
    others = anyio.to_thread.current_default_thread_limiter()
    try:
        async with anyio.create_task_group() as under_way:
            for _ in range(3):
                under_way.start_soon(turns.run, release.wait)
            await anyio.wait_all_tasks_blocked()
            assert others.borrowed_tokens == 0
            with pytest.raises(BusyError):
                await turns.run(release.wait)
            release.set()
    finally:
        release.set()
    assert await turns.run(lambda: "a turn") == "a turn"
