"""The project that a request names: the prefix `/p/{project}` of its path, or a header."""

from __future__ import annotations

from typing import Final

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from app.web.problems import problem

PREFIX: Final = "/p/"
PROJECT_HEADER: Final = "paceline-project"


class ProjectPaths:
    """ASGI middleware that moves the project from the path to the request's state.

    A request that names two different projects is refused.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request in the project that its path names."""
        app: ASGIApp = self.app
        if scope["type"] == "http":
            names = set(Headers(scope=scope).getlist(PROJECT_HEADER))
            if scope["path"].startswith(PREFIX):
                project, _, rest = scope["path"].removeprefix(PREFIX).partition("/")
                names.add(project)
                # Changed in place, because outer middleware reads what routes store in the state.
                scope.setdefault("state", {}).update(project=project, requested_path=scope["path"])
                scope["path"] = f"/{rest}"
                scope["raw_path"] = scope["path"].encode()
            if len(names) > 1:
                app = problem(
                    "project.ambiguous", "Path and Paceline-Project name different projects."
                )
        await app(scope, receive, send)


def project_of(scope: Scope) -> str | None:
    """Return the project that a request names in its path or in a header; None without one."""
    in_path: str | None = scope.get("state", {}).get("project")
    return Headers(scope=scope).get(PROJECT_HEADER) if in_path is None else in_path


def prefix_of(project: str) -> str:
    """Return the path prefix of a project's pages."""
    return f"{PREFIX}{project}"
