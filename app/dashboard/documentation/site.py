"""The files of the documentation's site, which `make docs` builds and the wheel holds."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

SITE_DIR: Final = Path(__file__).resolve().parents[3] / "frontend" / "site"
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
# Names stay the same from version to version: every answer is asked for again.
CACHE_CONTROL: Final = "no-cache"


@dataclass(frozen=True, slots=True)
class Page:
    """A file as it goes out."""

    body: bytes
    headers: dict[str, str]

    @property
    def tag(self) -> str:
        """Return what tells this content from any other."""
        return self.headers["ETag"]


class Site:
    """A built site; only what was in it when this was made is ever read.

    Parameters
    ----------
    directory : Path, optional
        Need not be there: then nothing was built. This installation's own without one.
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
        """Return whether there is anything to read."""
        return INDEX in self._files

    def is_folder(self, address: str) -> bool:
        """Return whether a page is at this address once a slash follows."""
        return f"{address}/{INDEX}" in self._files

    def find(self, address: str) -> Page | None:
        """Return what is served at an address below the site's, or None.

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
