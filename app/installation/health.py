"""Routes of health (``/healthz``) and readiness (``/readyz``)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from importlib.metadata import version
from typing import Final, Generic, TypeVar

import anyio.to_thread
from anyio import CapacityLimiter
from fastapi import APIRouter
from fastapi.responses import JSONResponse
from pydantic import BaseModel

from app.access.guard import api_router
from app.installation.readiness import ReadinessProbe
from app.platform.container import Container

T = TypeVar("T")

# Each readiness check opens a connection to the broker, so more frequent requests get the previous
# result.
READY_FOR_S: Final = 1.0


class Health(BaseModel):
    """Liveness of the server process, with its instance name and version."""

    status: str
    instance: str
    version: str


class PartBody(BaseModel):
    """Readiness of one component that the server needs."""

    ready: bool
    detail: str


class Readiness(BaseModel):
    """Readiness of all components by name; `ready` is true if each component is ready."""

    ready: bool
    parts: dict[str, PartBody]


class Remembered(Generic[T]):
    """Cache of a value that is costly to compute and may be requested without a sign-in.

    Parameters
    ----------
    find : callable
        Computes the value in a thread; concurrent requests wait for the same computation.
    for_s : float
        Time for which a value is valid, s.
    clock : callable
        Returns seconds.
    """

    def __init__(
        self, find: Callable[[], T], for_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._find, self._for_s, self._clock = find, for_s, clock
        self._lock = asyncio.Lock()
        # A separate limiter: requests without a sign-in must not occupy the threads of other
        # requests.
        self._limiter = CapacityLimiter(1)
        self._known: tuple[float, T] | None = None

    async def now(self) -> T:
        """Return the value; compute it again if the cached value has expired."""
        async with self._lock:
            if self._known is None or self._known[0] <= self._clock():
                answer = await anyio.to_thread.run_sync(self._find, limiter=self._limiter)
                self._known = self._clock() + self._for_s, answer
            return self._known[1]


def router(container: Container) -> APIRouter:
    """Return the routes of health and readiness, for probes of orchestrators."""
    routes = api_router("operation")
    health = Health(
        status="ok", instance=container.settings.instance_name, version=version("paceline")
    )

    readiness = Remembered(ReadinessProbe(container).now, READY_FOR_S)

    @routes.get("/healthz", summary="Whether the process answers")
    async def healthz() -> Health:
        return health

    @routes.get(
        "/readyz",
        summary="Whether database, schema, broker and workers are there",
        response_model=Readiness,
        responses={503: {"model": Readiness, "description": "A part is not ready"}},
    )
    async def readyz() -> JSONResponse:
        parts = {
            part.name: PartBody(ready=part.ready, detail=part.detail)
            for part in await readiness.now()
        }
        body = Readiness(ready=all(part.ready for part in parts.values()), parts=parts)
        return JSONResponse(body.model_dump(), 200 if body.ready else 503)

    return routes
