"""Use case: keep what the figures of a fleet need of each report, so that none is read for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import delete, select

from app.analysis.fleet.figures import figures_of
from app.db.models.fleet import SessionFigure
from app.db.models.sessions import Session

if TYPE_CHECKING:
    import uuid

    from app.analysis.report.document import Report
    from app.db.unit_of_work import UnitOfWork


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
