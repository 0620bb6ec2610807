"""The route `/mcp` of the tools for assistants, over streamable HTTP.

Requests have no sessions, so that any process of a server can answer each of them. The tools call
this server's own API, in the same process, with the request's credentials.
"""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Final

import httpx
from fastapi import APIRouter, Request, Response

from app.access.guard import GuardedRoute, RequestContainer
from app.web.addresses import server_address
from app.web.project_paths import PROJECT_HEADER, project_of

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send


# A host name that every server accepts.
_ITSELF: Final = "http://localhost"


def tools_over_http() -> tuple[APIRouter, ...]:
    """Return the route of the tools; empty if the optional dependency is not installed."""
    if importlib.util.find_spec("mcp") is None:
        return ()
    routes = APIRouter(route_class=GuardedRoute, include_in_schema=False)

    @routes.post("/mcp")
    def call(request: Request, container: RequestContainer) -> Response:
        address = server_address(request, container.settings) + container.pages_at
        return _Tools(request.app, address, project_of(request.scope))

    return (routes,)


class _Tools(Response):
    """ASGI application of the tools, which read the request themselves."""

    def __init__(self, itself: ASGIApp, address: str, project: str | None) -> None:
        super().__init__()
        self._itself = itself
        self._address = address
        self._project = project

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request with the tools."""
        from mcp.server.transport_security import (  # noqa: PLC0415 - an extra, loaded when asked
            TransportSecuritySettings,
        )

        from app.mcp.server import make_server  # noqa: PLC0415

        # Read here, so that a body that is too large is refused as on other routes.
        body = await Request(scope, receive).body()

        async def again() -> Message:
            return {"type": "http.request", "body": body, "more_body": False}

        name = PROJECT_HEADER.encode()
        headers = [header for header in scope["headers"] if header[0] != name]
        if self._project is not None:
            headers.append((name, self._project.encode()))
        inner = httpx.ASGITransport(self._itself, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=inner, base_url=_ITSELF, timeout=None) as client:  # noqa: S113 - within this process
            server = make_server(client, self._address)
            tools = server.streamable_http_app(
                json_response=True,
                stateless_http=True,
                # The application's own guards have checked host and origin.
                transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),
            )
            async with server.session_manager.run():
                await tools({**scope, "path": "/mcp", "headers": headers}, again, send)
