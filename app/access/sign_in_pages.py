"""Pages of sign-in and sign-out: the form for passwords, and the redirect to a provider."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from typing import Annotated, Final
from urllib.parse import urlsplit

from fastapi import APIRouter, Form, Request
from fastapi.responses import RedirectResponse, Response

from app.access.guard import Turns
from app.access.guesses import KNOWN_FOR
from app.access.rights import known_cookie, pending_cookie, session_cookie
from app.access.sign_ins import SESSION_LASTS, note_failed_sign_in, sign_in, sign_out
from app.errors import PacelineError, SignInError, UnauthenticatedError
from app.platform.container import Container
from app.platform.identity import clipped
from app.platform.settings import Settings
from app.web.addresses import peer_of, server_address
from app.web.pages import Pages

CALLBACK: Final = "/sign-in/provider/callback"

# Numbers of threads for sign-in requests, which anyone can send: checking a password is slow on
# purpose, and a provider may be slow. In the threads of the other routes they could block all
# users.
PASSWORDS_AT_ONCE: Final = 2
PROVIDER_AT_ONCE: Final = 8
WAITING: Final = 64

# Largest number of characters of a provider's error message that a page shows.
MAX_SAID_CHARACTERS: Final = 100

Word = Annotated[str, Form(max_length=1000)]


def add_sign_in(routes: APIRouter, container: Container, pages: Pages) -> None:
    """Add the pages of sign-in and sign-out to the dashboard."""
    settings = container.settings
    form = partial(_form, pages, settings)
    turns = Turns(PASSWORDS_AT_ONCE, WAITING)
    cookie, browser_cookie = session_cookie(settings), known_cookie(settings)
    if settings.oidc_issuer is not None:
        _add_provider(routes, container, form)

    @routes.get("/sign-in")
    def sign_in_page(
        request: Request,
        next: str = "/",  # noqa: A002 - name of the parameter
    ) -> Response:
        return form(request, _own_path(next))

    @routes.post("/sign-in")
    async def sign_in_route(
        request: Request,
        name: Word,
        password: Word,
        next: Word = "/",  # noqa: A002 - as above
    ) -> Response:
        path = _own_path(next)
        try:
            signed_in = await turns.run(
                partial(
                    sign_in, container, name, password, _peer(request), browser_cookie.read(request)
                )
            )
        except UnauthenticatedError as error:
            return form(
                request, path, said=error.message, status=HTTPStatus.UNAUTHORIZED, user=name
            )
        response = RedirectResponse(path, HTTPStatus.SEE_OTHER)
        cookie.give(response, signed_in.cookie, SESSION_LASTS)
        if signed_in.known_by is not None:
            browser_cookie.give(response, signed_in.known_by, KNOWN_FOR)
        return response

    @routes.post("/sign-out")
    def sign_out_route(request: Request) -> Response:
        kept = cookie.read(request)
        if kept is not None:
            sign_out(container, kept)
        response = RedirectResponse("/sign-in", HTTPStatus.SEE_OTHER)
        cookie.drop(response)
        return response


def _add_provider(routes: APIRouter, container: Container, form: Callable[..., Response]) -> None:
    # Imported only if needed: these packages take a tenth of the server's start, and few servers
    # have a provider.
    from app.access.provider import PENDING_LASTS, Provider  # noqa: PLC0415

    provider, settings = Provider(container), container.settings
    turns = Turns(PROVIDER_AT_ONCE, WAITING)
    cookie, pending = session_cookie(settings), pending_cookie(settings)

    @routes.get("/sign-in/provider")
    async def begin_route(request: Request, next: str = "/") -> Response:  # noqa: A002 - as above
        path = _own_path(next)
        try:
            back = server_address(request, settings) + CALLBACK
            begun = await turns.run(partial(provider.begin, path, back))
        except PacelineError as error:
            return form(request, path, said=error.message, status=HTTPStatus.SERVICE_UNAVAILABLE)
        response = RedirectResponse(begun.url, HTTPStatus.SEE_OTHER)
        pending.give(response, begun.cookie, PENDING_LASTS)
        return response

    @routes.get(CALLBACK)
    async def finish_route(
        request: Request, state: str = "", code: str = "", error: str = ""
    ) -> Response:
        if error:
            said = clipped(error, MAX_SAID_CHARACTERS)
            return form(
                request,
                "/",
                said=f"The provider refused the sign-in: {said}.",
                status=HTTPStatus.UNAUTHORIZED,
            )
        try:
            back = server_address(request, settings) + CALLBACK
            finished = await turns.run(
                partial(provider.finish, pending.read(request) or "", state, code, back)
            )
        except SignInError as refused:
            note_failed_sign_in(container, _peer(request), refused)
            return form(request, "/", said=refused.message, status=HTTPStatus.UNAUTHORIZED)
        response = RedirectResponse(finished.next_path, HTTPStatus.SEE_OTHER)
        cookie.give(response, finished.signed_in.cookie, SESSION_LASTS)
        pending.drop(response)
        return response


def _form(  # noqa: PLR0913 - the contents of the form
    pages: Pages,
    settings: Settings,
    request: Request,
    next_path: str,
    *,
    said: str = "",
    status: int = HTTPStatus.OK,
    user: str = "",
) -> Response:
    return pages.render_alone(
        "access/sign_in.html",
        status=status,
        next_path=next_path,
        said=said,
        user=user,
        installation=urlsplit(server_address(request, settings)).netloc,
        provider=settings.oidc_issuer is not None,
    )


def _own_path(target: str) -> str:
    """Return the redirect target if it is a path of this server, else ``/``."""
    own = target.startswith("/") and not target.startswith("//")
    # Browsers read a backslash as a slash and drop control characters.
    return target if own and target.isprintable() and "\\" not in target else "/"


def _peer(request: Request) -> str:
    return peer_of(request.client.host) if request.client else ""
