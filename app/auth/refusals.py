"""Refusals on their way into the audit log: soon at first, ever more seldom while they go on."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final

import anyio.to_thread
import structlog
from sqlalchemy.exc import SQLAlchemyError

from app.services.access.refusals import write_refusals

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from app.services.container import Container

# A process that is asked wrongly by everybody, day and night, writes fewer than 6,000 lines a day;
# one that is asked wrongly once writes it within seconds.
FIRST_S: Final = 5.0
LONGEST_S: Final = 15 * 60.0

_log = structlog.get_logger(__name__)


@contextlib.asynccontextmanager
async def writing_refusals(container: Container) -> AsyncIterator[None]:
    """Write refusals while the context lasts, and what is left at its end."""
    async with asyncio.TaskGroup() as tasks:
        writer = tasks.create_task(_write_on(container))
        try:
            yield
        finally:
            writer.cancel()
    await _write(container)


async def _write_on(container: Container) -> None:
    wait_s = FIRST_S
    while True:
        await asyncio.sleep(wait_s)
        wait_s = next_wait_s(wait_s, await _write(container))


def next_wait_s(wait_s: float, lines: int) -> float:
    """Return how long to wait for further refusals.

    Examples
    --------
    >>> next_wait_s(5.0, 3), next_wait_s(900.0, 1), next_wait_s(900.0, 0)
    (10.0, 900.0, 5.0)
    """
    return min(2 * wait_s, LONGEST_S) if lines else FIRST_S


async def _write(container: Container) -> int:
    try:
        return await anyio.to_thread.run_sync(write_refusals, container)
    except SQLAlchemyError as error:
        _log.warning("refusals are not written", error=str(error).splitlines()[0])
        return 0
