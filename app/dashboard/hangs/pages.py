"""The page of a hang, and the files behind it."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from fastapi import APIRouter
from fastapi.responses import Response

from app.auth.here import Here
from app.dashboard.alerts.parts import actions
from app.dashboard.hangs.exports import FILES, evidence_pack, hang_text
from app.dashboard.hangs.view import hang_page
from app.dashboard.ui.csv_text import csv_file, one_of
from app.errors import NotFoundError
from app.services.alerts.views import open_by_job
from app.services.hangs.places import guessed_hosts
from app.services.hangs.read import get_hang

if TYPE_CHECKING:
    from app.dashboard.pages import Pages


def add_hang_pages(routes: APIRouter, pages: Pages) -> None:
    """Add the pages of hangs to the dashboard."""

    @routes.get("/hangs/{hang}")
    def hang_route(container: Here, hang: str) -> Response:
        with pages.reading(container) as (tx, nav):
            try:
                row, document = get_hang(tx, uuid.UUID(hang))
            except (ValueError, NotFoundError):
                return pages.not_found(f"hang {hang}", nav)
            incidents = open_by_job(tx, row.job).get(row.job, [])
            guessed = guessed_hosts(tx, row.job)
        shown = [actions(one, row.now) for one in incidents]
        page = hang_page(row, document, shown, guessed)
        text = hang_text(row, document)
        return pages.render("hangs/page.html", nav, page=page, now=page.now, text=text)

    @routes.get("/hangs/{hang}/evidence.zip")
    def evidence_route(container: Here, hang: uuid.UUID) -> Response:
        with container.reading() as tx:
            row, document = get_hang(tx, hang)
        disposition = f'attachment; filename="paceline-hang-{hang}.zip"'
        return Response(
            evidence_pack(row, document),
            media_type="application/zip",
            headers={"Cache-Control": "no-store", "Content-Disposition": disposition},
        )

    @routes.get("/hangs/{hang}/{name}.csv")
    def file_route(container: Here, hang: uuid.UUID, name: str) -> Response:
        make = one_of(FILES, name)
        with container.reading() as tx:
            _, document = get_hang(tx, hang)
        return csv_file(f"paceline-hang-{name}.csv", make(document))
