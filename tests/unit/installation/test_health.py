"""The open health checks run at most at intervals, for any number of requests."""

from __future__ import annotations

import asyncio
import threading

import pytest

from app.installation.health import Remembered


def test_many_who_ask_at_once_and_soon_after_get_one_answer() -> None:
    now_s = 0.0
    calls: list[int] = []

    def find() -> int:
        calls.append(threading.get_ident())
        return len(calls)

    async def ask() -> None:
        nonlocal now_s
        found = Remembered(find, 1.0, lambda: now_s)
        assert await asyncio.gather(*(found.now() for _ in range(100))) == [1] * 100
        now_s = 0.9
        assert await found.now() == 1
        now_s = 1.0
        assert await found.now() == 2

    asyncio.run(ask())
    assert len(calls) == 2
    assert threading.get_ident() not in calls


def test_a_failed_check_is_repeated() -> None:
    answers: list[int | None] = [1, None]

    def find() -> int:
        answer = answers.pop()
        if answer is None:
            raise OSError
        return answer

    async def ask() -> None:
        found = Remembered(find, 1.0, lambda: 0.0)
        with pytest.raises(OSError):  # noqa: PT011 - the one above
            await found.now()
        assert await found.now() == 1

    asyncio.run(ask())
