"""The routes of all pages and static files, assembled from the routes of the subjects."""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Header
from fastapi.responses import HTMLResponse, PlainTextResponse, Response

from app.access.guard import GuardedRoute
from app.access.pages import add_access_pages
from app.access.sign_in_pages import add_sign_in
from app.actions.pages import add_action_pages
from app.hangs.pages import add_hang_pages
from app.hosts.pages.routes import add_host_pages
from app.incidents.pages.routes import add_alert_pages, add_rule_pages
from app.installation.documentation import Site, add_client, add_documentation
from app.installation.pages import add_operation_pages
from app.jobs.pages.report_routes import add_report_pages
from app.jobs.pages.routes import add_job_pages
from app.plans.pages.routes import add_plan_pages
from app.platform.container import Container
from app.pulse.pages import add_pulse_pages
from app.quotas.pages import add_usage_pages
from app.sessions.pages.compare import add_compare_pages
from app.sessions.pages.routes import add_session_pages
from app.tensor.pages.group import add_tensor_pages
from app.web.assets import Assets
from app.web.pages import Pages


def router(assets: Assets, pages: Pages) -> APIRouter:
    """Return the routes of the dashboard, which all applications of a process share."""
    routes = _router()
    add_job_pages(routes, pages)
    add_session_pages(routes, pages)
    add_pulse_pages(routes, pages)
    add_plan_pages(routes, pages)
    add_access_pages(routes, pages)
    add_alert_pages(routes, pages)
    add_tensor_pages(routes, pages)
    add_hang_pages(routes, pages)
    add_rule_pages(routes, pages)
    add_host_pages(routes, pages)
    add_action_pages(routes, pages)
    add_compare_pages(routes, pages)
    add_report_pages(routes, pages)
    add_operation_pages(routes, pages)
    add_usage_pages(routes, pages)

    @routes.get("/static/{address:path}")
    def static(address: str, accept_encoding: Annotated[str, Header()] = "") -> Response:
        asset = assets.find(address, accept_encoding)
        if asset is None:
            return PlainTextResponse(
                "There is no such file.", HTTPStatus.NOT_FOUND, {"Cache-Control": "no-store"}
            )
        return Response(asset.body, headers=asset.headers)

    return routes


def own_router(container: Container, pages: Pages) -> APIRouter:
    """Return the routes outside any project: sign-in, sign-out, documentation, the client."""
    routes = _router()
    add_sign_in(routes, container, pages)
    add_documentation(routes, pages, Site())
    add_client(routes, pages)
    return routes


def _router() -> APIRouter:
    return APIRouter(
        route_class=GuardedRoute, include_in_schema=False, default_response_class=HTMLResponse
    )
