"""What a few words lead to."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import BaseModel

from app.api.frame.routers import api_router
from app.auth.here import Here
from app.services.alerts.filters import MAX_CHARACTERS
from app.services.search.find import Found, find


class SearchBody(BaseModel):
    """What was found, a handful of each kind."""

    found: list[Found]


def router() -> APIRouter:
    """Return the route of the search."""
    routes = api_router("sessions", "/api/v1")

    @routes.get("/search", summary="Jobs, sessions, hosts and incidents by words")
    def get_found(
        container: Here,
        q: Annotated[
            str,
            Query(
                max_length=MAX_CHARACTERS,
                pattern=r"^[^\x00]*$",
                description="Words, all of which must be in a name; numbers of sessions; ids.",
            ),
        ] = "",
    ) -> SearchBody:
        with container.reading() as tx:
            found = find(tx, q)
        return SearchBody(found=found)

    return routes
