"""The pages of incidents and of channels."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Final

from fastapi import APIRouter
from fastapi.responses import Response

from app.dashboard.alerts.channels import channels_page
from app.dashboard.alerts.incidents import incidents_page, most_pressing
from app.errors import NotFoundError
from app.services.alerts.channel_views import undelivered
from app.services.alerts.channels import get_channel, list_channels
from app.services.alerts.deliver import apprise_is_usable
from app.services.alerts.views import incident_life, incidents, tallies

if TYPE_CHECKING:
    from app.dashboard.routes import Pages
    from app.services.container import Container

# Of a page's number in an address; more is no number of a page.
MAX_DIGITS: Final = 6


def add_alert_pages(routes: APIRouter, container: Container, pages: Pages) -> None:
    """Add the pages of alerts to the dashboard."""
    _add_incidents(routes, container, pages)
    _add_channels(routes, container, pages)


def _add_incidents(routes: APIRouter, container: Container, pages: Pages) -> None:
    def show(asked: uuid.UUID | None, number: str) -> Response:
        found = incidents(container)
        chosen = asked or most_pressing(found)
        life = None if chosen is None else incident_life(container, chosen)
        page = incidents_page(
            found,
            life,
            list_channels(container),
            tallies(container),
            asked=asked is not None,
            number=int(number) if number.isdecimal() and len(number) <= MAX_DIGITS else 1,
        )
        return pages.render("alerts/incidents.html", page=page, now=page.now)

    @routes.get("/incidents")
    def incidents_route(page: str = "1") -> Response:
        return show(None, page)

    @routes.get("/incidents/{incident}")
    def incident_route(incident: str, page: str = "1") -> Response:
        try:
            return show(uuid.UUID(incident), page)
        except (ValueError, NotFoundError):
            return pages.not_found(f"incident {incident}")


def _add_channels(routes: APIRouter, container: Container, pages: Pages) -> None:
    def show(asked: uuid.UUID | None = None, *, adding: bool = False) -> Response:
        with container.uow() as tx:
            now = tx.now
        page = channels_page(
            list_channels(container),
            tallies(container),
            undelivered(container, asked),
            now,
            asked=None if asked is None else get_channel(container, asked),
            adding=adding,
            apprise=apprise_is_usable(container.settings),
        )
        return pages.render("alerts/channels.html", page=page, now=page.now)

    @routes.get("/channels")
    def channels_route() -> Response:
        return show()

    @routes.get("/channels/new")
    def new_channel_route() -> Response:
        return show(adding=True)

    @routes.get("/channels/{channel}")
    def channel_route(channel: str) -> Response:
        try:
            return show(uuid.UUID(channel))
        except (ValueError, NotFoundError):
            return pages.not_found(f"channel {channel}")
