"""Which methods an address takes: HEAD wherever GET, and 405 with `Allow` for the rest."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from fastapi.routing import APIRoute
from starlette.datastructures import MutableHeaders
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.api.frame.problems import problem

_NOT_ALLOWED: Final = 405


class Methods:
    """ASGI middleware around the routes.

    The framework's routes for GET refuse HEAD; its `Allow` knows one route of an address only; and
    an address without parameters whose method is wrong falls to a route with some, which then finds
    a parameter malformed.

    Parameters
    ----------
    app : ASGI application
    routes : iterable of BaseRoute
        Of the application, with the prefixes of their routers.
    """

    def __init__(self, app: ASGIApp, routes: Iterable[BaseRoute]) -> None:
        self.app = app
        self.routes = tuple(route for route in routes if isinstance(route, APIRoute))
        self.literal: dict[str, set[str]] = {}
        for route in self.routes:
            if not route.param_convertors:
                self.literal.setdefault(route.path, set()).update(route.methods or ())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        head = scope["method"] == "HEAD"
        inner = {**scope, "method": "GET"} if head else scope
        path: str = scope["path"]

        async def send_allowed(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] == _NOT_ALLOWED:
                MutableHeaders(scope=message)["Allow"] = self.allowed(path)
            if not head:
                await send(message)
            elif message["type"] == "http.response.start":
                # Those further out count by the route.
                scope.update({key: inner[key] for key in ("route",) if key in inner})
                await send(message)
                # A stream would never end by itself; with this its receiver is gone.
                await send({"type": "http.response.body"})

        app: ASGIApp = self.app
        if inner["method"] not in self.literal.get(path, {inner["method"]}):
            app = problem("http.method_not_allowed", "Method Not Allowed.")
        await app(inner, receive, send_allowed)

    def allowed(self, path: str) -> str:
        """Return what the header `Allow` says of an address."""
        methods = set(self.literal.get(path, ()))
        if not methods:
            for route in self.routes:
                if route.path_regex.match(path):
                    methods |= route.methods or set()
        if "GET" in methods:
            methods.add("HEAD")
        return ", ".join(sorted(methods))
