"""Saved views of the fleet over the API: a person's own ones, and any by its id."""

from __future__ import annotations

import uuid
from http import HTTPStatus
from typing import Annotated, Any

from fastapi import APIRouter, Response
from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from app.api.frame import problems
from app.api.frame.routers import api_router
from app.auth.here import Here
from app.services.fleet.views import (
    MAX_NAME_CHARACTERS,
    MAX_QUERY_CHARACTERS,
    View,
    change_view,
    delete_view,
    list_views,
    save_view,
    shared_view,
)

# The database takes no NUL.
_NO_NUL = r"^[^\x00]*$"
Name = Annotated[
    str,
    StringConstraints(
        strip_whitespace=True, min_length=1, max_length=MAX_NAME_CHARACTERS, pattern=_NO_NUL
    ),
]
AddressQuery = Annotated[
    str,
    StringConstraints(max_length=MAX_QUERY_CHARACTERS, pattern=_NO_NUL),
    Field(
        description="Parameters of the fleet's address; its page and tab are left out.",
        examples=["owner=ann&sort=-lost&range=7d"],
    ),
]


class NewViewBody(BaseModel):
    """A view to save."""

    model_config = ConfigDict(extra="forbid")

    name: Name
    query: AddressQuery


class ChangedViewBody(BaseModel):
    """What changes of a view; what is left out stays."""

    model_config = ConfigDict(extra="forbid")

    name: Name | None = None
    query: AddressQuery | None = None


class ViewsBody(BaseModel):
    """Views, by name."""

    views: list[View]


def router() -> APIRouter:
    """Return the routes of saved views."""
    routes = api_router("fleet", "/api/v1/views")
    taken: dict[int | str, dict[str, Any]] = {
        409: problems.described("There is a view of that name, or too many")
    }

    @routes.get("", summary="Your saved views of the fleet")
    def get_views(container: Here) -> ViewsBody:
        """Return the views of whoever asks; all who did not sign in have the same."""
        with container.reading() as tx:
            return ViewsBody(views=list_views(tx, container.principal))

    @routes.post(
        "", status_code=HTTPStatus.CREATED, summary="Save a view of the fleet", responses=taken
    )
    def post_view(container: Here, body: NewViewBody) -> View:
        """Keep a filter and an order under a name."""
        return save_view(container, body.name, body.query)

    @routes.get("/{view}", summary="A saved view, whoever saved it")
    def get_view(container: Here, view: uuid.UUID) -> View:
        """Return what the link `/views/{view}` leads to."""
        with container.reading() as tx:
            return shared_view(tx, view)

    @routes.patch("/{view}", summary="Rename or change a view", responses=taken)
    def patch_view(container: Here, view: uuid.UUID, body: ChangedViewBody) -> View:
        """Change a view of your own."""
        return change_view(container, view, name=body.name, query=body.query)

    @routes.delete("/{view}", status_code=HTTPStatus.NO_CONTENT, summary="Delete a view")
    def delete_one(container: Here, view: uuid.UUID) -> Response:
        """Delete a view of your own; its link leads nowhere from then on."""
        delete_view(container, view)
        return Response(status_code=HTTPStatus.NO_CONTENT)

    return routes
