"""Project prefix of page paths: `/p/{project}/…` is `/…` in this project, else in `default`."""

from __future__ import annotations

from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

PREFIX: Final = "/p/"


class ProjectPaths:
    """ASGI middleware that moves the project from the path to the request's state."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request in the project that its path names."""
        if scope["type"] == "http" and scope["path"].startswith(PREFIX):
            project, _, rest = scope["path"].removeprefix(PREFIX).partition("/")
            # Changed in place, because outer middleware reads what the routes store in the state.
            scope.setdefault("state", {}).update(project=project, requested_path=scope["path"])
            scope["path"] = f"/{rest}"
            scope["raw_path"] = scope["path"].encode()
        await self.app(scope, receive, send)


def prefix_of(project: str) -> str:
    """Return the path prefix of a project's pages."""
    return f"{PREFIX}{project}"
