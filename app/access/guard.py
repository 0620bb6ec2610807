"""Guard of every route: authenticates and authorizes a request before its body is read.

The module also has the dependencies of guarded routes: the container of a request's project,
routers of the API, the writer of refusals into the audit log, and bounded threads for
unauthenticated requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Annotated, Any, Final, TypeVar
from urllib.parse import quote

import anyio.to_thread
import structlog
from anyio import CapacityLimiter
from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.routing import APIRoute, iter_route_contexts
from sqlalchemy.exc import SQLAlchemyError
from starlette.requests import HTTPConnection
from starlette.responses import RedirectResponse
from starlette.types import Receive, Scope, Send

from app.access.admission import Credentials, admit, admit_without_lookup, identify, refused
from app.access.rights import NEEDS, Need, Open, session_cookie
from app.access.sign_ins import write_refusals
from app.errors import BusyError, CrossSiteError, ForbiddenError, UnauthenticatedError
from app.platform.container import Container
from app.platform.identity import Right
from app.web.addresses import peer_of
from app.web.problems import described
from app.web.project_paths import prefix_of, project_of

SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
API: Final = "/api/"
# Paths that programs request: a refusal is answered with an error, not with a redirect to the
# sign-in.
OF_PROGRAMS: Final = (API, "/mcp")
SIGN_IN: Final = "/sign-in"

# Number of threads that only admit requests, so that an admission does not wait for pages or bodies
# of other requests.
ADMISSIONS_AT_ONCE: Final = 8


class Guard:
    """Admission of requests to the routes of an application.

    Parameters
    ----------
    container : Container
        Container of the process.
    """

    def __init__(self, container: Container) -> None:
        self._container = container
        self._cookie = session_cookie(container.settings)
        # Limits the threads that look up users and tokens.
        self._limiter = CapacityLimiter(ADMISSIONS_AT_ONCE)

    async def let_in(self, scope: Scope, need: Need) -> None:
        """Authorize a request and put the container of its project into the request's state.

        Raises
        ------
        UnauthenticatedError, ForbiddenError, NotFoundError, CrossSiteError
        """
        if need is Open.EVERYBODY and scope["method"] in SAFE_METHODS:
            return
        request = HTTPConnection(scope)
        kind, _, bearer = request.headers.get("authorization", "").partition(" ")
        token = bearer.strip() if kind.lower() == "bearer" else None
        redirected = token is None and _redirects_to_sign_in(scope, need)
        credentials = Credentials(
            token=token,
            cookie=self._cookie.read(request),
            project=project_of(scope),
            # Tokens for some jobs are checked against this name, which all routes that receive data
            # of a job have in their address.
            job=scope.get("path_params", {}).get("job"),
            peer=peer_of(request.client.host) if request.client else "",
            route="" if redirected else f"{scope['method']} {scope['route'].path}",
        )
        try:
            _check_site(scope, credentials)
        except CrossSiteError as error:
            refused(self._container, credentials, error)
            raise
        if need is Open.EVERYBODY:
            return
        if need is Open.METRICS:
            await self._admit_scrape(credentials)
            return
        right = Right.ADMIN if need is Open.INSTALLATION else need
        assert isinstance(right, Right)  # noqa: S101 - the only remaining type
        container = admit_without_lookup(self._container, credentials)
        if container is None:
            container = await anyio.to_thread.run_sync(
                admit, self._container, credentials, right, limiter=self._limiter
            )
        if need is Open.INSTALLATION and Right.ADMIN not in container.principal.everywhere:
            forbidden = ForbiddenError("This concerns all projects: it needs admin in all of them.")
            refused(self._container, credentials, forbidden, container.principal)
            raise forbidden
        name = scope.get("state", {}).get("project")
        if name is not None or not scope["path"].startswith(API):
            # Links of a page keep the project's prefix of its address, even for the default
            # project.
            container = replace(container, pages_at="" if name is None else prefix_of(name))
        scope.setdefault("state", {})["container"] = container

    async def _admit_scrape(self, credentials: Credentials) -> None:
        own = self._container.settings.metrics_token
        if (
            own is not None
            and credentials.token is not None
            and hmac.compare_digest(own.get_secret_value().encode(), credentials.token.encode())
        ):
            return
        principal = await anyio.to_thread.run_sync(
            identify, self._container, credentials, limiter=self._limiter
        )
        if Right.READ not in principal.everywhere:
            error = ForbiddenError("Metrics cover all projects: they need read in all of them.")
            refused(self._container, credentials, error, principal)
            raise error


class GuardedRoute(APIRoute):
    """A route that requires the right in `NEEDS`; the table must contain every route.

    The application holds the guard in ``state.guard``.
    """

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:  # noqa: ANN401 - of the framework
        super().__init__(path, endpoint, **options)
        methods = (self.methods or set()) - {"HEAD"}
        self.needs = {method: NEEDS[f"{method} {path}"] for method in methods}

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse the request before its body is read."""
        need = self.needs.get("GET" if scope["method"] == "HEAD" else scope["method"])
        # A method that the route does not have is not in the table; the framework refuses it.
        if need is not None:
            try:
                await scope["app"].state.guard.let_in(scope, need)
            except UnauthenticatedError:
                if not _redirects_to_sign_in(scope, need):
                    raise
                # A person who requests a page signs in and is redirected back to the page.
                state = scope.get("state", {})
                path = state.get("requested_path", scope["path"])
                query = scope["query_string"].decode("latin-1")
                response = RedirectResponse(
                    f"{SIGN_IN}?next={quote(path + ('?' + query if query else ''), safe='/')}", 303
                )
                await response(scope, receive, send)
                return
        await super().handle(scope, receive, send)


def guard(app: FastAPI, container: Container) -> None:
    """Set the guard of an application; call it after the last route was added.

    Raises
    ------
    TypeError
        A route is not guarded.
    """
    app.state.guard = Guard(container)
    for context in iter_route_contexts(app.routes):
        route = context.original_route
        if isinstance(route, APIRoute) and not isinstance(route, GuardedRoute):
            raise TypeError(f"{route.path} has no guard: its router lacks the route class")


def _redirects_to_sign_in(scope: Scope, need: Need) -> bool:
    """Return whether an unauthenticated request is redirected to the sign-in, as pages are."""
    return not scope["path"].startswith(OF_PROGRAMS) and need is not Open.METRICS


def _check_site(scope: Scope, credentials: Credentials) -> None:
    """Refuse a change by a browser's cookie if no header names the site that sent the request.

    `CrossSiteGuard` has already refused requests that name another site.
    """
    by_cookie = credentials.cookie is not None and credentials.token is None
    if not by_cookie or scope["method"] in SAFE_METHODS:
        return
    names = {name for name, _ in scope["headers"]}
    if not names & {b"origin", b"sec-fetch-site"}:
        raise CrossSiteError("The request does not say which site it comes from.")


# Routes of pages and of the API use only the container of their request, which is limited to the
# request's project and principal; no router has the container of the process.


def container_of(request: Request) -> Container:
    """Return the container of an admitted request, limited to the request's project."""
    container: Container = request.state.container
    return container


async def _container(request: Request) -> Container:
    """Return the container of a request; for use as a dependency of routes."""
    # Asynchronous, because the framework runs synchronous dependencies in a thread.
    return container_of(request)


RequestContainer = Annotated[Container, Depends(_container)]


# Shortest and longest wait between writes of refusals: a single refusal is in the audit log within
# seconds, and a process that refuses requests all day writes fewer than 6,000 lines.
FIRST_S: Final = 5.0
LONGEST_S: Final = 15 * 60.0

_log = structlog.get_logger(__name__)


@contextlib.asynccontextmanager
async def writing_refusals(container: Container) -> AsyncIterator[None]:
    """Write refusals into the audit log while the context is open, and the rest at its end."""
    async with asyncio.TaskGroup() as tasks:
        writer = tasks.create_task(_write_repeatedly(container))
        try:
            yield
        finally:
            writer.cancel()
    await _write(container)


async def _write_repeatedly(container: Container) -> None:
    wait_s = FIRST_S
    while True:
        await asyncio.sleep(wait_s)
        wait_s = next_wait_s(wait_s, await _write(container))


def next_wait_s(wait_s: float, lines: int) -> float:
    """Return the seconds until the next write of refusals, given the last wait and its lines.

    Examples
    --------
    >>> next_wait_s(5.0, 3), next_wait_s(900.0, 1), next_wait_s(900.0, 0)
    (10.0, 900.0, 5.0)
    """
    return min(2 * wait_s, LONGEST_S) if lines else FIRST_S


async def _write(container: Container) -> int:
    try:
        return await anyio.to_thread.run_sync(write_refusals, container)
    except SQLAlchemyError as error:
        _log.warning("refusals are not written", error=str(error).splitlines()[0])
        return 0


T = TypeVar("T")


class Turns:
    """Separate threads for unauthenticated requests; used on one event loop.

    Such requests must not occupy the threads of signed-in users.

    Parameters
    ----------
    at_once : int
        Number of threads.
    waiting : int
        Number of requests that may wait for a thread; more are refused.
    """

    def __init__(self, at_once: int, waiting: int) -> None:
        self._limiter = CapacityLimiter(at_once)
        self._waiting = waiting

    async def run(self, work: Callable[[], T]) -> T:
        """Run `work` in one of the threads and return its result.

        Raises
        ------
        BusyError
            Too many requests wait.
        """
        if self._limiter.statistics().tasks_waiting >= self._waiting:
            raise BusyError("Too many ask at once; try again in a few seconds.")
        return await anyio.to_thread.run_sync(work, limiter=self._limiter)


def api_router(tag: str, prefix: str = "") -> APIRouter:
    """Return an empty guarded router; the documentation groups its routes under the tag."""
    return APIRouter(
        route_class=GuardedRoute,
        prefix=prefix,
        tags=[tag],
        responses={"default": described("A problem")},
    )
