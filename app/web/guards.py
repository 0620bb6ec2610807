"""Middleware: guards of host, origin and encoding, security headers, methods, page precedence."""

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

# Headers that a proxy adds. Without sign-in, every peer that reaches the server has all rights, so
# requests that a proxy forwards from elsewhere are refused.
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
# Header names as bytes in lower case, as in a request.
_FORWARDED: Final = frozenset(name.encode() for name in FORWARDED_HEADERS)


# Paths that are answered under any host name, as their answers are not secret.
OF_HEALTH: Final = frozenset({"/healthz", "/readyz"})


class HostGuard:
    """ASGI middleware that accepts only loopback host names and those in the settings.

    Routes of health are answered under any name.

    A page of another site can make a browser send requests to a loopback address under the site's
    own host name (DNS rebinding), which the Host header reveals. If sign-in is required, the
    browser has no session cookie for this name, so other names are refused only if the settings
    name allowed hosts.

    Parameters
    ----------
    app : ASGI application
    allowed_hosts : collection of str
        Host names that are accepted in addition to loopback names.
    require_sign_in : bool
    """

    def __init__(
        self, app: ASGIApp, allowed_hosts: Collection[str] = (), *, require_sign_in: bool = False
    ) -> None:
        self.app = app
        self.require_sign_in = require_sign_in
        self.allowed_hosts = frozenset(name.lower() for name in allowed_hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it because of its Host header."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        names = {name for name, _ in scope["headers"]}
        forwarded = None
        if not names.isdisjoint(_FORWARDED):
            forwarded = next(name for name in FORWARDED_HEADERS if name.encode() in names)
        hosts = Headers(scope=scope).getlist("host")
        app: ASGIApp = self.app
        if scope["path"] in OF_HEALTH:
            # A load balancer requests them by address, or without a host.
            pass
        elif len(hosts) != 1 or not self._answers(hosts[0]):
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

    Browsers send the origin of a request in a header; other programs send no such header.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it because of its origin."""
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
    """ASGI middleware that refuses paths and queries whose bytes are not UTF-8.

    The server replaces bytes that it cannot decode by a placeholder, so two jobs could get the same
    name.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it because of its encoding."""
        app: ASGIApp = self.app
        if scope["type"] == "http":
            try:
                for part in (scope["raw_path"], scope["query_string"]):
                    unquote_to_bytes(part).decode()
            except UnicodeDecodeError:
                app = problem("address.not_utf8", "The address holds bytes that are not UTF-8.")
        await app(scope, receive, send)


class FramingGuard:
    """ASGI middleware that refuses a request whose end a proxy may see elsewhere than this server.

    Both Content-Length and Transfer-Encoding, or Transfer-Encoding in HTTP/1.0, can hide a second
    request in a body (RFC 9112, sections 6.1 and 6.3). The connection is closed.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it because the length of its body is ambiguous."""
        app: ASGIApp = self.app
        names = {name for name, _ in scope.get("headers", ())}
        if b"transfer-encoding" in names and (
            b"content-length" in names or scope["http_version"] == "1.0"
        ):
            app = problem(
                "body.ambiguous_length",
                "The request has a Transfer-Encoding, and a Content-Length or version 1.0.",
                headers={"Connection": "close"},
            )
        await app(scope, receive, send)


def _same_host(origin: str, host: str) -> bool:
    # Compare without the scheme, which differs behind a proxy that terminates TLS.
    return bool(host) and urlsplit(origin).netloc.lower() == host.lower()


# plotly.js needs the first four directives to draw the same pixels: the hash is that of the empty
# style element that plotly.js inserts and fills through the CSS object model. WebGL traces would
# need eval.
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
    """Return the headers that are added to every response.

    If the settings declare that the server is reached over TLS, browsers are instructed to use only
    TLS from then on (RFC 6797). Not otherwise, because browsers would then refuse a server without
    TLS.
    """
    if not settings.served_over_tls:
        return SECURITY_HEADERS
    # Without includeSubDomains, because subdomains of the host name may belong to other servers.
    strictly = f"max-age={settings.hsts_max_age_s}"
    return {**SECURITY_HEADERS, "Strict-Transport-Security": strictly}


class SecurityHeaders:
    """ASGI middleware that adds security headers to every response.

    Parameters
    ----------
    app : ASGI application
    headers : mapping of str to str
    """

    def __init__(self, app: ASGIApp, headers: Mapping[str, str]) -> None:
        self.app = app
        self.headers = headers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request with the security headers."""
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
    """ASGI middleware around the routes that answers HEAD and wrong methods correctly.

    The framework has three defects: its routes for GET refuse HEAD; its header `Allow` has the
    methods of only one route of a path; and a wrong method on a path without parameters matches a
    route with parameters, which then reports an invalid parameter.

    Parameters
    ----------
    app : ASGI application
    routes : iterable of BaseRoute
        All routes of the application, with the prefixes of their routers.
    """

    def __init__(self, app: ASGIApp, routes: Iterable[BaseRoute]) -> None:
        self.app = app
        self.routes = tuple(route for route in routes if isinstance(route, APIRoute))
        self.literal: dict[str, set[str]] = {}
        for route in self.routes:
            if not route.param_convertors:
                self.literal.setdefault(route.path, set()).update(route.methods or ())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request; HEAD like GET but without the body."""
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
                # Outer middleware counts requests by the route that is stored in the scope.
                scope.update({key: inner[key] for key in ("route",) if key in inner})
                await send(message)
                # A HEAD request for an endless stream has to end: after this message the client
                # counts as gone.
                await send({"type": "http.response.body"})

        app: ASGIApp = self.app
        if inner["method"] not in self.literal.get(path, {inner["method"]}):
            app = problem("http.method_not_allowed", "Method Not Allowed.")
        await app(inner, receive, send_allowed)

    def allowed(self, path: str) -> str:
        """Return the value of the header `Allow` for a path."""
        methods = set(self.literal.get(path, ()))
        if not methods:
            for route in self.routes:
                if route.path_regex.match(path):
                    methods |= route.methods or set()
        if "GET" in methods:
            methods.add("HEAD")
        return ", ".join(sorted(methods))


# If a thousand ranks flush at once, the event loop would admit all their requests at once and read
# the head of each, while requests for pages, and threads that render pages and need the
# interpreter, wait. Therefore only a few bodies begin in each turn of the event loop, and fewer
# while a page is rendered.


# Number of requests with bodies that are admitted in each turn of the event loop.
AT_ONCE: Final = 4
# Maximum time in seconds that such requests wait for pages that are being rendered. Together with
# `AT_ONCE` it guarantees that a process accepts 400 bodies a second, however many pages are
# requested.
WAIT_S: Final = 0.01
# Requests no longer wait for a page that takes longer than this time in seconds.
PAGE_S: Final = 1.0
# Paths for programs, which are not pages: their requests may last minutes.
OF_PROGRAMS: Final = ("/api/", "/mcp", "/metrics", "/healthz", "/readyz")
SENDS: Final = frozenset({"POST", "PUT"})
READS: Final = frozenset({"GET", "HEAD"})


class PagesFirst:
    """ASGI middleware that admits requests with bodies in turns; for a single event loop."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._turns: asyncio.Task[None] | None = None
        # Start time of each page that is being rendered; the earliest page is first.
        self._pages: dict[object, float] = {}
        self._made = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, after waiting for its turn if it has a body."""
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
                    # The waiting request may have been cancelled.
                    if not turn.done():
                        turn.set_result(None)
                # Let the admitted requests, and all other tasks that are ready, run first.
                await asyncio.sleep(0)
        finally:
            self._turns = None

    async def _pages_made(self) -> None:
        """Wait until all pages are rendered, but at most `WAIT_S`."""
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
