"""Use case: keep what the figures of a fleet need of each report, so that none is read for them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import structlog
from sqlalchemy import delete, select, update

from app.analysis.fleet.figures import figures_of
from app.db.documents import open_report
from app.db.models.access import Project
from app.db.models.fleet import SessionFigure
from app.db.models.sessions import Session, StoredReport
from app.db.reports import read_document
from app.errors import UnknownDocumentError

if TYPE_CHECKING:
    import uuid

    from app.analysis.report.document import Report
    from app.db.unit_of_work import UnitOfWork
    from app.services.container import Container

# Reports of before the figures that one pass of the sweeper reads at most, and for how long.
BATCH: Final = 64
PASS_LIMIT_S: Final = 5.0

_log = structlog.get_logger(__name__)


def write_figures(tx: UnitOfWork, session_id: uuid.UUID, report: Report | None) -> None:
    """Write what a report is in the figures, in place of what an earlier one of the session was.

    In the transaction that stores the report: figures never say anything else than reports do.

    Parameters
    ----------
    tx : UnitOfWork
    session_id : UUID
    report : Report or None
        None where there is none any more.
    """
    tx.session.execute(delete(SessionFigure).where(SessionFigure.session_id == session_id))
    if report is None:
        return
    tx.session.execute(
        update(StoredReport).where(StoredReport.session_id == session_id).values(in_figures=True)
    )
    job_id, received_at, metadata = tx.session.execute(
        select(Session.job_id, Session.received_at, Session.meta).where(Session.id == session_id)
    ).one()
    figures = figures_of(report, metadata)
    if figures is None:
        return
    tx.session.add(
        SessionFigure(
            session_id=session_id,
            job_id=job_id,
            received_at=received_at,
            gpus=figures.gpus,
            stages=figures.stages,
            context=figures.context,
            slowdown=figures.slowdown,
            lost_each_hour=figures.lost_each_hour,
            measured_s=figures.measured_s,
            m_w=figures.m_w,
            m_s=figures.m_s,
            correlation=figures.correlation,
            waste=dict(figures.waste),
            steps=list(figures.steps),
            causes=dict(figures.causes),
        )
    )
    tx.session.flush()


def fill_figures(container: Container) -> int:
    """Read reports that were stored before there were figures, the newest first, for a while.

    Each is a transaction of its own; one that another process is at, or that is being replaced, is
    left to the next pass.

    Parameters
    ----------
    container : Container

    Returns
    -------
    int
        How many reports were read.
    """
    with container.everywhere().reading() as tx:
        left = tx.session.execute(
            select(StoredReport.session_id, StoredReport.project_id)
            .join(Project, Project.id == StoredReport.project_id)
            .where(~StoredReport.in_figures, Project.deleted_at.is_(None))
            .order_by(StoredReport.created_at.desc())
            .limit(BATCH)
        ).all()
    until_s = time.monotonic() + PASS_LIMIT_S
    read = 0
    for session_id, project_id in left:
        if time.monotonic() >= until_s:
            break
        read += _fill_one(container.within(project_id), session_id)
    if read:
        _log.info("reports read into the figures of the fleet", reports=read)
    return read


def _fill_one(container: Container, session_id: uuid.UUID) -> bool:
    with container.uow() as tx:
        stored = tx.session.execute(
            select(StoredReport)
            .where(StoredReport.session_id == session_id, ~StoredReport.in_figures)
            .with_for_update(skip_locked=True)
        ).scalar_one_or_none()
        if stored is None:
            return False
        try:
            report = open_report(read_document(tx, stored))
        except UnknownDocumentError:
            # That version has written it there itself.
            stored.in_figures = True
        else:
            write_figures(tx, session_id, report)
    return True
