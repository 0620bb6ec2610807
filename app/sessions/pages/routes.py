"""Routes of a session's page and of its CSV tables."""

from __future__ import annotations

import uuid
from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import Response

from app.access.guard import RequestContainer
from app.analysis.replay.metrics import STRAGGLING
from app.errors import NotFoundError
from app.fixes.applied import realized_fixes
from app.fixes.pages import applied_csv, applied_fixes, lacking_text, whole_job_line
from app.incidents.everywhere import onset_of_job
from app.incidents.pages.parts import actions
from app.incidents.views import open_by_job
from app.plans.of_session import remedies
from app.platform.database.states import SessionState
from app.sessions.history import around
from app.sessions.pages.exports import EXPORTS, WITHOUT_REPORT, workers_csv
from app.sessions.pages.session import SessionQueryParam, kept, report_view, session_page
from app.sessions.read import get_session, heatmap, report_document
from app.web.pages import Pages
from app.web.tables import csv_file, one_of

Step = Annotated[int | None, Query()]


def add_session_pages(routes: APIRouter, pages: Pages) -> None:
    """Add the routes of a session's page and of its CSV tables."""

    @routes.get("/sessions/{session}")
    def session_route(
        container: RequestContainer, session: str, query: SessionQueryParam
    ) -> Response:
        with pages.reading(container) as (tx, nav):
            try:
                view = get_session(tx, uuid.UUID(session), container.settings)
            except (ValueError, NotFoundError):
                return pages.not_found(f"session {session}", nav)
            neighbors = around(tx, view.row)
            onset = (
                None
                if view.row.headline is None
                else onset_of_job(tx, view.row.job, view.row.received_at, STRAGGLING)
            )
            document = (
                report_document(tx, view.row.id)
                if view.has_report and view.row.state in SessionState.REPORTED
                else None
            )
            incidents = open_by_job(tx, view.row.job).get(view.row.job, [])
            plannable = document is not None and view.row.headline is not None and kept(view).trace
            applied_remedies = remedies(
                tx, session=view.row.id, planned_by=view.row.id if plannable else None
            )
        report = (
            None
            if document is None
            else report_view(
                document,
                f"/sessions/{view.row.id}",
                step=query.step,
                dp=query.dp,
                pp=query.pp,
                collective=query.collective,
            )
        )
        page = session_page(
            view,
            neighbors,
            document,
            report,
            onset=onset,
            max_attempts=container.settings.max_attempts,
            incidents=[actions(row, view.now) for row in incidents],
        )
        return pages.render(
            "sessions/page.html",
            nav,
            page=page,
            now=page.now,
            applied=applied_fixes(
                applied_remedies, f"/sessions/{view.row.id}/applied.csv", view.now, unapply=True
            ),
            exact=query.exact,
            whole_job=whole_job_line(applied_remedies.whole_job),
            whole_job_lacking=lacking_text(applied_remedies.whole_job),
        )

    @routes.get("/sessions/{session}/{name}.csv")
    def export_route(
        container: RequestContainer, session: uuid.UUID, name: str, step: Step = None
    ) -> Response:
        of_step = step if name == "workers" else None
        with container.reading() as tx:
            view = get_session(tx, session, container.settings)
            if name == "applied":
                table = applied_csv(realized_fixes(tx, session=session))
            elif name in WITHOUT_REPORT:
                table = WITHOUT_REPORT[name](view)
            else:
                make, document = one_of(EXPORTS, name), report_document(tx, session)
                table = (
                    make(document)
                    if of_step is None
                    else workers_csv(document, heatmap(tx, session, of_step))
                )
        suffix = "" if of_step is None else f"-step-{of_step}"
        return csv_file(f"paceline-session-{view.row.number}-{name}{suffix}.csv", table)
