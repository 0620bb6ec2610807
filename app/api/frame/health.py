"""Whether the server lives, and whether all that it needs is there."""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING

from fastapi import APIRouter
from fastapi.responses import JSONResponse
from pydantic import BaseModel

from app.door.guard import GuardedRoute
from app.services.installation.status import readiness

if TYPE_CHECKING:
    from app.services.container import Container


class Health(BaseModel):
    """The process answers: which one it is, and of which version."""

    status: str
    instance: str
    version: str


class PartBody(BaseModel):
    """One thing that the server needs."""

    ready: bool
    detail: str


class Readiness(BaseModel):
    """All parts by name; `ready` if each of them is."""

    ready: bool
    parts: dict[str, PartBody]


def router(container: Container) -> APIRouter:
    """Return the routes that orchestrators ask."""
    routes = APIRouter(route_class=GuardedRoute, tags=["operation"])
    health = Health(
        status="ok", instance=container.settings.instance_name, version=version("paceline")
    )

    @routes.get("/healthz", summary="Whether the process answers")
    async def healthz() -> Health:
        return health

    @routes.get(
        "/readyz",
        summary="Whether database, schema, broker and workers are there",
        response_model=Readiness,
        responses={503: {"model": Readiness, "description": "A part is not ready"}},
    )
    def readyz() -> JSONResponse:
        parts = {
            part.name: PartBody(ready=part.ready, detail=part.detail)
            for part in readiness(container)
        }
        body = Readiness(ready=all(part.ready for part in parts.values()), parts=parts)
        return JSONResponse(body.model_dump(), 200 if body.ready else 503)

    return routes
