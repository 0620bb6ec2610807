"""The guard of every route: it finds out who asks and for which project, before a body is read."""

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

from app.access.admission import Shown, admit, admit_unasked, identify, refused
from app.access.rights import NEEDS, Need, Open, session_cookie
from app.access.sign_ins import write_refusals
from app.errors import BusyError, CrossSiteError, ForbiddenError, UnauthenticatedError
from app.platform.container import Container
from app.platform.identity import Right
from app.web.addresses import peer_of
from app.web.problems import described
from app.web.project_paths import prefix_of

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


# ---- What a route takes: the container in the project of its request, and in the name of who asks
#
# Pages and API share this and the guard that puts it there. No router gets a process's own
# container to read or write with.


def here_of(request: Request) -> Container:
    """Return the container of a request that the guard let in."""
    found: Container = request.state.here
    return found


async def here(request: Request) -> Container:
    """Return the same where the framework asks for it."""
    # Asynchronous, as it waits for nothing: the framework calls a function in another thread.
    return here_of(request)


Here = Annotated[Container, Depends(here)]


# ---- Refusals on their way into the audit log: soon at first, ever more seldom while they go on --


# A process that is asked wrongly by everybody, day and night, writes fewer than 6,000 lines a day;
# one that is asked wrongly once writes it within seconds.
FIRST_S: Final = 5.0
LONGEST_S: Final = 15 * 60.0

_log = structlog.get_logger(__name__)


@contextlib.asynccontextmanager
async def writing_refusals(container: Container) -> AsyncIterator[None]:
    """Write refusals while the context lasts, and what is left at its end."""
    async with asyncio.TaskGroup() as tasks:
        writer = tasks.create_task(_write_on(container))
        try:
            yield
        finally:
            writer.cancel()
    await _write(container)


async def _write_on(container: Container) -> None:
    wait_s = FIRST_S
    while True:
        await asyncio.sleep(wait_s)
        wait_s = next_wait_s(wait_s, await _write(container))


def next_wait_s(wait_s: float, lines: int) -> float:
    """Return how long to wait for further refusals.

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


# ---- Turns of those who are not known yet: they must not hold the threads of those who are -----


T = TypeVar("T")


class Turns:
    """Threads of their own for what anybody may ask for; used on one event loop.

    Parameters
    ----------
    at_once : int
        Threads.
    waiting : int
        Requests that may wait for one; a further one is refused.
    """

    def __init__(self, at_once: int, waiting: int) -> None:
        self._limiter = CapacityLimiter(at_once)
        self._waiting = waiting

    async def run(self, work: Callable[[], T]) -> T:
        """Return what `work` returns, in a thread.

        Raises
        ------
        BusyError
            Too many wait.
        """
        if self._limiter.statistics().tasks_waiting >= self._waiting:
            raise BusyError("Too many ask at once; try again in a few seconds.")
        return await anyio.to_thread.run_sync(work, limiter=self._limiter)


# ---- The routers of the API: guarded, one tag each, and every answer may be a problem ----------


def api_router(tag: str, prefix: str = "") -> APIRouter:
    """Return a router without routes; the tag is the heading of its routes in the documentation."""
    return APIRouter(
        route_class=GuardedRoute,
        prefix=prefix,
        tags=[tag],
        responses={"default": described("A problem")},
    )
