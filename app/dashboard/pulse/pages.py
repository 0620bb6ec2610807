"""What of a job's page changes while it runs, and the files of its pulse."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import APIRouter
from fastapi.responses import Response

from app.auth.here import Here
from app.dashboard.pulse.exports import FILES
from app.dashboard.pulse.view import live_view
from app.dashboard.ui.csv_text import csv_file, one_of
from app.errors import NotFoundError
from app.services.pulse.live import live_job

if TYPE_CHECKING:
    from app.dashboard.pages import Pages


def add_pulse_pages(routes: APIRouter, pages: Pages) -> None:
    """Add what pages fetch of a job's pulse to the dashboard."""

    @routes.get("/jobs/{job}/live")
    def live_route(container: Here, job: str) -> Response:
        with pages.reading(container) as (tx, nav):
            found = live_job(tx, job)
        if found is None:
            return pages.not_found(f"pulse of {job}", nav)
        return pages.render("pulse/parts.html", nav, live=live_view(found))

    @routes.get("/jobs/{job}/pulse/{name}.csv")
    def file_route(container: Here, job: str, name: str) -> Response:
        make = one_of(FILES, name)
        with container.reading() as tx:
            found = live_job(tx, job)
        if found is None:
            raise NotFoundError(f"There is no pulse of {job}.")
        return csv_file(f"paceline-pulse-{name}.csv", make(found))
