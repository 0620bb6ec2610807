"""Coroutines called by tests that are not coroutines."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

T = TypeVar("T")


def in_a_loop(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine on a separate thread: browser tests leave a loop running on this one."""
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(lambda: asyncio.run(work())).result()
