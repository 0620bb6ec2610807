"""Routes of the fleet, of a job, and of their tables as CSV."""

from __future__ import annotations

import uuid
from http import HTTPStatus
from typing import Final
from urllib.parse import quote

from fastapi import APIRouter, Request
from fastapi.responses import RedirectResponse, Response

from app.access.guard import RequestContainer
from app.analysis.replay.metrics import STRAGGLING
from app.errors import NotFoundError
from app.fixes.applied import realized_fixes
from app.fixes.pages import applied_csv, applied_fixes, fleet_fixes, whole_job_line
from app.hangs.pages import hangs_csv, hangs_table
from app.hangs.read import hangs_and_groups, hangs_of_job
from app.incidents.pages.parts import actions
from app.incidents.views import open_by_job
from app.installation.readiness import installation_status
from app.jobs.fleet import PAGE as FLEET_PAGE
from app.jobs.fleet import fleet_view
from app.jobs.fleet_report import sampled_jobs
from app.jobs.pages.connect import arriving, launcher_tabs, way_tabs
from app.jobs.pages.exports import FLEET, fleet_csv, marks_csv, moment_of, sessions_csv
from app.jobs.pages.fleet import fleet_page
from app.jobs.pages.job import job_page
from app.jobs.pages.query import FleetQueryParam, view_bar
from app.jobs.pages.report_routes import figures_page
from app.jobs.pages.tables import shown_session
from app.jobs.saved_views import list_views, shared_view
from app.jobs.time_axis import DRAWN_POINTS, JobAxis, job_axis, known_job
from app.plans.of_session import remedies
from app.platform.container import Container
from app.pulse.follow import live_steps
from app.pulse.live import live_job
from app.pulse.pages import live_view, unrecorded_job
from app.sessions.arriving import first_arrivals
from app.sessions.history import PAGE, fleet, job_history
from app.web.addresses import server_address
from app.web.links import Address, QueryText, job_url, page_number
from app.web.lists import PageRequest
from app.web.pages import Pages
from app.web.tables import csv_file, one_of
from app.web.time_ranges import ALL, TimeQuery, TimeQueryParam

# Number of applied fixes on the page of the fleet, newest first.
NEWEST_FIXES: Final = 10
# Number of hangs on the page of a job.
HANGS: Final = 10


def add_job_pages(routes: APIRouter, pages: Pages) -> None:
    """Add the routes of the fleet and of jobs."""
    _add_fleet(routes, pages)
    _add_job(routes, pages)
    _add_exports(routes)


def _add_fleet(routes: APIRouter, pages: Pages) -> None:
    @routes.get("/")
    def fleet_route(
        container: RequestContainer, request: Request, time: TimeQueryParam, query: FleetQueryParam
    ) -> Response:
        about = time.about()
        if query.figures:
            report_query = query.of_figures
            with pages.reading(container) as (tx, nav):
                selection = (tx, about.since(tx.now), about.end, report_query, query.sample)
                jobs, now = sampled_jobs(*selection), tx.now
            shown = figures_page(jobs, now, about, report_query, query.tabs(about))
            return pages.render("jobs/figures.html", nav, page=shown, now=now)
        with pages.reading(container) as (tx, nav):
            view = fleet_view(
                tx,
                moment_of(tx, about),
                query.filtered,
                page=PageRequest(query.sort, query.number, FLEET_PAGE),
                silent_page=query.silent_number,
            )
            views, running = list_views(tx, container.principal), live_steps(tx)
            fixes = fleet_fixes(remedies(tx, most=NEWEST_FIXES), "/fleet/fixes.csv", tx.now)
            is_empty = not view.groups and about.end is None and not query.archived
            status = installation_status(tx, container.settings) if is_empty else None
            arrived = first_arrivals(tx) if is_empty else None
        page = fleet_page(view, query, about, running)
        if status is None or arrived is None:
            bar = view_bar(views, query, about)
            return pages.render(
                "jobs/page.html", nav, page=page, now=page.now, applied=fixes, views=bar
            )
        address = server_address(request, container.settings)
        return pages.render(
            "jobs/empty.html",
            nav,
            page=page,
            now=page.now,
            server=address,
            ways=way_tabs(address),
            launchers=launcher_tabs(address),
            project=arrived.project,
            arriving=arriving(address, status, arrived, guarded=container.settings.require_sign_in),
            workers=sum(worker.alive for worker in status.workers),
            all_workers=len(status.workers),
        )

    @routes.get("/views/{view}")
    def view_route(container: RequestContainer, view: str) -> Response:
        with pages.reading(container) as (tx, nav):
            try:
                saved = shared_view(tx, uuid.UUID(view))
            except (ValueError, NotFoundError):
                return pages.not_found(f"view {view}", nav)
        query = f"?{saved.query}" if saved.query else ""
        return RedirectResponse(f"{container.pages_at}/{query}", HTTPStatus.SEE_OTHER)


def _add_job(routes: APIRouter, pages: Pages) -> None:
    @routes.get("/jobs/{job}")
    def job_route(
        container: RequestContainer,
        job: str,
        time: TimeQueryParam,
        sort: QueryText = "",
        page: QueryText = "",
    ) -> Response:
        about = time.about(ALL)
        parameters = {**time.parameters, "sort": sort, "page": page}
        with pages.reading(container) as (tx, nav):
            summary, pulse = fleet(tx, job=job), live_job(tx, job)
            hangs, groups = hangs_and_groups(tx, job, HANGS)
            incidents = open_by_job(tx, job).get(job, []) if summary.jobs or pulse else []
            if summary.jobs:
                history = job_history(
                    tx,
                    job,
                    since=about.since(summary.now),
                    until=about.end,
                    request=PageRequest(sort, page_number(page), PAGE),
                    slow=STRAGGLING,
                )
                times_of = job_axis(
                    tx, job, since=about.since(summary.now), until=about.end, most=DRAWN_POINTS
                )
                applied_remedies = remedies(
                    tx, job=job, planned_by=shown_session(summary.jobs[0]).id
                )
        live = None if pulse is None else live_view(pulse)
        if not summary.jobs:
            if live is not None:
                return pages.render(
                    "pulse/job.html",
                    nav,
                    page=unrecorded_job(live, [actions(row, summary.now) for row in incidents]),
                    live=live,
                    now=summary.now,
                    groups=groups,
                    hangs=hangs_table(hangs, job, summary.now),
                )
            if hangs:
                return RedirectResponse(
                    f"{container.pages_at}/hangs/{hangs[0].id}", HTTPStatus.SEE_OTHER
                )
            if groups:
                return RedirectResponse(
                    f"{container.pages_at}/jobs/{quote(job)}/tensor", HTTPStatus.SEE_OTHER
                )
            return pages.not_found(f"job {job}", nav)
        shown = job_page(
            summary,
            history,
            times_of,
            incidents=[actions(row, summary.now) for row in incidents],
            about=about,
            address=Address(job_url(job), parameters),
        )
        return pages.render(
            "jobs/job.html",
            nav,
            page=shown,
            now=summary.now,
            groups=groups,
            applied=applied_fixes(applied_remedies, f"{job_url(job)}/fixes.csv", summary.now),
            hangs=hangs_table(hangs, job, summary.now),
            live=live,
            whole_job=whole_job_line(applied_remedies.whole_job),
        )


def _job_axis(container: Container, job: str, time: TimeQuery) -> JobAxis:
    about = time.about(ALL)
    with container.reading() as tx:
        known_job(tx, job)
        return job_axis(tx, job, since=about.since(tx.now), until=about.end)


def _add_exports(routes: APIRouter) -> None:
    @routes.get("/jobs/{job}/sessions.csv")
    def job_sessions_route(container: RequestContainer, job: str, time: TimeQueryParam) -> Response:
        return csv_file("paceline-job-sessions.csv", sessions_csv(_job_axis(container, job, time)))

    @routes.get("/jobs/{job}/marks.csv")
    def job_marks_route(container: RequestContainer, job: str, time: TimeQueryParam) -> Response:
        return csv_file("paceline-job-marks.csv", marks_csv(_job_axis(container, job, time)))

    @routes.get("/jobs/{job}/hangs.csv")
    def job_hangs_route(container: RequestContainer, job: str) -> Response:
        with container.reading() as tx:
            known_job(tx, job)
            hangs = hangs_of_job(tx, job)
        return csv_file("paceline-job-hangs.csv", hangs_csv(hangs))

    @routes.get("/jobs/{job}/fixes.csv")
    def job_fixes_route(container: RequestContainer, job: str) -> Response:
        with container.reading() as tx:
            known_job(tx, job)
            fixes = realized_fixes(tx, job=job)
        return csv_file("paceline-job-fixes.csv", applied_csv(fixes))

    @routes.get("/fleet/{name}.csv")
    def fleet_file_route(
        container: RequestContainer, name: str, time: TimeQueryParam, query: FleetQueryParam
    ) -> Response:
        if name == "fixes":
            with container.reading() as tx:
                return csv_file("paceline-fixes.csv", applied_csv(realized_fixes(tx)))
        pages = one_of(FLEET, name)
        with container.reading() as tx:
            running = live_steps(tx)
        jobs = pages(container, time.about(), query)
        return csv_file(f"paceline-{name}.csv", fleet_csv(jobs, running))
