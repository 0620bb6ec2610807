"""What a few words lead to."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict

from app.api.frame.routers import api_router
from app.door.here import Here
from app.services.alerts.filters import MAX_CHARACTERS
from app.services.search.find import find


class FoundBody(BaseModel):
    """Something that was found; `path` is that of its page, within the project."""

    model_config = ConfigDict(from_attributes=True)

    kind: Literal["job", "session", "host", "incident"]
    name: str
    note: str
    path: str


class SearchBody(BaseModel):
    """What was found, a handful of each kind."""

    found: list[FoundBody]


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
        return SearchBody(found=[FoundBody.model_validate(item) for item in found])

    return routes
