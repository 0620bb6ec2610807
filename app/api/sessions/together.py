"""Small bodies that wait to be stored, stored together: a transaction is under way, or one gathers.

A thousand senders cost a thousand times the reading of a request so, and not a thousand commits
that compete with pages for the interpreter.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Generic, TypeVar

import anyio
from anyio import CapacityLimiter

if TYPE_CHECKING:
    from app.services.container import Container

MOST: Final = 64
MOST_BYTES: Final = 4 * 1024 * 1024
# Senders that are answered with each turn of the event loop.
ANSWERED_AT_ONCE: Final = 8
# Of a transaction: more wait for it where the last one had that many.
_MANY: Final = 8

One = TypeVar("One")
Outcome = TypeVar("Outcome")


@dataclass(frozen=True, slots=True)
class _Waiting(Generic[One, Outcome]):
    container: Container
    one: One
    group: Hashable
    size: int
    outcome: asyncio.Future[Outcome | None]


class Together(Generic[One, Outcome]):
    """The small bodies of one kind of one process's requests; used on its event loop only.

    Parameters
    ----------
    store : callable
        Takes bodies of one scope and group in a thread, and returns the outcome of each: None where
        there is more to say of it than of what is usual.
    gather_s : float
        A body waits that long for others, where less than a full transaction is there.
    many_gather_s : float
        The same where the last transaction had at least eight, if it is longer.
    most : int
        Bodies of a transaction.
    """

    def __init__(
        self,
        store: Callable[[Container, Sequence[One]], Sequence[Outcome | None]],
        *,
        gather_s: float = 0.0,
        many_gather_s: float = 0.0,
        most: int = MOST,
    ) -> None:
        self._store = store
        self._many_gather_s = max(gather_s, many_gather_s)
        self._last = 0
        self._most = most
        self._gather_s = gather_s
        self._queue: deque[_Waiting[One, Outcome]] = deque()
        self._storing: asyncio.Task[None] | None = None
        self._answering: set[asyncio.Task[None]] = set()
        # One at a time: what comes meanwhile makes the next one larger.
        self._limiter = CapacityLimiter(1)

    @property
    def waiting(self) -> int:
        """Return how many bodies wait for a transaction."""
        return len(self._queue)

    async def receive(
        self, container: Container, one: One, *, size: int, group: Hashable = None
    ) -> Outcome | None:
        """Store a body; return its outcome, or None as `store` does.

        Parameters
        ----------
        size : int
            Its bytes.
        group : hashable, optional
            What it is stored with; without it, with all of its project.
        """
        outcome: asyncio.Future[Outcome | None] = asyncio.get_running_loop().create_future()
        self._queue.append(_Waiting(container, one, (container.scope, group), size, outcome))
        if self._storing is None:
            self._storing = asyncio.create_task(self._store_all())
        return await outcome

    async def _store_all(self) -> None:
        try:
            while self._queue:
                if self._gather_s and len(self._queue) < self._most:
                    many = self._last >= _MANY
                    await asyncio.sleep(self._many_gather_s if many else self._gather_s)
                batch = self._take()
                self._last = len(batch)
                try:
                    outcomes = await anyio.to_thread.run_sync(
                        self._store,
                        batch[0].container,
                        [waiting.one for waiting in batch],
                        limiter=self._limiter,
                    )
                # Every sender is told, whatever it was.
                except Exception as error:  # noqa: BLE001 - each request raises it
                    for waiting in batch:
                        if not waiting.outcome.done():
                            waiting.outcome.set_exception(error)
                else:
                    # While the next ones are stored.
                    answering = asyncio.create_task(_answer(batch, outcomes))
                    self._answering.add(answering)
                    answering.add_done_callback(self._answering.discard)
        finally:
            self._storing = None

    def _take(self) -> list[_Waiting[One, Outcome]]:
        """Take the oldest of the queue and what of its group fits into one transaction."""
        group = self._queue[0].group
        batch: list[_Waiting[One, Outcome]] = []
        others: list[_Waiting[One, Outcome]] = []
        size = 0
        while self._queue and len(batch) < self._most and size < MOST_BYTES:
            waiting = self._queue.popleft()
            if waiting.group == group:
                batch.append(waiting)
                size += waiting.size
            else:
                others.append(waiting)
        self._queue.extendleft(reversed(others))
        return batch


async def _answer(
    batch: Sequence[_Waiting[One, Outcome]], outcomes: Sequence[Outcome | None]
) -> None:
    """Tell who waits, a few with each turn of the event loop: a page may be ready as well."""
    for number, (waiting, outcome) in enumerate(zip(batch, outcomes, strict=True), 1):
        if not waiting.outcome.done():
            waiting.outcome.set_result(outcome)
        if not number % ANSWERED_AT_ONCE:
            await asyncio.sleep(0)
