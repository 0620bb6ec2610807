"""A job over time: its sessions, the events between them, and the changes that lasted."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query
from pydantic import AwareDatetime

from app.api.frame.routers import api_router
from app.auth.here import Here
from app.services.history.axis import JobAxis, job_axis
from app.services.history.notes import known_job


def router() -> APIRouter:
    """Return the route of a job's history."""
    routes = api_router("jobs", "/api/v1")

    @routes.get("/jobs/{job}/history", summary="A job over time")
    def get_history(
        container: Here,
        job: Annotated[str, Path(description="Name of the job.")],
        since: Annotated[AwareDatetime | None, Query(alias="from")] = None,
        until: Annotated[AwareDatetime | None, Query(alias="to")] = None,
    ) -> JobAxis:
        """Return what its sessions measured, what happened, and which changes lasted."""
        with container.reading() as tx:
            known_job(tx, job)
            return job_axis(tx, job, since=since, until=until)

    return routes
