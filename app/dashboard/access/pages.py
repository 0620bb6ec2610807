"""The page of access: tokens, projects, and who did what."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

from fastapi import APIRouter, Query
from fastapi.responses import Response

from app.access.principals import Right, Role
from app.auth.here import Here
from app.dashboard.access.exports import EXPORTS, incidents_csv
from app.dashboard.access.incidents import joined_page
from app.dashboard.access.view import access_page
from app.dashboard.ui.csv_text import csv_file, one_of
from app.services.access.audit import list_entries
from app.services.access.people import list_people
from app.services.access.projects import list_projects
from app.services.access.tokens import list_tokens
from app.services.alerts.everywhere import open_everywhere, readable
from app.services.usage.quotas import uses

if TYPE_CHECKING:
    from app.dashboard.pages import Pages

# What the page shows of the log, and what its own page does.
SHOWN: Final = 12
LISTED: Final = 200
# More than a person reads; the firing ones come first.
INCIDENTS: Final = 500
# Those of all projects that whoever asks may read.
EVERYWHERE: Final = "/incidents/everywhere"


def add_access_pages(routes: APIRouter, pages: Pages) -> None:
    """Add the pages of access to the dashboard."""

    @routes.get("/access")
    def access_route(container: Here) -> Response:
        everywhere = container.everywhere()
        with pages.reading(container) as (_, nav), everywhere.reading() as tx:
            page = access_page(
                tokens=list_tokens(tx),
                people=list_people(tx),
                projects=list_projects(tx),
                uses=uses(tx),
                entries=list_entries(tx, SHOWN),
                now=tx.now,
                settings=container.settings,
                principal=container.principal,
            )
            now = tx.now
        return pages.render(
            "access/page.html", nav, page=page, now=now, rights=list(Right), roles=list(Role)
        )

    @routes.get("/access/incidents")
    def incidents_route(container: Here, project: Annotated[str, Query()] = "") -> Response:
        # No name holds such a character, and the database takes none.
        name = project.replace("\x00", "")
        with pages.reading(container) as (_, nav), container.everywhere().reading() as tx:
            found, now = open_everywhere(tx, INCIDENTS, project=name), tx.now
        page = joined_page(found, "/access/incidents", administers=True)
        return pages.render("access/incidents.html", nav, page=page, now=now)

    # Before `/incidents/{incident}`, which would take it for one.
    @routes.get(EVERYWHERE)
    def readable_route(container: Here, project: Annotated[str, Query()] = "") -> Response:
        name, known = project.replace("\x00", ""), readable(container.principal)
        with pages.reading(container) as (_, nav), container.everywhere().reading() as tx:
            found = open_everywhere(tx, INCIDENTS, project=name, known=known)
            now = tx.now
        page = joined_page(found, EVERYWHERE, administers=False)
        return pages.render("access/incidents.html", nav, page=page, now=now)

    @routes.get(f"{EVERYWHERE}.csv")
    def readable_file_route(container: Here, project: Annotated[str, Query()] = "") -> Response:
        name, known = project.replace("\x00", ""), readable(container.principal)
        return csv_file("paceline-incidents.csv", incidents_csv(container, name, known))

    @routes.get("/access/incidents.csv")
    def incidents_file_route(container: Here, project: Annotated[str, Query()] = "") -> Response:
        name = project.replace("\x00", "")
        return csv_file("paceline-incidents.csv", incidents_csv(container, name))

    @routes.get("/access/audit")
    def audit_route(container: Here, before: int | None = None) -> Response:
        with pages.reading(container) as (_, nav), container.everywhere().reading() as tx:
            entries, now = list_entries(tx, LISTED, before=before), tx.now
        older = entries[-1].id if len(entries) == LISTED else None
        return pages.render("access/audit.html", nav, entries=entries, older=older, now=now)

    @routes.get("/access/{name}.csv")
    def export_route(container: Here, name: str) -> Response:
        return csv_file(f"paceline-{name}.csv", one_of(EXPORTS, name)(container))
