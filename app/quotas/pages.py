"""The page of quotas: each project's use of them."""

from __future__ import annotations

from dataclasses import dataclass

from fastapi import APIRouter
from fastapi.responses import Response

from app.access.guard import Here
from app.access.projects import project_name
from app.platform.settings import Settings
from app.quotas.usage import QUOTAS, Use, use_of
from app.retention.pages import add_retention_page
from app.web.pages import Pages
from app.web.tables import Table, csv_file

_PERCENT = 100


@dataclass(frozen=True, slots=True)
class QuotaLine:
    """One quota of a project; `percent` is None if the quota has no limit."""

    title: str
    used: str
    limit: str
    percent: int | None

    @property
    def full(self) -> bool:
        """Whether the quota is used up."""
        return self.percent is not None and self.percent >= _PERCENT


def quota_lines(use: Use, settings: Settings) -> tuple[QuotaLine, ...]:
    """Return the use of each quota by a project, as lines of the page."""
    lines = []
    for quota in QUOTAS:
        used, limit = quota.used(use), quota.limit(settings)
        lines.append(
            QuotaLine(
                title=quota.title,
                used=f"{used:,}",
                limit="no limit" if limit is None else f"{limit:,}",
                percent=None if limit is None else _PERCENT * used // max(limit, 1),
            )
        )
    return tuple(lines)


def add_usage_pages(routes: APIRouter, pages: Pages) -> None:
    """Add the pages of quotas and of retention to the dashboard."""
    add_retention_page(routes, pages)

    @routes.get("/quotas")
    def quotas_route(container: Here) -> Response:
        with pages.reading(container) as (tx, nav):
            use = use_of(tx, container.project_id)
            project = project_name(tx)
            now = tx.now
        return pages.render(
            "quotas/page.html",
            nav,
            now=now,
            project=project,
            lines=quota_lines(use, container.settings),
        )

    @routes.get("/quotas.csv")
    def quotas_file_route(container: Here) -> Response:
        with container.reading() as tx:
            use = use_of(tx, container.project_id)
        rows = ((one.name, one.used(use), one.limit(container.settings)) for one in QUOTAS)
        return csv_file("paceline-quotas.csv", Table(("quota", "used", "limit"), rows))
