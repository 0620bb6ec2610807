"""The page of two sessions side by side."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from fastapi import APIRouter
from fastapi.responses import Response

from app.auth.here import Here
from app.dashboard.compare.exports import EXPORTS, OF_TIMES
from app.dashboard.compare.times import bounds_of, times_page
from app.dashboard.compare.view import compare_page
from app.dashboard.ui.address import QueryText
from app.dashboard.ui.csv_text import csv_file, one_of
from app.errors import NotFoundError
from app.services.compare.ranges import compare_times
from app.services.compare.read import compare_sessions, latest_two, sessions_of_incident

if TYPE_CHECKING:
    from app.dashboard.pages import Pages
    from app.db.unit_of_work import Reads
    from app.services.compare.read import Comparison


def add_compare_pages(routes: APIRouter, pages: Pages) -> None:
    """Add the page of a comparison to the dashboard."""

    @routes.get("/compare")
    def compare_route(
        container: Here,
        *,
        a: QueryText = "",
        b: QueryText = "",
        incident: QueryText = "",
        job: QueryText = "",
    ) -> Response:
        with pages.reading(container) as (tx, nav):
            if not (a or b or incident or job):
                return pages.render("compare/choose.html", nav, now=tx.now)
            try:
                found = _found(tx, a, b, incident, job)
            except (ValueError, NotFoundError):
                return pages.not_found(_what(a, b, incident, job), nav)
        page = compare_page(found)
        return pages.render("compare/page.html", nav, page=page, now=found.now)

    @routes.get("/compare/times")
    def compare_times_route(  # noqa: PLR0913 - what an address may ask for
        container: Here,
        *,
        job: QueryText = "",
        a_from: QueryText = "",
        a_to: QueryText = "",
        b_from: QueryText = "",
        b_to: QueryText = "",
    ) -> Response:
        with pages.reading(container) as (tx, nav):
            if not job:
                return pages.render("compare/choose.html", nav, now=tx.now)
            bounds = bounds_of((a_from, a_to, b_from, b_to), tx.now)
            try:
                found = compare_times(tx, job, *bounds)
            except NotFoundError:
                return pages.not_found(f"job {job}", nav)
        page = times_page(found)
        return pages.render("compare/times.html", nav, page=page, now=found.now)

    @routes.get("/compare/{name}.csv")
    def compare_file_route(container: Here, name: str, a: uuid.UUID, b: uuid.UUID) -> Response:
        make = one_of(EXPORTS, name)
        with container.reading() as tx:
            found = compare_sessions(tx, a, b)
        file_name = f"paceline-compare-{found.a.row.number}-{found.b.row.number}-{name}.csv"
        return csv_file(file_name, make(found))

    @routes.get("/compare/times/{name}.csv")
    def compare_times_file_route(  # noqa: PLR0913 - what an address may ask for
        container: Here,
        name: str,
        job: str,
        *,
        a_from: QueryText = "",
        a_to: QueryText = "",
        b_from: QueryText = "",
        b_to: QueryText = "",
    ) -> Response:
        make = one_of(OF_TIMES, name)
        with container.reading() as tx:
            bounds = bounds_of((a_from, a_to, b_from, b_to), tx.now)
            found = compare_times(tx, job, *bounds)
        return csv_file(f"paceline-compare-times-{name}.csv", make(found))


def _found(tx: Reads, a: str, b: str, incident: str, job: str) -> Comparison:
    """Return what an address asks for: two sessions, an incident's, or the last two of a job.

    Raises
    ------
    ValueError
        If what it names is no id.
    NotFoundError
    """
    if incident:
        first, second, over = sessions_of_incident(tx, uuid.UUID(incident))
        return compare_sessions(tx, first, second, over)
    if job and not (a and b):
        return compare_sessions(tx, *latest_two(tx, job))
    return compare_sessions(tx, uuid.UUID(a), uuid.UUID(b))


def _what(a: str, b: str, incident: str, job: str) -> str:
    if incident:
        return f"incident {incident} with sessions before and after it"
    if job:
        return f"pair of sessions with a verdict of job {job}"
    return f"pair of sessions {a or 'a'} and {b or 'b'} to compare"
