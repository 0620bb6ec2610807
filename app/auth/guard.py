"""The guard of every route: it finds out who asks and for which project, before a body is read."""

from __future__ import annotations

import hmac
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import anyio.to_thread
from anyio import CapacityLimiter
from fastapi.routing import APIRoute, iter_route_contexts
from starlette.requests import HTTPConnection
from starlette.responses import RedirectResponse

from app.access.peers import peer_of
from app.access.principals import Right
from app.auth.cookies import session_cookie
from app.auth.project_paths import prefix_of
from app.auth.rights import NEEDS, Need, Open
from app.errors import CrossSiteError, ForbiddenError, UnauthenticatedError
from app.services.access.admission import Shown, admit, admit_unasked, identify, refused

if TYPE_CHECKING:
    from fastapi import FastAPI
    from starlette.types import Receive, Scope, Send

    from app.services.container import Container

PROJECT_HEADER: Final = "paceline-project"
SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
API: Final = "/api/"
# Where no person is led to the sign-in.
OF_PROGRAMS: Final = (API, "/mcp")
SIGN_IN: Final = "/sign-in"

# Of their own: requests do not wait for another's page or body before they are known.
ADMISSIONS_AT_ONCE: Final = 8


class Guard:
    """Lets in who may use a route; one for all routes of an application.

    Parameters
    ----------
    container : Container
        Of the process.
    """

    def __init__(self, container: Container) -> None:
        self._container = container
        self._cookie = session_cookie(container.settings)
        # Threads that look up users and tokens.
        self._limiter = CapacityLimiter(ADMISSIONS_AT_ONCE)

    async def let_in(self, scope: Scope, need: Need) -> None:
        """Put the container of a request into its state.

        Raises
        ------
        UnauthenticatedError, ForbiddenError, NotFoundError, CrossSiteError
        """
        if need is Open.EVERYBODY:
            return
        shown = self._shown(scope, need)
        try:
            _check_site(scope, shown)
        except CrossSiteError as error:
            refused(self._container, shown, error)
            raise
        if need is Open.METRICS:
            await self._let_scrape(shown)
            return
        right = Right.ADMIN if need is Open.INSTALLATION else need
        assert isinstance(right, Right)  # noqa: S101 - the one that is left
        here = admit_unasked(self._container, shown)
        if here is None:
            here = await anyio.to_thread.run_sync(
                admit, self._container, shown, right, limiter=self._limiter
            )
        if need is Open.INSTALLATION and Right.ADMIN not in here.principal.everywhere:
            forbidden = ForbiddenError("This concerns all projects: it needs admin in all of them.")
            refused(self._container, shown, forbidden, here.principal)
            raise forbidden
        name = scope.get("state", {}).get("project")
        if name is not None or not scope["path"].startswith(API):
            # Links of a page stay where it is: also with a prefix that it needs not.
            here = replace(here, pages_at="" if name is None else prefix_of(name))
        scope.setdefault("state", {})["here"] = here

    async def _let_scrape(self, shown: Shown) -> None:
        own = self._container.settings.metrics_token
        if (
            own is not None
            and shown.token is not None
            and hmac.compare_digest(own.get_secret_value().encode(), shown.token.encode())
        ):
            return
        principal = await anyio.to_thread.run_sync(
            identify, self._container, shown, limiter=self._limiter
        )
        if Right.READ not in principal.everywhere:
            error = ForbiddenError("Metrics cover all projects: they need read in all of them.")
            refused(self._container, shown, error, principal)
            raise error

    def _shown(self, scope: Scope, need: Need) -> Shown:
        request = HTTPConnection(scope)
        kind, _, token = request.headers.get("authorization", "").partition(" ")
        shown = token.strip() if kind.lower() == "bearer" else None
        leads_on = shown is None and _leads_to_sign_in(scope, need)
        return Shown(
            token=shown,
            cookie=self._cookie.read(request),
            project=request.scope.get("state", {}).get("project")
            or request.headers.get(PROJECT_HEADER),
            peer=peer_of(request.client.host) if request.client else "",
            asks="" if leads_on else f"{scope['method']} {scope['route'].path}",
        )


class GuardedRoute(APIRoute):
    """A route that answers those who have what `NEEDS` says; there is none that it does not name.

    Its application has the guard in ``state.guard``.
    """

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:  # noqa: ANN401 - of the framework
        super().__init__(path, endpoint, **options)
        methods = (self.methods or set()) - {"HEAD"}
        self.needs = {method: NEEDS[f"{method} {path}"] for method in methods}

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it before any of its body is read."""
        need = self.needs.get("GET" if scope["method"] == "HEAD" else scope["method"])
        # Without one the method is none of this route's, and refused by the framework.
        if need is not None:
            try:
                await scope["app"].state.guard.let_in(scope, need)
            except UnauthenticatedError:
                if not _leads_to_sign_in(scope, need):
                    raise
                # A person before a page: let them say who they are, and come back.
                response = RedirectResponse(_sign_in_address(scope), 303)
                await response(scope, receive, send)
                return
        await super().handle(scope, receive, send)


def guard(app: FastAPI, container: Container) -> None:
    """Give an application its guard, after the last route was added.

    Raises
    ------
    TypeError
        If a route would answer without it.
    """
    app.state.guard = Guard(container)
    for context in iter_route_contexts(app.routes):
        route = context.original_route
        if isinstance(route, APIRoute) and not isinstance(route, GuardedRoute):
            raise TypeError(f"{route.path} has no guard: its router lacks the route class")


def _leads_to_sign_in(scope: Scope, need: Need) -> bool:
    """Return whether who is not known is asked to sign in: a person before a page."""
    return not scope["path"].startswith(OF_PROGRAMS) and need is not Open.METRICS


def _check_site(scope: Scope, shown: Shown) -> None:
    """Refuse what changes something by a browser's cookie without saying which site it is from.

    What says so and is of another site was refused before (`CrossSiteGuard`).
    """
    if shown.cookie is None or shown.token is not None or scope["method"] in SAFE_METHODS:
        return
    names = {name for name, _ in scope["headers"]}
    if not names & {b"origin", b"sec-fetch-site"}:
        raise CrossSiteError("The request does not say which site it comes from.")


def _sign_in_address(scope: Scope) -> str:
    state = scope.get("state", {})
    path = state.get("requested_path", scope["path"])
    query = scope["query_string"].decode("latin-1")
    return f"{SIGN_IN}?next={quote(path + ('?' + query if query else ''), safe='/')}"
