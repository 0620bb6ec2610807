"""The figures say what the stored reports say: at once, once, and of earlier reports too."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from sqlalchemy import select

from app.analysis.fleet.figures import KINDS, QUANTILES
from app.db.models.fleet import SessionFigure
from app.services.access.moves import move_job
from app.services.access.projects import create_project
from app.services.sessions.reports import report_document
from tests.integration.dashboard.test_routes import analyzed
from tests.support.reads import read
from tests.support.sessions import short_trace, store

if TYPE_CHECKING:
    from app.bootstrap import Container


def rows(container: Container) -> list[SessionFigure]:
    with container.everywhere().reading() as tx:
        return list(tx.session.execute(select(SessionFigure)).scalars())


def test_an_analysis_writes_what_its_report_says(container: Container) -> None:
    stored = analyzed(container)
    report = read(container, report_document, stored.session)
    (row,) = rows(container)
    assert (row.session_id, row.slowdown) == (stored.session, report.slowdown)
    assert (row.m_w, row.m_s) == (report.m_w.rem, report.m_s.rem)
    assert row.lost_each_hour == pytest.approx(report.lost_gpu_hours_per_hour)
    assert set(row.waste) == set(KINDS)
    assert len(row.steps) == QUANTILES
    assert set(row.causes) == {cause.cause for cause in report.causes}


def test_a_session_without_a_report_is_in_no_figure(container: Container) -> None:
    store(container, short_trace())
    assert rows(container) == []


def test_figures_move_with_their_job(container: Container) -> None:
    analyzed(container, "moves")
    create_project(container.everywhere(), "other")
    move_job(container, "moves", "other")
    (row,) = rows(container)
    assert row.project_id != container.project_id
