"""The client for jobs to install: a page that pip reads as a list of files, and its wheel."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from fastapi.responses import RedirectResponse, Response

from app.connecting.wheel import NAME, client_wheel
from app.errors import NotFoundError

if TYPE_CHECKING:
    from fastapi import APIRouter

    from app.dashboard.pages import Pages

CLIENT: Final = "/client"


def add_client(routes: APIRouter, pages: Pages) -> None:
    """Add the routes below ``/client``, of no project and for everybody."""

    @routes.get(CLIENT)
    def without_slash() -> Response:
        return RedirectResponse(f"{CLIENT}/", HTTPStatus.PERMANENT_REDIRECT)

    @routes.get(f"{CLIENT}/")
    def files() -> Response:
        return pages.render_alone(
            "documentation/client.html", wheel=NAME, sha256=client_wheel().sha256
        )

    @routes.get(f"{CLIENT}/{{name}}")
    def file(name: str) -> Response:
        if name != NAME:
            raise NotFoundError(f"This server has {NAME} and no {name}.")
        return Response(
            client_wheel().content,
            media_type="application/zip",
            headers={"Cache-Control": "no-cache"},
        )
