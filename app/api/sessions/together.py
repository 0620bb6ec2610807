"""Chunks that wait to be stored, stored together: a transaction is under way, or the next gathers.

A thousand senders cost a thousand times the reading of a request so, and not a thousand commits
that compete with pages for the interpreter.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import anyio
from anyio import CapacityLimiter

from app.services.sessions.chunks.together import receive_together

if TYPE_CHECKING:
    from collections.abc import Sequence

    from app.services.container import Container
    from app.services.sessions.chunks.inbox import Arrived, Pressure
    from app.services.sessions.chunks.path import ChunkReceipt

MOST: Final = 64
MOST_BYTES: Final = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class _Waiting:
    container: Container
    chunk: Arrived
    outcome: asyncio.Future[ChunkReceipt | None]


class Together:
    """The small chunks of one process's requests; used on its event loop only.

    Parameters
    ----------
    pressure : Pressure
        Puts senders off while workers are behind.
    """

    def __init__(self, pressure: Pressure) -> None:
        self._pressure = pressure
        self._queue: deque[_Waiting] = deque()
        self._storing: asyncio.Task[None] | None = None
        # One at a time: what comes meanwhile makes the next one larger.
        self._limiter = CapacityLimiter(1)

    @property
    def waiting(self) -> int:
        """Return how many chunks wait for a transaction."""
        return len(self._queue)

    async def receive(self, container: Container, chunk: Arrived) -> ChunkReceipt | None:
        """Store a chunk; None where there is more to say of it (see `receive_together`).

        Raises
        ------
        InboxFullError
        """
        outcome: asyncio.Future[ChunkReceipt | None] = asyncio.get_running_loop().create_future()
        self._queue.append(_Waiting(container, chunk, outcome))
        if self._storing is None:
            self._storing = asyncio.create_task(self._store_all())
        return await outcome

    async def _store_all(self) -> None:
        try:
            while self._queue:
                batch = self._take()
                try:
                    receipts = await anyio.to_thread.run_sync(
                        self._store, batch, limiter=self._limiter
                    )
                # Every sender is told, whatever it was.
                except Exception as error:  # noqa: BLE001 - each request raises it
                    for one in batch:
                        if not one.outcome.done():
                            one.outcome.set_exception(error)
                else:
                    for one, receipt in zip(batch, receipts, strict=True):
                        if not one.outcome.done():
                            one.outcome.set_result(receipt)
        finally:
            self._storing = None

    def _take(self) -> list[_Waiting]:
        """Take the oldest of the queue and what of its session fits into one transaction."""
        first = self._queue[0]
        key = first.container.scope, first.chunk.path.of
        batch: list[_Waiting] = []
        others: list[_Waiting] = []
        size = 0
        while self._queue and len(batch) < MOST and size < MOST_BYTES:
            one = self._queue.popleft()
            if (one.container.scope, one.chunk.path.of) == key:
                batch.append(one)
                size += one.chunk.body.size
            else:
                others.append(one)
        self._queue.extendleft(reversed(others))
        return batch

    def _store(self, batch: Sequence[_Waiting]) -> list[ChunkReceipt | None]:
        container = batch[0].container
        self._pressure.check(container.everywhere())
        return receive_together(container, batch[0].chunk.path.of, [one.chunk for one in batch])
