"""Errors as people see them: pages in place of problem documents, where a browser asks for one."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from starlette.datastructures import Headers, MutableHeaders

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from app.dashboard.pages import Pages

PROBLEM: Final = "application/problem+json"
# What programs ask for, and answer programs alone, whatever they say that they accept.
OF_PROGRAMS: Final = ("/api/", "/static/", "/metrics", "/healthz", "/readyz")
# The peer may be another user, or not signed in yet.
SIGN_IN_HELPS: Final = frozenset({401, 403})


class ErrorPages:
    """ASGI middleware that makes a page of each problem document that a browser would get.

    It stands twice in an application: within what compresses, for what the routes answer, and
    outside of the guards, for what they refuse.

    Parameters
    ----------
    app : ASGI application
    pages : Pages
    """

    def __init__(self, app: ASGIApp, pages: Pages) -> None:
        self.app = app
        self.pages = pages

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http" or not _asks_for_page(scope):
            await self.app(scope, receive, send)
            return
        start: Message | None = None
        body = b""

        async def send_page(message: Message) -> None:
            nonlocal start, body
            if message["type"] == "http.response.start" and _is_problem(message):
                start = message
            elif start is None:
                await send(message)
            else:
                body += message.get("body", b"")
                if not message.get("more_body", False):
                    await self._send(start, body, send)

        await self.app(scope, receive, send_page)

    async def _send(self, start: Message, body: bytes, send: Send) -> None:
        # Empty where only the head was asked for.
        problem = json.loads(body) if body else {"title": "", "detail": "", "code": ""}
        page = self.pages.render_alone(
            "problem.html",
            status=start["status"],
            number=start["status"],
            title=problem["title"],
            detail=problem["detail"],
            code=problem["code"],
            sign_in_helps=start["status"] in SIGN_IN_HELPS,
        )
        MutableHeaders(scope=start).update(page.headers)
        await send(start)
        await send({"type": "http.response.body", "body": page.body if body else b""})


def _asks_for_page(scope: Scope) -> bool:
    accepted = Headers(scope=scope).get("accept", "")
    return "text/html" in accepted and not scope["path"].startswith(OF_PROGRAMS)


def _is_problem(start: Message) -> bool:
    headers = Headers(raw=start["headers"])
    return headers.get("content-type", "").startswith(PROBLEM) and "content-encoding" not in headers
