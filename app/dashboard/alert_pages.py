"""The pages of incidents."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from fastapi import APIRouter
from fastapi.responses import Response

from app.dashboard.incident_view import incidents_page, most_pressing
from app.errors import NotFoundError
from app.services.alert_channels import list_channels
from app.services.alert_views import incident_life, incidents, tallies

if TYPE_CHECKING:
    from app.dashboard.routes import Pages
    from app.services.container import Container


def add_alert_pages(routes: APIRouter, container: Container, pages: Pages) -> None:
    """Add the pages of alerts to the dashboard."""

    def show(chosen: uuid.UUID | None) -> Response:
        found = incidents(container)
        chosen = chosen or most_pressing(found)
        life = None if chosen is None else incident_life(container, chosen)
        page = incidents_page(found, life, list_channels(container), tallies(container))
        return pages.render("incidents.html", page=page, now=page.now)

    @routes.get("/incidents")
    def incidents_route() -> Response:
        return show(None)

    @routes.get("/incidents/{incident}")
    def incident_route(incident: str) -> Response:
        try:
            return show(uuid.UUID(incident))
        except (ValueError, NotFoundError):
            return pages.not_found(f"incident {incident}")
