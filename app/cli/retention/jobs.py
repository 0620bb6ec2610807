"""Ask a server to rename, archive or delete a job."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING
from urllib.parse import quote

from app.cli.server import Server

if TYPE_CHECKING:
    from collections.abc import Mapping


def change(job: str, values: Mapping[str, object], *, server: str) -> None:
    """Change a job."""
    with Server(server) as api:
        api.exchange("PATCH", _path(job), dict(values))
    sys.stderr.write(f"{job} is changed\n")


def delete(job: str, *, server: str) -> None:
    """Delete a job."""
    with Server(server) as api:
        api.exchange("DELETE", _path(job), None)
    sys.stderr.write(f"{job} is deleted\n")


def finish(job: str, *, server: str) -> None:
    """Say that a job has ended."""
    with Server(server) as api:
        api.exchange("POST", f"{_path(job)}/finish", None)
    sys.stderr.write(f"{job} has ended\n")


def _path(job: str) -> str:
    return f"/api/v1/jobs/{quote(job, safe='')}"
