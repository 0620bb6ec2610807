"""The client as a wheel, made of what this installation has of it: jobs install it from here."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from dataclasses import dataclass
from functools import cache
from importlib.metadata import distribution
from io import BytesIO
from pathlib import Path
from typing import Final

import paceline_client

NAME: Final = f"paceline_client-{paceline_client.VERSION}-py3-none-any.whl"

_INFO: Final = f"paceline_client-{paceline_client.VERSION}.dist-info"
_KEPT: Final = ("METADATA", "WHEEL")
# The same content is the same file, whenever it is made.
_MADE_AT: Final = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class Wheel:
    """A wheel (PEP 427)."""

    content: bytes
    sha256: str


@cache
def client_wheel() -> Wheel:
    """Return the wheel of the client that is installed here, of pure Python."""
    package = Path(paceline_client.__file__).parent
    found = distribution("paceline-client")
    files = {
        path.relative_to(package.parent).as_posix(): path.read_bytes()
        for path in sorted(package.rglob("*"))
        if path.suffix in {".py", ".typed"}
    }
    for name in _KEPT:
        files[f"{_INFO}/{name}"] = (found.read_text(name) or "").encode()
    record = f"{_INFO}/RECORD"
    listed = [f"{name},sha256={_digest(body)},{len(body)}" for name, body in files.items()]
    files[record] = "".join(f"{line}\n" for line in [*listed, f"{record},,"]).encode()
    written = BytesIO()
    with zipfile.ZipFile(written, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, body in files.items():
            archive.writestr(zipfile.ZipInfo(name, _MADE_AT), body, zipfile.ZIP_DEFLATED)
    content = written.getvalue()
    return Wheel(content, hashlib.sha256(content).hexdigest())


def _digest(body: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(body).digest()).decode().rstrip("=")
