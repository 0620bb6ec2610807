"""Middleware: host, site and encoding guards, security headers, methods, precedence of pages."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Collection, Iterable, Mapping
from typing import Final
from urllib.parse import unquote_to_bytes, urlsplit

from fastapi.routing import APIRoute
from starlette.datastructures import Headers, MutableHeaders
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.platform.settings import Settings
from app.web.addresses import host_name, is_loopback
from app.web.problems import problem

SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})

# Without sign-in, every peer that reaches the server may do everything: requests that a proxy
# passes on from elsewhere are not answered.
FORWARDED_HEADERS: Final = (
    "forwarded",
    "via",
    "x-forwarded-for",
    "x-forwarded-host",
    "x-forwarded-port",
    "x-forwarded-prefix",
    "x-forwarded-proto",
    "x-forwarded-server",
    "x-original-forwarded-for",
    "x-original-host",
    "x-real-ip",
    "true-client-ip",
    "cf-connecting-ip",
    "x-client-ip",
    "x-cluster-client-ip",
)
# As they are in a request.
_FORWARDED: Final = frozenset(name.encode() for name in FORWARDED_HEADERS)


class HostGuard:
    """ASGI middleware that answers only loopback host names and those that the operator named.

    A page of another site can make a browser send requests to a loopback address under a name of
    its own (DNS rebinding); the Host header gives it away. Where everybody signs in, that page has
    no cookie of the name that it uses: other names are refused only if some were named.

    Parameters
    ----------
    app : ASGI application
    allowed_hosts : collection of str
        Host names answered in addition to the loopback ones.
    require_sign_in : bool
    """

    def __init__(
        self, app: ASGIApp, allowed_hosts: Collection[str] = (), *, require_sign_in: bool = False
    ) -> None:
        self.app = app
        self.require_sign_in = require_sign_in
        self.allowed_hosts = frozenset(name.lower() for name in allowed_hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it for its host."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        names = {name for name, _ in scope["headers"]}
        forwarded = None
        if not names.isdisjoint(_FORWARDED):
            forwarded = next(name for name in FORWARDED_HEADERS if name.encode() in names)
        hosts = Headers(scope=scope).getlist("host")
        app: ASGIApp = self.app
        if len(hosts) != 1 or not self._answers(hosts[0]):
            app = problem(
                "host.refused",
                "Only loopback host names are answered, and those in PACELINE_ALLOWED_HOSTS.",
            )
        elif forwarded is not None and not self.require_sign_in:
            app = problem("host.forwarded", f"The request carries {forwarded}.")
        await app(scope, receive, send)

    def _answers(self, host: str) -> bool:
        name = host_name(host)
        if name is None:
            return False
        anyone = self.require_sign_in and not self.allowed_hosts
        return anyone or name in self.allowed_hosts or is_loopback(name)


class CrossSiteGuard:
    """ASGI middleware that refuses unsafe methods from pages of another origin.

    Browsers say where a request comes from; programs that are no browsers send neither header.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it for where it comes from."""
        app: ASGIApp = self.app
        if scope["type"] == "http" and scope["method"] not in SAFE_METHODS:
            headers = Headers(scope=scope)
            site, origin = headers.get("sec-fetch-site"), headers.get("origin")
            if (site is not None and site != "same-origin") or (
                origin is not None and not _same_host(origin, headers.get("host", ""))
            ):
                app = problem("csrf.cross_site", "The request comes from a page of another site.")
        await app(scope, receive, send)


class EncodingGuard:
    """ASGI middleware that refuses addresses whose bytes are not UTF-8.

    The server puts a sign in place of what it cannot decode: two jobs would have one name.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it for its address."""
        app: ASGIApp = self.app
        if scope["type"] == "http":
            try:
                for part in (scope["raw_path"], scope["query_string"]):
                    unquote_to_bytes(part).decode()
            except UnicodeDecodeError:
                app = problem("address.not_utf8", "The address holds bytes that are not UTF-8.")
        await app(scope, receive, send)


def _same_host(origin: str, host: str) -> bool:
    # The scheme is left out: behind a proxy that ends TLS the two differ.
    return bool(host) and urlsplit(origin).netloc.lower() == host.lower()


# plotly.js draws pixel for pixel under the first four lines: the hash is that of the empty style
# element which it inserts and then fills through the CSS object model. WebGL traces need eval.
CONTENT_SECURITY_POLICY: Final = "; ".join(  # noqa: FLY002 - one directive a line
    (
        "script-src 'self'",
        "style-src 'self' 'sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU='",
        "style-src-attr 'unsafe-inline'",
        "img-src 'self' data: blob:",
        "default-src 'self'",
        "object-src 'none'",
        "base-uri 'none'",
        "form-action 'self'",
        "frame-ancestors 'none'",
    )
)

SECURITY_HEADERS: Final[Mapping[str, str]] = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


def security_headers(settings: Settings) -> Mapping[str, str]:
    """Return the headers of every response.

    Where people come over TLS, as the settings say, browsers are told to come in no other way from
    then on (RFC 6797). Never else: they could not come back to a server without TLS.
    """
    if not settings.served_over_tls:
        return SECURITY_HEADERS
    # Of this host name alone: others below it are none of ours.
    strictly = f"max-age={settings.hsts_max_age_s}"
    return {**SECURITY_HEADERS, "Strict-Transport-Security": strictly}


class SecurityHeaders:
    """ASGI middleware that adds headers to every response.

    Parameters
    ----------
    app : ASGI application
    headers : mapping of str to str
    """

    def __init__(self, app: ASGIApp, headers: Mapping[str, str]) -> None:
        self.app = app
        self.headers = headers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request with the headers."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(self.headers)
            await send(message)

        await self.app(scope, receive, send_with_headers)


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
        """Return the value of the header `Allow` for an address."""
        methods = set(self.literal.get(path, ()))
        if not methods:
            for route in self.routes:
                if route.path_regex.match(path):
                    methods |= route.methods or set()
        if "GET" in methods:
            methods.add("HEAD")
        return ", ".join(sorted(methods))


# A thousand senders of a flush are let in at once by the event loop: it reads the head of each, and
# a page that is asked for, or whose thread is done, waits for all of them. So does its thread for
# the interpreter. Here a few bodies begin with each turn of the loop, and fewer while a page is
# made.


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
    """Middleware that admits requests with bodies in turns; used on one event loop only."""

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
