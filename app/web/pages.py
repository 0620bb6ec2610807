"""Rendering of pages: one read transaction and one template each; error pages for browsers."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

from fastapi.responses import HTMLResponse
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.platform.container import Container
from app.platform.database.unit_of_work import Reads
from app.platform.identity import ActorKind, Right
from app.web import format as fmt
from app.web import html, moments
from app.web.assets import PLOTLY_SIZE, Assets
from app.web.links import host_url
from app.web.project_paths import prefix_of
from app.web.terms import explained, explains, glossary, labeled, term, with_terms

TEMPLATES_DIR: Final = Path(__file__).resolve().parents[2] / "frontend" / "templates"

# Paths in HTML attributes that lead to pages of the same project; static files are shared by all
# projects. Text cannot match, because its quotation marks are escaped.
OWN_PATHS: Final = re.compile(r'="(/(?!static/|p/|sign-|api/docs|docs/|client/|/))')

# Functions that templates call by name.
PARTS: Final = (
    html.severity,
    html.state,
    html.glyph,
    html.swatch,
    html.spark,
    explained,
    explains,
    labeled,
    term,
    moments.ago,
    moments.when,
    moments.minute,
    moments.exact,
    moments.date,
    moments.timed,
)

# A page shows the state at a moment, so browsers always fetch it again, also on "back".
PAGE_HEADERS: Final = {"Cache-Control": "no-store"}


class Pages:
    """Renders pages, with the data that all pages share.

    Parameters
    ----------
    assets : Assets
        The static files of the pages.
    navigation : callable
        Reads the counts that the navigation of every page shows.
    uploads : mapping of str to int
        Limits in bytes for the script that uploads a folder: of the beginning (``head``) and the
        end (``tail``) of each file, and of all files together (``all``).
    """

    def __init__(
        self,
        assets: Assets,
        navigation: Callable[[Reads], Navigation],
        uploads: Mapping[str, int],
    ) -> None:
        self._navigation = navigation
        self._environment = Environment(
            loader=FileSystemLoader(TEMPLATES_DIR),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._environment.globals.update(
            static=assets.url,
            plotly_style=assets.plotly_style,
            plotly_size=PLOTLY_SIZE,
            uploads=uploads,
            fmt=fmt,
            page_data=_page_data,
            project_url=prefix_of,
            host_url=host_url,
            **{part.__name__: part for part in PARTS},
        )
        self._environment.filters["count"] = fmt.count
        # An installation without the glossary fails at the start of the server.
        glossary()

    @contextlib.contextmanager
    def reading(self, container: Container) -> Iterator[tuple[Reads, Navigation]]:
        """Open the read transaction of a page, and read the data of its navigation.

        Render the page after the transaction has ended, because it holds a database connection.
        """
        with container.reading() as tx:
            navigation = self._navigation(tx)
            who = container.principal
            yield (
                tx,
                replace(
                    navigation,
                    signed_in=who.name if who.kind is ActorKind.PERSON else "",
                    operates=Right.OPERATE in who.rights_in(container.project_id),
                    ingests=Right.INGEST in who.rights_in(container.project_id),
                    administers=Right.ADMIN in who.everywhere,
                    base=container.pages_at,
                ),
            )

    def render(
        self,
        name: str,
        nav: Navigation,
        *,
        status: int = HTTPStatus.OK,
        **values: Any,  # noqa: ANN401 - what templates take
    ) -> HTMLResponse:
        """Return a rendered page."""
        html = with_terms(self._environment.get_template(name).render(nav=nav, **values))
        if nav.base:
            html = OWN_PATHS.sub(rf'="{nav.base}\1', html)
        return HTMLResponse(html, status, PAGE_HEADERS)

    def render_alone(
        self,
        name: str,
        *,
        status: int = HTTPStatus.OK,
        **values: Any,  # noqa: ANN401 - what templates take
    ) -> HTMLResponse:
        """Return a page that belongs to no project and needs no transaction."""
        html = self._environment.get_template(name).render(**values)
        return HTMLResponse(html, status, PAGE_HEADERS)

    def not_found(self, what: str, nav: Navigation) -> HTMLResponse:
        """Return the error page that names what was not found."""
        return self.render("not_found.html", nav, status=HTTPStatus.NOT_FOUND, what=what)


def _page_data(data: Mapping[str, Any]) -> Markup:
    """Return JSON for a script element, escaped so that it cannot end the element."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c").replace("&", "\\u0026"))  # noqa: S704 - escaped here


PROBLEM: Final = "application/problem+json"
# Paths for programs, which get no error pages whatever their Accept header.
OF_PROGRAMS: Final = ("/api/", "/static/", "/metrics", "/healthz", "/readyz")
# Statuses after which signing in, possibly as another user, helps.
SIGN_IN_HELPS: Final = frozenset({401, 403})


class ErrorPages:
    """ASGI middleware that replaces problem documents by error pages if a browser would get them.

    An application has it twice: inside of the compression, for answers of routes, and outside of
    the guards, for their refusals.

    Parameters
    ----------
    app : ASGI application
    pages : Pages
    """

    def __init__(self, app: ASGIApp, pages: Pages) -> None:
        self.app = app
        self.pages = pages

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request; replace a problem document by an error page."""
        if scope["type"] != "http" or not _asks_for_page(scope):
            await self.app(scope, receive, send)
            return
        start: Message | None = None
        body = b""

        async def send_page(message: Message) -> None:
            nonlocal start, body
            if message["type"] == "http.response.start" and _is_problem(message):
                start = message
            elif start is None:
                await send(message)
            else:
                body += message.get("body", b"")
                if not message.get("more_body", False):
                    await self._send(start, body, send)

        await self.app(scope, receive, send_page)

    async def _send(self, start: Message, body: bytes, send: Send) -> None:
        # The body is empty if the request was HEAD.
        problem = json.loads(body) if body else {"title": "", "detail": "", "code": ""}
        page = self.pages.render_alone(
            "problem.html",
            status=start["status"],
            number=start["status"],
            title=problem["title"],
            detail=problem["detail"],
            code=problem["code"],
            sign_in_helps=start["status"] in SIGN_IN_HELPS,
        )
        MutableHeaders(scope=start).update(page.headers)
        await send(start)
        await send({"type": "http.response.body", "body": page.body if body else b""})


def _asks_for_page(scope: Scope) -> bool:
    accepted = Headers(scope=scope).get("accept", "")
    return "text/html" in accepted and not scope["path"].startswith(OF_PROGRAMS)


def _is_problem(start: Message) -> bool:
    headers = Headers(raw=start["headers"])
    return headers.get("content-type", "").startswith(PROBLEM) and "content-encoding" not in headers


@dataclass(frozen=True, slots=True)
class Navigation:
    """The counts and the user's name in the navigation."""

    firing: int  # incidents that fire and are not acknowledged
    # Names of the channels that deliver nothing although no user disabled them.
    dead_channels: tuple[str, ...]
    asked: int = 0  # actions on machines that wait for a person
    signed_in: str = ""  # name of the person whose page it is; empty without sign-in
    operates: bool = True  # whether they may act in the project
    ingests: bool = True  # whether they may send recordings to it
    administers: bool = False  # whether they administer the installation
    base: str = ""  # what stands before the paths of the project's pages
