"""The page of access: tokens, projects, and who did what."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fastapi import APIRouter
from fastapi.responses import Response

from app.access.principals import Right, Role
from app.dashboard.access.incidents import joined_page
from app.dashboard.access.view import access_page
from app.dashboard.look.csv_text import csv_text
from app.door.here import Here
from app.services.access.audit import list_entries
from app.services.access.people import list_people
from app.services.access.projects import list_projects
from app.services.access.tokens import list_tokens
from app.services.alerts.everywhere import open_everywhere
from app.services.usage.quotas import uses

if TYPE_CHECKING:
    from app.dashboard.pages import Pages
    from app.services.access.audit import Entry

# What the page shows of the log, what its own page does, and what an export holds at most.
SHOWN: Final = 12
LISTED: Final = 200
EXPORTED: Final = 100_000
# More than a person reads; the firing ones come first.
INCIDENTS: Final = 500


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
            )
            now = tx.now
        return pages.render(
            "access/page.html", nav, page=page, now=now, rights=list(Right), roles=list(Role)
        )

    @routes.get("/access/incidents")
    def incidents_route(container: Here) -> Response:
        with pages.reading(container) as (_, nav), container.everywhere().reading() as tx:
            found, now = open_everywhere(tx, INCIDENTS), tx.now
        return pages.render("access/incidents.html", nav, page=joined_page(found), now=now)

    @routes.get("/access/audit")
    def audit_route(container: Here, before: int | None = None) -> Response:
        with pages.reading(container) as (_, nav), container.everywhere().reading() as tx:
            entries, now = list_entries(tx, LISTED, before=before), tx.now
        older = entries[-1].id if len(entries) == LISTED else None
        return pages.render("access/audit.html", nav, entries=entries, older=older, now=now)

    @routes.get("/access/audit.csv")
    def export_route(container: Here) -> Response:
        with container.everywhere().reading() as tx:
            entries = list_entries(tx, EXPORTED)
        return Response(
            _as_csv(entries),
            media_type="text/csv; charset=utf-8",
            headers={
                "Cache-Control": "no-store",
                "Content-Disposition": 'attachment; filename="paceline-audit.csv"',
            },
        )


def _as_csv(entries: list[Entry]) -> str:
    return csv_text(
        ("id", "at", "actor_kind", "actor", "action", "subject", "project", "detail", "count"),
        (
            (
                *(entry.id, entry.at.isoformat(), entry.actor_kind, entry.actor, entry.action),
                *(entry.subject, entry.project, entry.detail, entry.count),
            )
            for entry in entries
        ),
    )
