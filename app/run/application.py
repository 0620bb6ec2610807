"""The web application, assembled from routes, error handlers and middleware."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import AsyncIterator
from importlib.metadata import version

from fastapi import APIRouter, FastAPI
from starlette_compress import CompressMiddleware, add_compress_type, remove_compress_type

from app.access import api as access
from app.access.guard import guard, writing_refusals
from app.actions import api as actions
from app.actions import slack
from app.fixes import api as fixes
from app.hangs import api as hangs
from app.hosts import api as hosts
from app.hosts import api as probes
from app.incidents import api as alerts
from app.incidents.everywhere import navigation
from app.installation import api as docs
from app.installation import api as operation
from app.installation import health, metrics
from app.installation.open_telemetry import ExportCounts, RequestSpans, sending_metrics
from app.jobs import api as fleet
from app.jobs import api as history
from app.jobs import api as jobs
from app.jobs import api as notes
from app.jobs import api as search
from app.jobs import api as views
from app.mcp.over_http import tools_over_http
from app.plans import api as plans
from app.plans.specs.spec import WrittenRequest
from app.platform.container import Container
from app.platform.resources import Place
from app.pulse import api as pulse
from app.pulse import api as pulse_reading
from app.pulse.body import PulseBody
from app.retention import api as retention
from app.run import page_routes as dashboard
from app.sessions.api import chunks, events
from app.sessions.api import chunks as attempts
from app.sessions.api import read as compare
from app.sessions.api import read as sessions
from app.sessions.api import read as what_if
from app.sessions.api import send as folders
from app.sessions.api import send as ingest
from app.sessions.api.intake import Ingest
from app.sessions.api.live import LiveStates
from app.sessions.api.read import report_schemas
from app.sessions.recordings.listing import UPLOADED_BYTES
from app.tensor import api as advice
from app.tensor import api as loop
from app.tensor import api as switch
from app.tensor.api import Waiting
from app.tensor.spec import WrittenAck, WrittenMitigation, WrittenSwitch, WrittenTimings
from app.web import problems
from app.web.assets import installed_assets
from app.web.bodies import BodyLimits, Pace
from app.web.guards import (
    CrossSiteGuard,
    EncodingGuard,
    FramingGuard,
    HostGuard,
    Methods,
    PagesFirst,
    SecurityHeaders,
    security_headers,
)
from app.web.pages import ErrorPages, Pages
from app.web.project_paths import ProjectPaths


def create_app(container: Container, place: Place | None = None) -> FastAPI:
    """Return the web application for a container.

    ``state.closing``, a function without parameters for any thread, ends the event streams: a
    server calls it when it begins to stop, because streams never end by themselves.
    ``state.settings`` contain the limits of a server's connections.

    Parameters
    ----------
    container : Container
        The caller closes it.
    place : Place, optional
        The place of this process among the server's processes, if there are several.
    """
    for media_type in ("text/csv", problems.MEDIA_TYPE):
        add_compress_type(media_type)
    # An event stream sends a few bytes now and then as long as a page is open, which is not worth
    # the memory of a compressor.
    remove_compress_type("text/event-stream")

    settings = container.settings
    live = LiveStates(container)
    counted = metrics.Exposition(container, place)
    counted.event_streams.set_function(lambda: live.streams)
    counted.registry.register(ExportCounts())
    # One process of a server sends the metrics of all its processes.
    sends_metrics = place is None or place.number == 0

    @contextlib.asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        with sending_metrics(counted.exposed) if sends_metrics else contextlib.nullcontext():
            async with live.running(), writing_refusals(container):
                yield

    app = FastAPI(
        title="Paceline",
        description="Straggler monitor for LLM training.",
        version=version("paceline"),
        openapi_url=docs.OPENAPI_URL,
        # The framework's documentation pages load files from another host.
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
        # The framework would redirect to an address made from the Host header, without TLS and,
        # below `/p/{project}/`, outside of the project.
        redirect_slashes=False,
    )
    docs.add_schemas(app, report_schemas)
    waiting = Waiting()

    def close_soon() -> None:
        live.close_soon()
        waiting.close_soon()

    app.state.closing = close_soon
    app.state.settings = settings
    # State that routes read from the application of a request.
    app.state.ingest = Ingest(container, counted, place)
    app.state.waiting = waiting
    pages, fixed = _of_the_process()
    routers = (
        *fixed,
        events.router(live),
        health.router(container),
        metrics.router(counted),
        dashboard.own_router(container, pages),
        slack.router(container),
        *tools_over_http(),
    )
    # Appended directly: `include_router` would construct each route a second time.
    app.router.routes.extend(route for router in routers for route in router.routes)

    guard(app, container)
    bodies = (
        *(WrittenRequest, WrittenMitigation, WrittenTimings, WrittenAck, WrittenSwitch),
        PulseBody,
    )
    docs.publish(app, *bodies)
    problems.install(app)
    # The middleware that is added last is the outermost.
    app.add_middleware(
        BodyLimits,
        pace=Pace(settings.ingest_idle_timeout_s, settings.min_body_bytes_per_s),
    )
    # Answers are compressed in the event loop: a megabyte takes 4 ms with zstd, 10 ms with brotli.
    # ErrorPages is inside, because it cannot read compressed bodies, and once more outside of the
    # guards, for their refusals.
    app.add_middleware(ErrorPages, pages=pages)
    app.add_middleware(CompressMiddleware)
    app.add_middleware(Methods, routes=[route for router in routers for route in router.routes])
    app.add_middleware(ProjectPaths)
    # Outside of the middleware that rewrites paths, because it checks the bytes as received.
    app.add_middleware(EncodingGuard)
    app.add_middleware(CrossSiteGuard)
    app.add_middleware(
        HostGuard,
        allowed_hosts=settings.allowed_hosts,
        require_sign_in=settings.require_sign_in,
    )
    app.add_middleware(FramingGuard)
    app.add_middleware(ErrorPages, pages=pages)
    app.add_middleware(SecurityHeaders, headers=security_headers(settings))
    app.add_middleware(PagesFirst)
    app.add_middleware(metrics.RequestMetrics, metrics=counted)
    app.add_middleware(RequestSpans)
    return app


@functools.cache
def _of_the_process() -> tuple[Pages, tuple[APIRouter, ...]]:
    """Return the parts that all applications of a process share: pages, and stateless routes.

    These routes read container and application from the request; creating all 230 routes takes
    half a second.
    """
    assets = installed_assets()
    pages = Pages(assets, navigation, UPLOADED_BYTES)
    routers = (
        # The most frequent requests come first, because routes are searched in this order.
        chunks.router(),
        pulse.router(),
        ingest.router(),
        folders.folders_router(),
        hangs.router(),
        pulse_reading.reading_router(),
        attempts.attempts_router(),
        sessions.router(),
        what_if.what_if_router(),
        compare.compare_router(),
        hosts.router(),
        probes.probes_router(),
        actions.router(),
        fixes.router(),
        fleet.router(),
        jobs.jobs_router(),
        notes.notes_router(),
        views.views_router(),
        history.history_router(),
        operation.operation_router(),
        search.search_router(),
        plans.router(),
        advice.advice_router(),
        alerts.router(),
        access.router(),
        retention.router(),
        dashboard.router(assets, pages),
        # Before routes with a parameter in the place of this path's literal part.
        switch.switch_router(),
        loop.router(),
        docs.router(),
    )
    return pages, routers
