"""Guards of host, site and encoding: they refuse requests before any route sees them."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final
from urllib.parse import unquote_to_bytes, urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from app.api.frame.problems import problem
from app.auth.addresses import host_name, is_loopback

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
    no cookie of the name that it uses: other names are refused only where some were named.

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
