"""The fleet's figures agree with the verdicts that analyses store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import select

from app.access.moves import move_job
from app.access.projects import create_project
from app.analysis.report.session_verdict import KINDS, QUANTILES
from app.jobs.fleet_costs import job_figures
from app.jobs.fleet_report import fleet_report
from app.sessions.models.tables import StoredVerdict
from app.sessions.read import report_document
from tests.integration.pages.test_routes import analyzed
from tests.support.reads import read
from tests.support.sessions import refused_trace, store

if TYPE_CHECKING:
    from app.platform.container import Container


def test_an_analyzed_session_is_in_the_figures(container: Container) -> None:
    stored = analyzed(container)
    report = read(container, report_document, stored.session)
    found = read(container, fleet_report, None, None)
    (job,) = read(container, job_figures, None, None)
    assert (job.session, job.slowdown) == (stored.session, report.slowdown)
    assert (job.gpus, job.stages) == (report.sizes.world, report.sizes.pp)
    assert report.m_w.published is not None
    assert (job.m_w, job.m_s, job.correlation) == (
        report.m_w.published.rem,
        report.m_s.rem,
        report.fb_correlation.pearson,
    )
    assert set(job.waste_by) == set(KINDS)
    assert len(job.steps) == QUANTILES
    assert {cause.cause for cause in found.spent.causes} == {cause.cause for cause in report.causes}


def test_a_session_without_a_report_is_in_no_figure(container: Container) -> None:
    store(container, refused_trace())
    assert read(container, job_figures, None, None) == ()


def test_verdicts_move_with_their_job(container: Container) -> None:
    analyzed(container, "moves")
    create_project(container.everywhere(), "other")
    move_job(container, "moves", "other")
    with container.everywhere().reading() as tx:
        row = tx.session.execute(select(StoredVerdict)).scalar_one()
    assert row.project_id != container.project_id
