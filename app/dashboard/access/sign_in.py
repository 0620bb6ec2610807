"""Sign in and out: the form for people with a password of ours, and the way to a provider."""

from __future__ import annotations

from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Annotated, Final

from fastapi import APIRouter, Cookie, Form, Request
from fastapi.responses import RedirectResponse, Response

from app.dashboard.pages import Pages
from app.door.cookies import PENDING_COOKIE, SESSION_COOKIE, drop_cookie, set_cookie
from app.door.turns import Turns
from app.errors import PacelineError, SignInError, UnauthenticatedError
from app.services.access.people import SESSION_LASTS, sign_in, sign_out
from app.services.access.provider import PENDING_LASTS, Provider

if TYPE_CHECKING:
    from collections.abc import Callable

    from app.services.container import Container
    from app.settings import Settings

CALLBACK: Final = "/sign-in/provider/callback"

# Who signs in is not known yet, and may be anybody: checking a password takes time on purpose, and
# a provider may be slow. In the threads of all other routes they would keep everybody out.
PASSWORDS_AT_ONCE: Final = 2
PROVIDER_AT_ONCE: Final = 8
WAITING: Final = 64

Word = Annotated[str, Form(max_length=1000)]


def add_sign_in(routes: APIRouter, container: Container, pages: Pages) -> None:
    """Add the pages of signing in and out to the dashboard."""
    settings = container.settings
    with_provider = settings.oidc_issuer is not None
    form = partial(_form, pages, provider=with_provider)
    turns = Turns(PASSWORDS_AT_ONCE, WAITING)
    if with_provider:
        _add_provider(routes, Provider(container), settings, form)

    @routes.get("/sign-in")
    def sign_in_page(next: str = "/") -> Response:  # noqa: A002 - name of the parameter
        return form(_own_path(next))

    @routes.post("/sign-in")
    async def sign_in_route(name: Word, password: Word, next: Word = "/") -> Response:  # noqa: A002 - as above
        path = _own_path(next)
        try:
            signed_in = await turns.run(partial(sign_in, container, name, password))
        except UnauthenticatedError as error:
            return form(path, error.message, HTTPStatus.UNAUTHORIZED)
        response = RedirectResponse(path, HTTPStatus.SEE_OTHER)
        set_cookie(response, settings, SESSION_COOKIE, signed_in.cookie, SESSION_LASTS)
        return response

    @routes.post("/sign-out")
    def sign_out_route(
        paceline_session: Annotated[str | None, Cookie(alias=SESSION_COOKIE)] = None,
    ) -> Response:
        if paceline_session is not None:
            sign_out(container, paceline_session)
        response = RedirectResponse("/sign-in", HTTPStatus.SEE_OTHER)
        drop_cookie(response, SESSION_COOKIE)
        return response


def _add_provider(
    routes: APIRouter, provider: Provider, settings: Settings, form: Callable[..., Response]
) -> None:
    turns = Turns(PROVIDER_AT_ONCE, WAITING)

    @routes.get("/sign-in/provider")
    async def begin_route(request: Request, next: str = "/") -> Response:  # noqa: A002 - as above
        path = _own_path(next)
        try:
            back = _callback(request, settings.external_url)
            begun = await turns.run(partial(provider.begin, path, back))
        except PacelineError as error:
            return form(path, error.message, HTTPStatus.SERVICE_UNAVAILABLE)
        response = RedirectResponse(begun.url, HTTPStatus.SEE_OTHER)
        set_cookie(response, settings, PENDING_COOKIE, begun.cookie, PENDING_LASTS)
        return response

    @routes.get(CALLBACK)
    async def finish_route(
        request: Request,
        state: str = "",
        code: str = "",
        error: str = "",
        paceline_sign_in: Annotated[str, Cookie(alias=PENDING_COOKIE)] = "",
    ) -> Response:
        if error:
            return form("/", f"The provider refuses: {error}.", HTTPStatus.UNAUTHORIZED)
        try:
            back = _callback(request, settings.external_url)
            finished = await turns.run(
                partial(provider.finish, paceline_sign_in, state, code, back)
            )
        except SignInError as refused:
            return form("/", refused.message, HTTPStatus.UNAUTHORIZED)
        response = RedirectResponse(finished.next_path, HTTPStatus.SEE_OTHER)
        set_cookie(response, settings, SESSION_COOKIE, finished.signed_in.cookie, SESSION_LASTS)
        drop_cookie(response, PENDING_COOKIE)
        return response


def _form(
    pages: Pages, next_path: str, said: str = "", status: int = HTTPStatus.OK, *, provider: bool
) -> Response:
    return pages.render_alone(
        "access/sign_in.html", status=status, next_path=next_path, said=said, provider=provider
    )


def _own_path(asked: str) -> str:
    """Return a path of this server: a link must not lead on to somebody else's."""
    return asked if asked.startswith("/") and not asked.startswith(("//", "/\\")) else "/"


def _callback(request: Request, external_url: str | None) -> str:
    base = external_url or str(request.base_url)
    return base.rstrip("/") + CALLBACK
