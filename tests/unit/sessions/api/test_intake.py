from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

from app.sessions.api.intake import ANSWERED_AT_ONCE, MOST, BatchWriter
from tests.support.loops import in_a_loop

if TYPE_CHECKING:
    from collections.abc import Sequence

    from app.platform.container import Container


def test_senders_are_answered_a_few_with_each_turn_of_the_loop() -> None:
    def store(_container: Container, numbers: Sequence[int]) -> Sequence[int]:
        return numbers

    together: BatchWriter[int, int] = BatchWriter(store)
    container = cast("Container", SimpleNamespace(scope=None))

    async def run() -> list[int | None]:
        senders = [
            asyncio.create_task(together.receive(container, number, size=1))
            for number in range(2 * MOST)
        ]
        answered = 0
        while answered < len(senders):
            await asyncio.sleep(0)
            now = sum(sender.done() for sender in senders)
            # Chunks of one transaction, and of the previous one, whose last answers may be under
            # way.
            assert now - answered <= 2 * ANSWERED_AT_ONCE < MOST
            answered = now
        return [sender.result() for sender in senders]

    assert in_a_loop(run) == list(range(2 * MOST))
