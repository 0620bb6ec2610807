"""Received bodies wait a short time while a page is rendered, but never for long."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from app.web import guards as pages_first
from app.web.guards import AT_ONCE, PagesFirst
from tests.support.loops import in_a_loop

if TYPE_CHECKING:
    from starlette.types import Message, Receive, Scope, Send

_SENDERS = 50
# Number of turns of the event loop in which all requests would have begun.
_TURNS = 100
_NEVER_S = 3600.0


class _App:
    """Records the begun requests; a page is rendered until `page` is set."""

    def __init__(self) -> None:
        self.began: list[str] = []
        self.page = asyncio.Event()
        self.door = PagesFirst(self)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        del receive, send
        self.began.append(scope["path"])
        if scope["method"] == "GET":
            await self.page.wait()

    def ask(self, method: str, path: str) -> asyncio.Task[None]:
        """Send a request."""
        scope = {"type": "http", "method": method, "path": path}
        return asyncio.create_task(self.door(scope, _nothing, _ignore))

    def send_all(self) -> list[asyncio.Task[None]]:
        """Send many bodies at the same time."""
        return [self.ask("PUT", f"/api/v1/{number}") for number in range(_SENDERS)]


async def _nothing() -> Any:  # noqa: ANN401 - as the framework's
    raise AssertionError


async def _ignore(_message: Message) -> None:
    raise AssertionError


async def _turns(number: int) -> None:
    for _ in range(number):
        await asyncio.sleep(0)


def test_bodies_begin_a_few_with_each_turn_so_that_a_page_is_not_behind_them() -> None:
    async def run() -> None:
        app = _App()
        sent = app.send_all()
        await _turns(2)
        page = app.ask("GET", "/hosts")
        await _turns(2)
        assert app.began.index("/hosts") <= 4 * AT_ONCE < _SENDERS
        app.page.set()
        await asyncio.gather(page, *sent)
        assert len(app.began) == 1 + _SENDERS

    in_a_loop(run)


def test_bodies_wait_while_a_page_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages_first, "WAIT_S", _NEVER_S)
    monkeypatch.setattr(pages_first, "PAGE_S", _NEVER_S)

    async def run() -> None:
        app = _App()
        page = app.ask("GET", "/")
        sent = app.send_all()
        await _turns(_TURNS)
        assert app.began == ["/"]
        app.page.set()
        await asyncio.gather(page, *sent)
        assert app.began[1:] == [f"/api/v1/{number}" for number in range(_SENDERS)]

    in_a_loop(run)


@pytest.mark.parametrize("endless", ["WAIT_S", "PAGE_S"])
def test_bodies_are_taken_though_a_page_never_ends(
    endless: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages_first, endless, _NEVER_S)
    monkeypatch.setattr(pages_first, "PAGE_S" if endless == "WAIT_S" else "WAIT_S", 0.001)

    async def run() -> None:
        app = _App()
        page = app.ask("GET", "/")
        async with asyncio.timeout(60):
            await asyncio.sleep(0.01)
            await asyncio.gather(*app.send_all())
        assert not page.done()
        app.page.set()
        await page

    in_a_loop(run)


def test_what_programs_ask_for_keeps_nothing_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages_first, "WAIT_S", _NEVER_S)
    monkeypatch.setattr(pages_first, "PAGE_S", _NEVER_S)

    async def run() -> None:
        app = _App()
        stream = app.ask("GET", "/api/v1/events")
        async with asyncio.timeout(60):
            await asyncio.gather(*app.send_all())
        assert not stream.done()
        app.page.set()
        await stream

    in_a_loop(run)


def test_a_sender_that_is_gone_keeps_no_other_waiting() -> None:
    async def run() -> None:
        app = _App()
        first, *others = app.send_all()
        await asyncio.sleep(0)
        first.cancel()
        async with asyncio.timeout(60):
            await asyncio.gather(*others)
        assert len(app.began) == _SENDERS - 1

    in_a_loop(run)
