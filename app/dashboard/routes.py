"""The pages, their static files and the data behind their figures."""

from __future__ import annotations

import json
import uuid
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

from fastapi import APIRouter, Header, Query, Request
from fastapi.responses import HTMLResponse, PlainTextResponse, Response
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from app.dashboard.alerts.pages import add_alert_pages
from app.dashboard.alerts.parts import actions
from app.dashboard.alerts.rule_pages import add_rule_pages
from app.dashboard.fleet.view import fleet_page, job_page
from app.dashboard.look import format as fmt
from app.dashboard.look.assets import Assets
from app.dashboard.plans.pages import add_plan_pages
from app.dashboard.session.exports import EXPORTS, workers_csv
from app.dashboard.session.report import report_view
from app.dashboard.session.view import session_page
from app.errors import NotFoundError
from app.services.alerts.channel_views import dead_channels
from app.services.alerts.incidents import count_firing
from app.services.alerts.views import open_by_job
from app.services.installation.status import installation_status
from app.services.sessions.fleet import fleet
from app.services.sessions.read import get_session
from app.services.sessions.reports import heatmap, report_document

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from app.services.container import Container

TEMPLATES_DIR: Final = Path(__file__).resolve().parents[2] / "frontend" / "templates"

# What a job's page lists, and how far a session's page looks for its neighbors.
JOB_SESSIONS: Final = 200
REPORT_STATES: Final = ("analyzed", "no_verdict")

# Longer numbers are no step of any training, and too long ones are slow to parse.
MAX_DIGITS: Final = 19

# A page is the state of a moment: always fetched anew, also on "back".
PAGE_HEADERS: Final = {"Cache-Control": "no-store"}
# An export belongs to a report, which is replaced as a whole if at all.
EXPORT_HEADERS: Final = {"Cache-Control": "no-cache"}

# Pages are forgiving: what is no number is as good as not asked for.
Asked = Annotated[str, Query()]
Step = Annotated[int | None, Query()]


class Pages:
    """Renders templates with what all pages have in common.

    Parameters
    ----------
    assets : Assets
        Where the pages' static files are.
    count_firing : callable
        How many incidents fire, which every page says.
    dead_channels : callable
        Their names, the same.
    """

    def __init__(
        self,
        assets: Assets,
        count_firing: Callable[[], int],
        dead_channels: Callable[[], list[str]],
    ) -> None:
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
            fmt=fmt,
            page_data=_page_data,
            count_firing=count_firing,
            dead_channels=dead_channels,
        )
        self._environment.filters["count"] = fmt.count

    def render(self, name: str, *, status: int = HTTPStatus.OK, **values: Any) -> HTMLResponse:  # noqa: ANN401 - what templates take
        """Return a rendered page."""
        html = self._environment.get_template(name).render(**values)
        return HTMLResponse(html, status, PAGE_HEADERS)

    def not_found(self, what: str) -> HTMLResponse:
        """Return the page that says what there is not."""
        return self.render("not_found.html", status=HTTPStatus.NOT_FOUND, what=what)


def router(container: Container) -> APIRouter:
    """Return the routes of the dashboard."""
    routes = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)
    assets = Assets()
    pages = Pages(assets, partial(count_firing, container), partial(dead_channels, container))
    _add_pages(routes, container, pages)
    _add_exports(routes, container)
    add_plan_pages(routes, container, pages)
    add_alert_pages(routes, container, pages)
    add_rule_pages(routes, container, pages)

    @routes.get("/static/{address:path}")
    def static(address: str, accept_encoding: Annotated[str, Header()] = "") -> Response:
        found = assets.find(address, accept_encoding)
        if found is None:
            return PlainTextResponse(
                "There is no such file.", HTTPStatus.NOT_FOUND, {"Cache-Control": "no-store"}
            )
        return Response(found.body, headers=found.headers)

    return routes


def _add_pages(routes: APIRouter, container: Container, pages: Pages) -> None:
    @routes.get("/")
    def fleet_route(request: Request) -> Response:
        page = fleet_page(fleet(container), open_by_job(container))
        if page.jobs:
            return pages.render("fleet/page.html", page=page, now=page.now)
        status = installation_status(container)
        alive = sum(worker.alive for worker in status.workers)
        return pages.render(
            "fleet/empty.html",
            page=page,
            now=page.now,
            server=str(request.base_url).rstrip("/"),
            workers=alive,
            waiting=status.tasks["queued"],
        )

    @routes.get("/jobs/{job}")
    def job_route(job: str) -> Response:
        found = fleet(container, job=job, per_job=JOB_SESSIONS)
        if not found.jobs:
            return pages.not_found(f"job {job}")
        return pages.render("fleet/job.html", page=job_page(found, JOB_SESSIONS), now=found.now)

    @routes.get("/sessions/{session}")
    def session_route(session: str, step: Asked = "", dp: Asked = "", pp: Asked = "") -> Response:
        try:
            view = get_session(container, uuid.UUID(session))
        except (ValueError, NotFoundError):
            return pages.not_found(f"session {session}")
        found = fleet(container, job=view.row.job, per_job=JOB_SESSIONS)
        document = (
            report_document(container, view.row.id)
            if view.has_report and view.row.state in REPORT_STATES
            else None
        )
        report = (
            None
            if document is None
            else report_view(document, step=_number(step), dp=_number(dp), pp=_number(pp))
        )
        page = session_page(
            view,
            found.jobs[0],
            document,
            report,
            max_attempts=container.settings.max_attempts,
            incidents=[
                actions(row, view.now)
                for row in open_by_job(container, view.row.job).get(view.row.job, [])
            ],
        )
        return pages.render("session/page.html", page=page, now=page.now)


def _add_exports(routes: APIRouter, container: Container) -> None:
    @routes.get("/sessions/{session}/{name}.csv")
    def export_route(session: uuid.UUID, name: str, step: Step = None) -> Response:
        make = EXPORTS.get(name)
        if make is None:
            raise NotFoundError(f"There is no {name}.csv.")
        view = get_session(container, session)
        document = report_document(container, session)
        suffix = ""
        if name == "workers" and step is not None:
            text = workers_csv(document, heatmap(container, session, step))
            suffix = f"-step-{step}"
        else:
            text = make(document)
        file_name = f"paceline-session-{view.row.number}-{name}{suffix}.csv"
        return Response(
            text,
            media_type="text/csv; charset=utf-8",
            headers=EXPORT_HEADERS | {"Content-Disposition": f'attachment; filename="{file_name}"'},
        )


def _number(asked: str) -> int | None:
    """Return the step, DP rank or stage that an address asks for, if it is one."""
    return int(asked) if asked.isascii() and asked.isdecimal() and len(asked) < MAX_DIGITS else None


def _page_data(data: Mapping[str, Any]) -> Markup:
    """Return JSON for a data block: nothing in it can end the element it stands in."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c").replace("&", "\\u0026"))  # noqa: S704 - escaped here
