"""The page of the fleet's report, and its tables as files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fastapi import APIRouter
from fastapi.responses import Response

from app.auth.here import Here
from app.dashboard.report.exports import EXPORTS
from app.dashboard.report.view import report_page
from app.dashboard.ui.address import Address
from app.dashboard.ui.csv_text import csv_file, one_of
from app.dashboard.ui.time_query import TimeQueryParam
from app.services.fleet_report.read import FleetReport, fleet_report

if TYPE_CHECKING:
    from app.dashboard.pages import Pages
    from app.dashboard.ui.ranges import Range
    from app.db.unit_of_work import Reads

# What a report is about where its address does not say.
WEEK: Final = "7d"


def add_report_pages(routes: APIRouter, pages: Pages) -> None:
    """Add the fleet's report to the dashboard."""

    @routes.get("/report")
    def report_route(container: Here, time: TimeQueryParam) -> Response:
        about = time.about(WEEK)
        with pages.reading(container) as (tx, nav):
            found = _report(tx, about)
        page = report_page(found, about, Address("/report", time.parameters))
        return pages.render("report/page.html", nav, page=page, now=found.now)

    @routes.get("/report/{name}.csv")
    def report_file_route(container: Here, name: str, time: TimeQueryParam) -> Response:
        make = one_of(EXPORTS, name)
        with container.reading() as tx:
            found = _report(tx, time.about(WEEK))
        return csv_file(f"paceline-report-{name}.csv", make(found))


def _report(tx: Reads, about: Range) -> FleetReport:
    return fleet_report(tx, about.since(tx.now), about.end)
