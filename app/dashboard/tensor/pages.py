"""The pages of a job's tensor-parallel groups."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fastapi import APIRouter
from fastapi.responses import Response

from app.auth.here import Here
from app.dashboard.tensor.exports import FILES, groups_csv
from app.dashboard.tensor.groups import groups_page
from app.dashboard.tensor.view import group_page
from app.dashboard.ui.csv_text import Table, csv_file
from app.errors import NotFoundError
from app.services.tensor.read import group_view, list_groups

if TYPE_CHECKING:
    from app.dashboard.pages import Pages

# A group reports all the time.
FILE_HEADERS: Final = {"Cache-Control": "no-store"}


def add_tensor_pages(routes: APIRouter, pages: Pages) -> None:
    """Add the pages of tensor-parallel groups to the dashboard."""

    @routes.get("/jobs/{job}/tensor")
    def groups_route(container: Here, job: str) -> Response:
        with pages.reading(container) as (tx, nav):
            try:
                found = list_groups(tx, job)
            except NotFoundError:
                return pages.not_found(f"tensor-parallel group of job {job}", nav)
        return pages.render("tensor/list.html", nav, page=groups_page(found), now=found.now)

    @routes.get("/jobs/{job}/tensor.csv")
    def groups_file_route(container: Here, job: str) -> Response:
        with container.reading() as tx:
            found = list_groups(tx, job)
        return csv_file("paceline-tensor-groups.csv", groups_csv(found))

    @routes.get("/jobs/{job}/tensor/{group}")
    def group_route(container: Here, job: str, group: str) -> Response:
        with pages.reading(container) as (tx, nav):
            try:
                found = group_view(tx, job, group)
            except NotFoundError:
                return pages.not_found(f"tensor-parallel group {group} of job {job}", nav)
        return pages.render("tensor/page.html", nav, page=group_page(found), now=found.now)

    @routes.get("/jobs/{job}/tensor/{group}/{name}")
    def file_route(container: Here, job: str, group: str, name: str) -> Response:
        make = FILES.get(name)
        if make is None:
            raise NotFoundError(f"There is no {name} of a tensor-parallel group.")
        with container.reading() as tx:
            found = group_view(tx, job, group)
        made, file_name = make(found), f"paceline-tensor-{found.row.name}-{name}"
        if isinstance(made, Table):
            return csv_file(file_name, made)
        disposition = f'attachment; filename="{file_name}"'
        return Response(
            made,
            media_type="application/json",
            headers=FILE_HEADERS | {"Content-Disposition": disposition},
        )
