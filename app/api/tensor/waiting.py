"""Requests that wait for a newer plan: reports wake them, and each second they look themselves."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from typing import Annotated, Final, TypeVar

import anyio
from anyio import CapacityLimiter
from fastapi import Depends, Request

from app.errors import BusyError

# Another process may have stored the report.
LOOK_EVERY_S: Final = 1.0
MOST_WAITING: Final = 2000
_READERS: Final = 2

T = TypeVar("T")
# project, job and group
Key = tuple[int, str, str]


class Waiting:
    """Who waits for the plan of which group; used on one event loop, woken from any thread."""

    def __init__(self) -> None:
        self._events: dict[Key, set[asyncio.Event]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._count = 0
        self._closed = False
        self._readers = CapacityLimiter(_READERS)

    def changed(self, key: Key) -> None:
        """Wake who waits for a group."""
        if self._loop is not None and self._count:
            self._loop.call_soon_threadsafe(self._wake, key)

    def close_soon(self) -> None:
        """Release all that wait, and let none wait from now on."""
        self._closed = True
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._wake_all)

    async def until(self, key: Key, wait_s: float, read: Callable[[], T | None]) -> T | None:
        """Return what `read` finds, once it finds something; None after `wait_s`.

        Raises
        ------
        BusyError
            Too many wait.
        """
        if self._count >= MOST_WAITING:
            raise BusyError(f"{MOST_WAITING} requests wait for plans already.")
        self._loop = asyncio.get_running_loop()
        deadline = self._loop.time() + wait_s
        with self._event(key) as event:
            while True:
                event.clear()
                found = await anyio.to_thread.run_sync(read, limiter=self._readers)
                left_s = deadline - self._loop.time()
                if found is not None or left_s <= 0 or self._closed:
                    return found
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(event.wait(), min(left_s, LOOK_EVERY_S))

    @contextlib.contextmanager
    def _event(self, key: Key) -> Iterator[asyncio.Event]:
        event = asyncio.Event()
        self._events.setdefault(key, set()).add(event)
        self._count += 1
        try:
            yield event
        finally:
            self._count -= 1
            self._events[key].discard(event)
            if not self._events[key]:
                del self._events[key]

    def _wake(self, key: Key) -> None:
        for event in self._events.get(key, ()):
            event.set()

    def _wake_all(self) -> None:
        for key in self._events:
            self._wake(key)


async def waiting_of(request: Request) -> Waiting:
    """Return who waits among the requests of the application."""
    found: Waiting = request.app.state.waiting
    return found


Waits = Annotated[Waiting, Depends(waiting_of)]
