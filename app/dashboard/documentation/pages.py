"""Routes of the documentation: the site that was built, or a page that says how to build it."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Annotated, Final

from fastapi import Header
from fastapi.responses import RedirectResponse, Response

from app.errors import NotFoundError

if TYPE_CHECKING:
    from fastapi import APIRouter

    from app.dashboard.documentation.site import Site
    from app.dashboard.pages import Pages

DOCS: Final = "/docs"


def add_documentation(routes: APIRouter, pages: Pages, site: Site) -> None:
    """Add the routes below ``/docs``, of no project and for everybody."""

    @routes.get(DOCS)
    def without_slash() -> Response:
        return RedirectResponse(f"{DOCS}/", HTTPStatus.PERMANENT_REDIRECT)

    @routes.get(f"{DOCS}/{{address:path}}")
    def documentation(address: str, if_none_match: Annotated[str, Header()] = "") -> Response:
        if not site.is_built and not address:
            return pages.render_alone("documentation/missing.html")
        found = site.find(address)
        if found is not None:
            if found.tag in if_none_match:
                return Response(status_code=HTTPStatus.NOT_MODIFIED, headers={"ETag": found.tag})
            return Response(found.body, headers=found.headers)
        if site.is_folder(address):
            return RedirectResponse(f"{DOCS}/{address}/", HTTPStatus.PERMANENT_REDIRECT)
        raise NotFoundError(f"The documentation has no page {address}.")
