"""Turns of those who are not known yet: they must not hold the threads of those who are."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import anyio.to_thread
from anyio import CapacityLimiter

from app.errors import BusyError

T = TypeVar("T")


class Turns:
    """Threads of their own for what anybody may ask for; used on one event loop.

    Parameters
    ----------
    at_once : int
        Threads.
    waiting : int
        Requests that may wait for one; a further one is refused.
    """

    def __init__(self, at_once: int, waiting: int) -> None:
        self._limiter = CapacityLimiter(at_once)
        self._waiting = waiting

    async def run(self, work: Callable[[], T]) -> T:
        """Return what `work` returns, in a thread.

        Raises
        ------
        BusyError
            Too many wait.
        """
        if self._limiter.statistics().tasks_waiting >= self._waiting:
            raise BusyError("Too many ask at once; try again in a few seconds.")
        return await anyio.to_thread.run_sync(work, limiter=self._limiter)
