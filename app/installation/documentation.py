"""Serve the documentation's pages at ``/docs/`` and the client's wheel at ``/client/``.

`make docs` builds the documentation; without it a page says how to build it.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Final

from fastapi import APIRouter, Header
from fastapi.responses import RedirectResponse, Response

from app.errors import NotFoundError
from app.jobs.connect import NAME, client_wheel
from app.web.pages import Pages

DOCS: Final = "/docs"


def add_documentation(routes: APIRouter, pages: Pages, site: Site) -> None:
    """Add the routes below ``/docs``, which belong to no project and need no sign-in."""

    @routes.get(DOCS)
    def without_slash() -> Response:
        return RedirectResponse(f"{DOCS}/", HTTPStatus.PERMANENT_REDIRECT)

    @routes.get(f"{DOCS}/{{address:path}}")
    def documentation(address: str, if_none_match: Annotated[str, Header()] = "") -> Response:
        if not site.is_built and not address:
            return pages.render_alone("installation/documentation/missing.html")
        page = site.find(address)
        if page is not None:
            if page.tag in if_none_match:
                return Response(status_code=HTTPStatus.NOT_MODIFIED, headers={"ETag": page.tag})
            return Response(page.body, headers=page.headers)
        if site.is_folder(address):
            return RedirectResponse(f"{DOCS}/{address}/", HTTPStatus.PERMANENT_REDIRECT)
        raise NotFoundError(f"The documentation has no page {address}.")


SITE_DIR: Final = Path(__file__).resolve().parents[2] / "frontend" / "site"
INDEX: Final = "index.html"

MEDIA_TYPES: Final = {
    ".css": "text/css; charset=utf-8",
    ".csv": "text/csv; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".png": "image/png",
    ".svg": "image/svg+xml",
}
# Files keep their names across versions, so browsers have to revalidate each cached response.
CACHE_CONTROL: Final = "no-cache"


@dataclass(frozen=True, slots=True)
class Page:
    """A file of the built documentation with its response headers."""

    body: bytes
    headers: dict[str, str]

    @property
    def tag(self) -> str:
        """Return the entity tag of the content."""
        return self.headers["ETag"]


class Site:
    """The built documentation; only files that existed at construction are served.

    Parameters
    ----------
    directory : Path, optional
        Folder of the built documentation, which may be missing; default: this installation's own.
    """

    def __init__(self, directory: Path | None = None) -> None:
        root = SITE_DIR if directory is None else directory
        self._files = {
            path.relative_to(root).as_posix(): path
            for path in root.rglob("*")
            if path.suffix in MEDIA_TYPES and path.is_file()
        }

    @property
    def is_built(self) -> bool:
        """Return whether the documentation was built."""
        return INDEX in self._files

    def is_folder(self, address: str) -> bool:
        """Return whether the address is that of a page, without its final slash."""
        return f"{address}/{INDEX}" in self._files

    def find(self, address: str) -> Page | None:
        """Return the file at an address relative to ``/docs/``; None if there is no such file.

        Parameters
        ----------
        address : str
            Empty, or ending in a slash, for a page.
        """
        name = f"{address}{INDEX}" if not address or address.endswith("/") else address
        path = self._files.get(name)
        if path is None:
            return None
        body = path.read_bytes()
        headers = {
            "Content-Type": MEDIA_TYPES[path.suffix],
            "Cache-Control": CACHE_CONTROL,
            "ETag": f'W/"{hashlib.sha256(body).hexdigest()[:16]}"',
        }
        return Page(body, headers)


CLIENT: Final = "/client"


def add_client(routes: APIRouter, pages: Pages) -> None:
    """Add the routes below ``/client``, which belong to no project and need no sign-in."""

    @routes.get(CLIENT)
    def without_slash() -> Response:
        return RedirectResponse(f"{CLIENT}/", HTTPStatus.PERMANENT_REDIRECT)

    @routes.get(f"{CLIENT}/")
    def files() -> Response:
        return pages.render_alone(
            "installation/documentation/client.html", wheel=NAME, sha256=client_wheel().sha256
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
