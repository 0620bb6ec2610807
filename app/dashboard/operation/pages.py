"""The pages of whoever operates this: what arrives, and how the installation is doing."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Final

from fastapi import APIRouter
from fastapi.responses import Response

from app.auth.here import Here
from app.dashboard.operation.exports import INGEST, INSTALLATION
from app.dashboard.operation.words import ingest_heading, installation_heading
from app.dashboard.ui.address import Address
from app.dashboard.ui.csv_text import csv_file, one_of
from app.dashboard.ui.ranges import range_choices
from app.dashboard.ui.time_query import TimeQueryParam
from app.dashboard.usage.pages import quota_lines
from app.services.ingest.read import ingest_health
from app.services.installation.overview import overview

if TYPE_CHECKING:
    from app.dashboard.pages import Pages

_DAY: Final = timedelta(days=1)


def add_operation_pages(routes: APIRouter, pages: Pages) -> None:
    """Add the pages of ingest and of the installation to the dashboard."""

    @routes.get("/ingest")
    def ingest_route(container: Here, time: TimeQueryParam) -> Response:
        about = time.about()
        with pages.reading(container) as (tx, nav):
            found = ingest_health(tx, about.since(tx.now) or tx.now - _DAY)
        return pages.render(
            "operation/ingest.html",
            nav,
            found=found,
            now=found.now,
            heading=ingest_heading(found, about),
            range=range_choices(about),
            about=about,
            query=Address("", time.parameters).but(),
        )

    @routes.get("/ingest/{name}.csv")
    def ingest_file_route(container: Here, name: str, time: TimeQueryParam) -> Response:
        make = one_of(INGEST, name)
        with container.reading() as tx:
            found = ingest_health(tx, time.about().since(tx.now) or tx.now - _DAY)
        return csv_file(f"paceline-ingest-{name}.csv", make(found))

    @routes.get("/installation")
    def installation_route(container: Here) -> Response:
        with pages.reading(container) as (_, nav), container.everywhere().reading() as tx:
            found = overview(container, tx)
        return pages.render(
            "operation/installation.html",
            nav,
            found=found,
            now=found.now,
            heading=installation_heading(found),
            quotas={name: quota_lines(use, container.settings) for name, use in found.uses.items()},
        )

    @routes.get("/installation/{name}.csv")
    def installation_file_route(container: Here, name: str) -> Response:
        make = one_of(INSTALLATION, name)
        with container.everywhere().reading() as tx:
            found = overview(container, tx)
        return csv_file(f"paceline-installation-{name}.csv", make(found, container.settings))
