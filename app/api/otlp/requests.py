"""A span for each request: the beginning of a trace, or a part of the caller's.

Written here and not by OpenTelemetry's instrumentation of ASGI: that one names spans before the
route is known, makes two more for each part of a body, and keeps addresses with their queries.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from app.api.frame.metrics import METHODS, OTHER_METHOD, route_of
from app.system.telemetry.spans import TRACEPARENT, Role, is_on, span

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

# Asked for every few seconds, by what wants to know whether the server lives.
UNTRACED: Final = frozenset({"/healthz", "/readyz", "/metrics"})
SERVER_ERROR: Final = 500


class RequestSpans:
    """ASGI middleware that makes the spans."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request within its span."""
        if scope["type"] != "http" or scope["path"] in UNTRACED or not is_on():
            await self.app(scope, receive, send)
            return
        method = scope["method"] if scope["method"] in METHODS else OTHER_METHOD
        path, status = scope["path"], SERVER_ERROR

        async def observed_send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        with span(
            method, Role.SERVER, _caller(scope), http__request__method=method, url__path=path
        ) as made:
            try:
                await self.app(scope, receive, observed_send)
            finally:
                route = route_of(scope)
                made.rename(f"{method} {route}")
                made.set(http__route=route, http__response__status_code=status)
                if status >= SERVER_ERROR:
                    made.fail(str(status))


def _caller(scope: Scope) -> str | None:
    for name, value in scope["headers"]:
        if name == TRACEPARENT.encode():
            return str(value.decode("latin-1"))
    return None
