"""Pages come first: what is sent waits a little while a page is made, and comes a few at a time.

A thousand senders of a flush are let in at once by the event loop: it reads the head of each, and a
page that is asked for, or whose thread is done, waits for all of them. So does its thread for the
interpreter. Here a few bodies begin with each turn of the loop, and fewer while a page is made.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

# Bodies that begin with each turn of the event loop.
AT_ONCE: Final = 4
# How long these wait at most for pages that are being made. With `AT_ONCE`, what a process takes in
# a second whatever pages are asked for: 400 bodies.
WAIT_S: Final = 0.01
# A page that takes longer than this is waited for no more.
PAGE_S: Final = 1.0
# What is no page, nor a part of one: programs ask for it, also for minutes.
OF_PROGRAMS: Final = ("/api/", "/mcp", "/metrics", "/healthz", "/readyz")
SENDS: Final = frozenset({"POST", "PUT"})
READS: Final = frozenset({"GET", "HEAD"})


class PagesFirst:
    """Lets requests that send something in by turns; used on one event loop only."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._turns: asyncio.Task[None] | None = None
        # When each page that is being made was asked for; the earliest first.
        self._pages: dict[object, float] = {}
        self._made = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request in its turn."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
        elif scope["method"] in SENDS:
            await self._turn()
            await self._app(scope, receive, send)
        elif scope["method"] in READS and not scope["path"].startswith(OF_PROGRAMS):
            page = object()
            self._pages[page] = time.monotonic()
            try:
                await self._app(scope, receive, send)
            finally:
                del self._pages[page]
                self._made.set()
        else:
            await self._app(scope, receive, send)

    async def _turn(self) -> None:
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        if self._turns is None:
            self._turns = asyncio.create_task(self._give())
        await turn

    async def _give(self) -> None:
        try:
            while self._waiting:
                await self._pages_made()
                for _ in range(min(AT_ONCE, len(self._waiting))):
                    turn = self._waiting.popleft()
                    # Its request may have been cancelled.
                    if not turn.done():
                        turn.set_result(None)
                # Whoever was let in begins now, and so does whatever else is ready.
                await asyncio.sleep(0)
        finally:
            self._turns = None

    async def _pages_made(self) -> None:
        """Wait while pages are being made, for a little while."""
        until_s = time.monotonic() + WAIT_S
        while (left_s := until_s - time.monotonic()) > 0 and self._is_making():
            self._made.clear()
            try:
                async with asyncio.timeout(left_s):
                    await self._made.wait()
            except TimeoutError:
                return

    def _is_making(self) -> bool:
        latest = next(reversed(self._pages.values()), None)
        return latest is not None and time.monotonic() - latest < PAGE_S
