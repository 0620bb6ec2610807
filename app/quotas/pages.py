"""The page of quotas: each project's use of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter
from fastapi.responses import Response

from app.access.guard import RequestContainer
from app.access.projects import project_name
from app.platform.container import Container
from app.platform.database.unit_of_work import Reads
from app.platform.settings import Settings
from app.quotas.usage import QUOTAS, Use, use_of
from app.retention.pages import add_retention_page
from app.web.format import count
from app.web.lists import Column
from app.web.pages import Pages
from app.web.tables import Table, csv_file

_PERCENT = 100


@dataclass(frozen=True, slots=True)
class QuotaUse:
    """A project's use of one quota; `limit` is None if the quota has no limit."""

    project: str
    quota: str  # its name in files
    used: int
    limit: int | None
    title: Annotated[str, Column(csv=None)]

    @property
    def limit_text(self) -> str:
        """Return the limit as text."""
        return "no limit" if self.limit is None else count(self.limit)

    @property
    def share(self) -> str:
        """Return the used share of the limit as text; empty without a limit."""
        return "" if self.limit is None else f"{self._percent} %"

    @property
    def full(self) -> bool:
        """Return whether the quota is used up."""
        return self._percent >= _PERCENT

    @property
    def _percent(self) -> int:
        return 0 if self.limit is None else _PERCENT * self.used // max(self.limit, 1)


def quota_uses(project: str, use: Use, settings: Settings) -> list[QuotaUse]:
    """Return a project's use of each quota."""
    return [
        QuotaUse(project, quota.name, quota.used(use), quota.limit(settings), quota.title)
        for quota in QUOTAS
    ]


def add_usage_pages(routes: APIRouter, pages: Pages) -> None:
    """Add the pages of quotas and of retention to the dashboard."""
    add_retention_page(routes, pages)

    def read(tx: Reads, container: Container) -> list[QuotaUse]:
        use = use_of(tx, container.project_id)
        return quota_uses(project_name(tx), use, container.settings)

    @routes.get("/quotas")
    def quotas_route(container: RequestContainer) -> Response:
        with pages.reading(container) as (tx, nav):
            rows, now = read(tx, container), tx.now
        return pages.render("quotas/page.html", nav, now=now, rows=rows)

    @routes.get("/quotas.csv")
    def quotas_file_route(container: RequestContainer) -> Response:
        with container.reading() as tx:
            rows = read(tx, container)
        return csv_file("paceline-quotas.csv", Table.of(QuotaUse, rows, "quota", "used", "limit"))
