"""Ask a server to analyze sessions again, to pin or to delete them."""

from __future__ import annotations

import sys
from datetime import UTC
from typing import TYPE_CHECKING, Any, Final

from app.cli.files import FileError
from app.cli.server import Server

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime
    from pathlib import Path

# Queued by one request.
AT_ONCE: Final = 100


def analyze_named(ids: Sequence[str], *, server: str) -> None:
    """Analyze sessions again and print where each stands."""
    with Server(server) as api:
        for session in ids:
            answer = api.post(f"/api/v1/sessions/{session}/analyze")
            sys.stdout.write(f"{session} {answer['state']}\n")


def analyze_many(
    states: Sequence[str], job: str | None, before: datetime | None, *, server: str
) -> None:
    """Analyze all sessions in these states again, and print how many.

    Cut off, what was queued stays so, and the same command goes on with the rest.
    """
    asking: dict[str, Any] = {"states": list(states), "job": job, "limit": AT_ONCE}
    if before is not None:
        asking["before"] = before.replace(tzinfo=before.tzinfo or UTC).isoformat()
    queued = 0
    with Server(server) as api:
        while True:
            answer = api.exchange("POST", "/api/v1/sessions/analyze", asking)
            queued += answer["queued"]
            # What becomes so meanwhile is not meant.
            asking["before"] = answer["before"]
            if not answer["left"] or not answer["queued"]:
                break
            sys.stderr.write(f"{queued} queued, {answer['left']} left\n")
    sys.stdout.write(f"sessions queued: {queued}\n")


def set_pins(ids: Sequence[str], *, pinned: bool, server: str) -> None:
    """Pin sessions, or take their pins."""
    with Server(server) as api:
        for session in ids:
            path = f"/api/v1/sessions/{session}/pin"
            api.exchange("PUT" if pinned else "DELETE", path, None)
            sys.stderr.write(f"{session} {'stays' if pinned else 'is not pinned'}\n")


def delete(ids: Sequence[str], *, server: str) -> None:
    """Delete sessions."""
    with Server(server) as api:
        for session in ids:
            api.exchange("DELETE", f"/api/v1/sessions/{session}", None)
            sys.stderr.write(f"{session} is deleted\n")


def export(path: str, target: Path, *, server: str) -> None:
    """Write what the server exports at a path into a file, and print where it is."""
    with Server(server) as api:
        try:
            size = api.download(path, target)
        except OSError as error:
            raise FileError(f"{target} cannot be written: {error}") from error
    sys.stderr.write(f"{size:,} bytes\n")
    sys.stdout.write(f"{target}\n")
