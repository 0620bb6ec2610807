"""The routers of the API: guarded, one tag each, and every answer may be a problem."""

from __future__ import annotations

from fastapi import APIRouter

from app.api.frame.problems import described
from app.auth.guard import GuardedRoute


def api_router(tag: str, prefix: str = "") -> APIRouter:
    """Return a router without routes; the tag is the heading of its routes in the documentation."""
    return APIRouter(
        route_class=GuardedRoute,
        prefix=prefix,
        tags=[tag],
        responses={"default": described("A problem")},
    )
