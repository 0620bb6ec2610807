"""The web application: routes, errors and guards put together. Nothing happens at import."""

from __future__ import annotations

import contextlib
from importlib.metadata import version
from typing import TYPE_CHECKING

from fastapi import FastAPI
from starlette_compress import CompressMiddleware, add_compress_type, remove_compress_type

from app.api import plans
from app.api.alerts import routes as alerts
from app.api.frame import docs, health, metrics, problems
from app.api.frame.guards import CrossSiteGuard, HostGuard
from app.api.frame.headers import SecurityHeaders
from app.api.sessions import chunks, events, what_if
from app.api.sessions import read as sessions
from app.api.sessions import send as ingest
from app.api.sessions.intake import Ingest
from app.api.sessions.live import LiveStates
from app.api.sessions.report_schema import report_schemas
from app.dashboard import routes as dashboard
from app.inputs.plans.request import WrittenRequest

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from app.services.container import Container


def create_app(container: Container) -> FastAPI:
    """Return the application of a container.

    Its ``state.closing``, a function without parameters for any thread, ends the event streams: a
    server calls it when it begins to stop, because streams never end by themselves.

    Parameters
    ----------
    container : Container
        Stays the caller's to close.
    """
    for media_type in ("text/csv", problems.MEDIA_TYPE):
        add_compress_type(media_type)
    # A few bytes now and then, for as long as a page is open: not worth a compressor's memory.
    remove_compress_type("text/event-stream")

    live = LiveStates(container)
    counted = metrics.Exposition(container)
    counted.event_streams.set_function(lambda: live.streams)

    @contextlib.asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        async with live.running():
            yield

    app = FastAPI(
        title="Paceline",
        description="Straggler monitor for LLM training.",
        version=version("paceline"),
        openapi_url=docs.OPENAPI_URL,
        # The framework's pages come from another host.
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
        responses={"default": problems.described("A problem")},
    )
    docs.add_schemas(app, report_schemas)
    app.state.closing = live.close_soon

    taking = Ingest(container, counted)
    app.include_router(ingest.router(taking))
    app.include_router(chunks.router(taking))
    app.include_router(sessions.router(container))
    app.include_router(what_if.router(container))
    app.include_router(plans.router(container))
    app.include_router(events.router(live))
    app.include_router(alerts.router(container))
    app.include_router(health.router(container))
    app.include_router(metrics.router(counted))
    app.include_router(docs.router(app))
    app.include_router(dashboard.router(container))

    docs.publish(app, WrittenRequest)
    problems.install(app)
    # The last one added is the outermost.
    # Answers are compressed in the event loop: a megabyte takes 4 ms with zstd, 10 ms with brotli.
    app.add_middleware(CompressMiddleware)
    app.add_middleware(CrossSiteGuard)
    app.add_middleware(HostGuard, allowed_hosts=container.settings.allowed_hosts)
    app.add_middleware(SecurityHeaders)
    app.add_middleware(metrics.RequestMetrics, metrics=counted)
    return app
