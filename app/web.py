"""The web application: routes, errors and guards put together. Nothing happens at import."""

from __future__ import annotations

import contextlib
import functools
from importlib.metadata import version
from typing import TYPE_CHECKING

from fastapi import FastAPI
from starlette_compress import CompressMiddleware, add_compress_type, remove_compress_type

from app.api import fixes, fleet, history, jobs, notes, operation, plans, views
from app.api.access import routes as access
from app.api.actions import routes as actions
from app.api.alerts import routes as alerts
from app.api.alerts import slack
from app.api.frame import docs, health, metrics, problems
from app.api.frame.bodies import BodyLimits, Pace
from app.api.frame.guards import CrossSiteGuard, EncodingGuard, HostGuard
from app.api.frame.headers import SecurityHeaders, security_headers
from app.api.frame.methods import Methods
from app.api.frame.pages_first import PagesFirst
from app.api.hangs import routes as hangs
from app.api.hosts import probes
from app.api.hosts import routes as hosts
from app.api.otlp.metrics import ExportCounts, sending_metrics
from app.api.otlp.requests import RequestSpans
from app.api.pulse import reading as pulse_reading
from app.api.pulse import routes as pulse
from app.api.retention import routes as retention
from app.api.sessions import attempts, chunks, compare, events, folders, search, what_if
from app.api.sessions import read as sessions
from app.api.sessions import send as ingest
from app.api.sessions.intake import Ingest
from app.api.sessions.live import LiveStates
from app.api.sessions.report_schema import report_schemas
from app.api.tensor import advice, loop, switch
from app.api.tensor.waiting import Waiting
from app.auth.guard import guard
from app.auth.project_paths import ProjectPaths
from app.auth.refusals import writing_refusals
from app.dashboard import routes as dashboard
from app.dashboard.error_pages import ErrorPages
from app.dashboard.pages import Pages
from app.dashboard.ui.assets import installed_assets
from app.inputs.plans.request import WrittenRequest
from app.inputs.pulse.body import PulseBody
from app.inputs.recordings.listing import UPLOADED_BYTES
from app.inputs.tensor.spec import WrittenMitigation
from app.inputs.tensor.timings import WrittenAck, WrittenSwitch, WrittenTimings
from app.mcp.over_http import tools_over_http
from app.services.alerts.navigation import navigation

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from fastapi import APIRouter

    from app.services.container import Container
    from app.system.shared import Place


def create_app(container: Container, place: Place | None = None) -> FastAPI:
    """Return the application of a container.

    Its ``state.closing``, a function without parameters for any thread, ends the event streams: a
    server calls it when it begins to stop, because streams never end by themselves. Its
    ``state.settings`` say what a server's connections may cost.

    Parameters
    ----------
    container : Container
        Stays the caller's to close.
    place : Place, optional
        This process's among those of the server, where it is not the only one.
    """
    for media_type in ("text/csv", problems.MEDIA_TYPE):
        add_compress_type(media_type)
    # A few bytes now and then, for as long as a page is open: not worth a compressor's memory.
    remove_compress_type("text/event-stream")

    settings = container.settings
    live = LiveStates(container)
    counted = metrics.Exposition(container, place)
    counted.event_streams.set_function(lambda: live.streams)
    counted.registry.register(ExportCounts())
    # Those of all processes, where there are several.
    sends_metrics = place is None or place.number == 0

    @contextlib.asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        with sending_metrics(counted.told) if sends_metrics else contextlib.nullcontext():
            async with live.running(), writing_refusals(container):
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
        # The framework would lead on to an address made of the Host header, without TLS and, below
        # `/p/{project}/`, out of the project.
        redirect_slashes=False,
    )
    docs.add_schemas(app, report_schemas)
    waiting = Waiting()

    def close_soon() -> None:
        live.close_soon()
        waiting.close_soon()

    app.state.closing = close_soon
    app.state.settings = settings
    # What routes find by the application of a request.
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
    # Not included: the framework would build each of them once more for it.
    app.router.routes.extend(route for router in routers for route in router.routes)

    guard(app, container)
    bodies = (
        *(WrittenRequest, WrittenMitigation, WrittenTimings, WrittenAck, WrittenSwitch),
        PulseBody,
    )
    docs.publish(app, *bodies)
    problems.install(app)
    # The last one added is the outermost.
    app.add_middleware(
        BodyLimits,
        pace=Pace(settings.ingest_idle_timeout_s, settings.min_body_bytes_per_s),
    )
    # Answers are compressed in the event loop: a megabyte takes 4 ms with zstd, 10 ms with brotli.
    # Within it, for it could not read what is compressed; and once more around the guards.
    app.add_middleware(ErrorPages, pages=pages)
    app.add_middleware(CompressMiddleware)
    app.add_middleware(Methods, routes=[route for router in routers for route in router.routes])
    app.add_middleware(ProjectPaths)
    # Outside of what rewrites paths: it looks at the bytes that came.
    app.add_middleware(EncodingGuard)
    app.add_middleware(CrossSiteGuard)
    app.add_middleware(
        HostGuard,
        allowed_hosts=settings.allowed_hosts,
        require_sign_in=settings.require_sign_in,
    )
    app.add_middleware(ErrorPages, pages=pages)
    app.add_middleware(SecurityHeaders, headers=security_headers(settings))
    app.add_middleware(PagesFirst)
    app.add_middleware(metrics.RequestMetrics, metrics=counted)
    app.add_middleware(RequestSpans)
    return app


@functools.cache
def _of_the_process() -> tuple[Pages, tuple[APIRouter, ...]]:
    """Return what all applications of a process share: pages, and routes without state.

    Each request brings its container and its application, so these routes need none; 230 of them
    take half a second.
    """
    assets = installed_assets()
    pages = Pages(assets, navigation, UPLOADED_BYTES)
    routers = (
        # What is asked for most is looked for first.
        chunks.router(),
        pulse.router(),
        ingest.router(),
        folders.router(),
        hangs.router(),
        pulse_reading.router(),
        attempts.router(),
        sessions.router(),
        what_if.router(),
        compare.router(),
        hosts.router(),
        probes.router(),
        actions.router(),
        fixes.router(),
        fleet.router(),
        jobs.router(),
        notes.router(),
        views.router(),
        history.router(),
        operation.router(),
        search.router(),
        plans.router(),
        advice.router(),
        alerts.router(),
        access.router(),
        retention.router(),
        dashboard.router(assets, pages),
        # Before what takes any name in its place.
        switch.router(),
        loop.router(),
        docs.router(),
    )
    return pages, routers
