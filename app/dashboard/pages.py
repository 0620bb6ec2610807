"""How a page is made: one transaction to read from, one template to render."""

from __future__ import annotations

import contextlib
import json
import re
from dataclasses import replace
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from fastapi.responses import HTMLResponse
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from app.access.principals import ActorKind, Right
from app.auth.project_paths import prefix_of
from app.dashboard.terms import (
    explained,
    explains,
    glossary,
    labeled,
    term,
    with_terms,
)
from app.dashboard.ui import format as fmt
from app.dashboard.ui import html, moments
from app.dashboard.ui.assets import PLOTLY_SIZE
from app.dashboard.ui.places import host_url

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from app.dashboard.ui.assets import Assets
    from app.db.unit_of_work import Reads
    from app.services.alerts.navigation import Navigation
    from app.services.container import Container

TEMPLATES_DIR: Final = Path(__file__).resolve().parents[2] / "frontend" / "templates"

# Paths in attributes, which lead to pages of the same project; files are everybody's. Text cannot
# look so: its quotation marks are escaped.
OWN_PATHS: Final = re.compile(r'="(/(?!static/|p/|sign-|api/docs|docs/|client/|/))')

# What templates call by name.
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

# A page is the state of a moment: always fetched anew, also on "back".
PAGE_HEADERS: Final = {"Cache-Control": "no-store"}


class Pages:
    """Reads and renders what all pages have in common.

    Parameters
    ----------
    assets : Assets
        The static files of the pages.
    navigation : callable
        Reads the counts that the navigation of every page shows.
    uploads : mapping of str to int
        Bytes that scripts send of the beginning (``head``) and the end (``tail``) of each file of
        a folder, and of all files together (``all``).
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
        # An installation without it fails when it starts.
        glossary()

    @contextlib.contextmanager
    def reading(self, container: Container) -> Iterator[tuple[Reads, Navigation]]:
        """Open the one transaction of a page; with it comes what every page shows.

        Render after it has ended: it holds a connection.
        """
        with container.reading() as tx:
            found = self._navigation(tx)
            who = container.principal
            yield (
                tx,
                replace(
                    found,
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
        """Return a page that is of no project and needs no transaction."""
        html = self._environment.get_template(name).render(**values)
        return HTMLResponse(html, status, PAGE_HEADERS)

    def not_found(self, what: str, nav: Navigation) -> HTMLResponse:
        """Return the page that says what was not found."""
        return self.render("not_found.html", nav, status=HTTPStatus.NOT_FOUND, what=what)


def _page_data(data: Mapping[str, Any]) -> Markup:
    """Return JSON for a data block: nothing in it can end the element it stands in."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c").replace("&", "\\u0026"))  # noqa: S704 - escaped here
