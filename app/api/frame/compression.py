"""Compressed responses: brotli where the client takes it, else gzip."""

from __future__ import annotations

from typing import Final

import anyio
import brotli
from starlette.datastructures import Headers
from starlette.middleware.gzip import (
    DEFAULT_EXCLUDED_CONTENT_TYPES,
    GZipMiddleware,
    IdentityResponder,
)
from starlette.types import ASGIApp, Receive, Scope, Send

# Smaller answers fit one packet either way.
MINIMUM_BYTES: Final = 500
# Above this a body is compressed in a thread: 128 KiB take milliseconds.
THREAD_BYTES: Final = 128 * 1024
# Answers are compressed as they go out; the levels above cost far more than they save then.
BROTLI_QUALITY: Final = 4
GZIP_LEVEL: Final = 6


class Compression:
    """ASGI middleware that compresses responses; event streams and compressed ones stay as is."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self.gzip = GZipMiddleware(app, MINIMUM_BYTES, GZIP_LEVEL)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, compressed where that pays."""
        if scope["type"] == "http" and _takes_brotli(Headers(scope=scope)):
            await _BrotliResponder(self.app)(scope, receive, send)
        else:
            await self.gzip(scope, receive, send)


class _BrotliResponder(IdentityResponder):
    content_encoding = "br"

    def __init__(self, app: ASGIApp) -> None:
        super().__init__(app, MINIMUM_BYTES, exclude_content_types=DEFAULT_EXCLUDED_CONTENT_TYPES)
        self.compressor: brotli.Compressor | None = None

    async def apply_compression(self, body: bytes, *, more_body: bool) -> bytes:
        if self.compressor is None:
            self.compressor = brotli.Compressor(quality=BROTLI_QUALITY)
        if len(body) < THREAD_BYTES:
            return _compress(self.compressor, body, more_body=more_body)
        return await anyio.to_thread.run_sync(
            lambda compressor: _compress(compressor, body, more_body=more_body), self.compressor
        )


def _compress(compressor: brotli.Compressor, body: bytes, *, more_body: bool) -> bytes:
    start: bytes = compressor.process(body)
    end: bytes = compressor.flush() if more_body else compressor.finish()
    return start + end


def _takes_brotli(headers: Headers) -> bool:
    for item in headers.get("accept-encoding", "").split(","):
        name, _, parameters = item.partition(";")
        if name.strip().lower() == "br":
            return parameters.replace(" ", "").lower() not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return False
