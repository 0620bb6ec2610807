"""Paceline's server with one route more, which stores a body without looking at it.

A process of its own, so that sender and server do not share an interpreter. Prints its address and
serves until its standard input ends.
"""

from __future__ import annotations

import sys
import tempfile
from typing import TYPE_CHECKING, Final

import anyio
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from app.access.models import DEFAULT_PROJECT_ID
from app.bootstrap import build
from app.platform.blobs import PART_BYTES, write_blob
from app.platform.logs import configure_logging
from app.platform.resources import answering
from app.platform.settings import Settings
from app.run.application import create_app
from app.run.http import HttpServer, address_of, listen
from app.web.bodies import arriving

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import IO

    from app.platform.container import Container

RAW_PATH: Final = "/bench/raw"


def raw_route(container: Container) -> Route:
    """Return the route that only stores: streamed to disk, then into the database."""

    def store(file: IO[bytes]) -> str:
        with container.within(DEFAULT_PROJECT_ID).uow() as tx:
            return str(write_blob(tx, _pieces(file)))

    async def post_raw(request: Request) -> Response:
        arriving(request).limit = container.settings.max_body_bytes
        with tempfile.TemporaryFile(dir=container.settings.data_dir, buffering=0) as file:
            pending = bytearray()
            async for chunk in request.stream():
                pending += chunk
                if len(pending) >= PART_BYTES:
                    await anyio.to_thread.run_sync(file.write, bytes(pending))
                    pending.clear()
            await anyio.to_thread.run_sync(file.write, bytes(pending))
            blob = await anyio.to_thread.run_sync(store, file)
        return JSONResponse({"blob": blob}, status_code=202)

    return Route(RAW_PATH, post_raw, methods=["POST"])


def _pieces(file: IO[bytes]) -> Iterator[bytes]:
    file.seek(0)
    while piece := file.read(PART_BYTES):
        yield piece


def main() -> None:
    """Serve with the settings of the environment."""
    settings = Settings()
    configure_logging(json=settings.log_json, level=settings.log_level)
    container = build(settings, application_name="paceline bench")
    app = create_app(container)
    # First: a page or a mount may match everything.
    app.router.routes.insert(0, raw_route(container))
    listener = listen(settings)
    server = HttpServer(app, listener)
    server.start(lambda: False)
    # As `paceline serve` does.
    answering()
    print(address_of(listener), flush=True)
    sys.stdin.read()
    server.stop()
    container.close()


if __name__ == "__main__":
    main()
