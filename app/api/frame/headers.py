"""Security headers of every response."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

if TYPE_CHECKING:
    from app.settings import Settings

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
