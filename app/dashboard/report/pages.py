"""The page of the fleet's report, and its tables as files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fastapi import APIRouter
from fastapi.responses import Response

from app.auth.here import Here
from app.dashboard.report.exports import EXPORTS, figures_csv
from app.dashboard.report.query import ReportQueryParam
from app.dashboard.report.view import report_page
from app.dashboard.ui.address import Address
from app.dashboard.ui.csv_text import csv_file, one_of
from app.dashboard.ui.time_query import TimeQueryParam
from app.services.fleet_report.jobs import job_figures
from app.services.fleet_report.read import fleet_report

if TYPE_CHECKING:
    from app.dashboard.pages import Pages

# What a report is about where its address does not say.
WEEK: Final = "7d"
FIGURES: Final = "figures"


def add_report_pages(routes: APIRouter, pages: Pages) -> None:
    """Add the fleet's report to the dashboard."""

    @routes.get("/report")
    def report_route(container: Here, time: TimeQueryParam, query: ReportQueryParam) -> Response:
        about = time.about(WEEK)
        with pages.reading(container) as (tx, nav):
            found = fleet_report(tx, about.since(tx.now), about.end, query.filters)
        address = Address("/report", {**query.parameters, **time.parameters})
        page = report_page(found, about, address)
        return pages.render("report/page.html", nav, page=page, now=found.now)

    @routes.get("/report/{name}.csv")
    def report_file_route(
        container: Here, name: str, time: TimeQueryParam, query: ReportQueryParam
    ) -> Response:
        about = time.about(WEEK)
        with container.reading() as tx:
            asked = (tx, about.since(tx.now), about.end, query.filters)
            if name == FIGURES:
                table = figures_csv(job_figures(*asked))
            else:
                table = one_of(EXPORTS, name)(fleet_report(*asked))
        return csv_file(f"paceline-report-{name}.csv", table)
