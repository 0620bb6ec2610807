"""Static files with content hashes in their URLs: cached forever, compressed once a process.

The project's files share one digest, because ES modules import each other by relative addresses;
the plotly bundle has its own digest, so that browsers do not load it again after a change of the
project's files.
"""

from __future__ import annotations

import gzip
import hashlib
import re
import threading
from dataclasses import dataclass
from functools import cache
from importlib.metadata import distribution
from pathlib import Path
from typing import Final

import brotli

STATIC_DIR: Final = Path(__file__).resolve().parents[2] / "frontend" / "static"
PLOTLY_NAME: Final = "plotly.min.js"
PLOTLY_PATH: Final = Path(
    str(distribution("plotly").locate_file(f"plotly/package_data/{PLOTLY_NAME}"))
)

MEDIA_TYPES: Final = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
# plotly.js looks for an element with this id before it inserts its own style element.
MAP_STYLE: Final = re.compile(rb'getElementById\("([0-9a-f]{64})"\)')
# Size of plotly as transferred to a browser, which pages show before they load it.
PLOTLY_SIZE: Final = "1.2\N{NO-BREAK SPACE}MB"
IMMUTABLE: Final = "public, max-age=31536000, immutable"

# Quality 9 compresses plotly from 4.8 MB to 1.2 MB in 0.4 s, once a process; quality 11 takes 10 s
# to save 3 % more.
BROTLI_QUALITY: Final = 9
DIGEST_LENGTH: Final = 16


@dataclass(frozen=True, slots=True)
class StaticFile:
    """A static file with its encoding and headers."""

    body: bytes
    headers: dict[str, str]


class Assets:
    """The static files of the pages, read once from disk.

    Parameters
    ----------
    static_dir : Path
        Our own files; every file below it is served.
    plotly_path : Path
        The plotly bundle, from the installed wheel: the version that also made the figures.

    Attributes
    ----------
    plotly_style : str
        Id of the style element that the bundle inserts unless there is one; empty if it does not.
    """

    def __init__(self, static_dir: Path = STATIC_DIR, plotly_path: Path = PLOTLY_PATH) -> None:
        own = {
            path.relative_to(static_dir).as_posix(): path.read_bytes()
            for path in sorted(static_dir.rglob("*"))
            if path.is_file()
        }
        bundle = plotly_path.read_bytes()
        own_digest = _digest(
            b"".join(name.encode() + b"\0" + body + b"\0" for name, body in own.items())
        )
        style = MAP_STYLE.search(bundle)
        self.plotly_style = style[1].decode() if style else ""
        self._addresses = {name: f"{own_digest}/{name}" for name in own}
        self._addresses[PLOTLY_NAME] = f"{_digest(bundle)}/{PLOTLY_NAME}"
        self._bodies = {self._addresses[name]: body for name, body in own.items()}
        self._bodies[self._addresses[PLOTLY_NAME]] = bundle
        self._encoded: dict[tuple[str, str], bytes] = {}
        self._lock = threading.Lock()

    def url(self, name: str) -> str:
        """Return the URL of a file, for example of ``css/paceline.css``."""
        return f"/static/{self._addresses[name]}"

    def find(self, address: str, accept_encoding: str) -> StaticFile | None:
        """Return the file at ``digest/name``, or None.

        Parameters
        ----------
        address : str
            The part of the path after ``/static/``.
        """
        body = self._bodies.get(address)
        if body is None:
            return None
        encoding = _choose(accept_encoding)
        headers = {
            "Content-Type": MEDIA_TYPES[Path(address).suffix],
            "Cache-Control": IMMUTABLE,
            "Vary": "Accept-Encoding",
        }
        if encoding:
            headers["Content-Encoding"] = encoding
            body = self._encode(address, body, encoding)
        return StaticFile(body, headers)

    def _encode(self, address: str, body: bytes, encoding: str) -> bytes:
        # The lock prevents that several concurrent requests compress the same 4.8 MB at once.
        with self._lock:
            key = (address, encoding)
            if key not in self._encoded:
                self._encoded[key] = (
                    brotli.compress(body, quality=BROTLI_QUALITY)
                    if encoding == "br"
                    else gzip.compress(body, mtime=0)
                )
            return self._encoded[key]


@cache
def installed_assets() -> Assets:
    """Return the files of this installation, cached so that a process compresses each file once."""
    return Assets()


def _digest(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()[:DIGEST_LENGTH]


def _choose(accept_encoding: str) -> str:
    """Return the best encoding that the client accepts: ``br``, ``gzip`` or none."""
    offered: dict[str, str] = {}
    for part in accept_encoding.lower().split(","):
        name, _, parameters = part.strip().partition(";")
        offered[name.strip()] = parameters.replace(" ", "")
    for encoding in ("br", "gzip"):
        if encoding in offered and offered[encoding] not in ("q=0", "q=0.0", "q=0.00", "q=0.000"):
            return encoding
    return ""
