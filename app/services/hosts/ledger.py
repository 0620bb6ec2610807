"""Use case: write what reports say of hosts into the ledger."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

import structlog
from sqlalchemy import delete, select, update

from app.db.documents import open_report
from app.db.models.access import Project
from app.db.models.hosts import HostReading
from app.db.models.sessions import Session, StoredReport
from app.db.reports import read_document
from app.errors import UnknownDocumentError
from app.services.hosts.readings import readings_of

if TYPE_CHECKING:
    import uuid

    from app.analysis.report.document import Report
    from app.db.unit_of_work import UnitOfWork
    from app.services.container import Container

# Reports of before the ledger that one pass of the sweeper reads at most, and for how long.
BATCH: Final = 64
PASS_LIMIT_S: Final = 5.0

_log = structlog.get_logger(__name__)


def write_readings(tx: UnitOfWork, session_id: uuid.UUID, report: Report | None) -> None:
    """Write what a report says of hosts in place of what an earlier one of the session said.

    In the transaction that stores the report: the ledger never says anything else than reports do.

    Parameters
    ----------
    tx : UnitOfWork
    session_id : UUID
    report : Report or None
        None where there is none any more.
    """
    tx.session.execute(delete(HostReading).where(HostReading.session_id == session_id))
    if report is None:
        return
    tx.session.execute(
        update(StoredReport).where(StoredReport.session_id == session_id).values(in_ledger=True)
    )
    readings = readings_of(report)
    if not readings:
        return
    job_id, received_at = tx.session.execute(
        select(Session.job_id, Session.received_at).where(Session.id == session_id)
    ).one()
    measured_s = sum(report.step_times.recorded)
    tx.session.add_all(
        HostReading(
            session_id=session_id,
            host=reading.host,
            job_id=job_id,
            received_at=received_at,
            ranks=reading.ranks,
            workers=reading.workers,
            slowdown=reading.slowdown,
            computing=reading.computing,
            cause=reading.cause,
            lost_each_hour=reading.lost_each_hour,
            measured_s=measured_s,
            gpus=[asdict(gpu) for gpu in reading.gpus],
        )
        for reading in readings
    )
    tx.session.flush()


def fill_ledger(container: Container) -> int:
    """Read reports that were stored before there was a ledger, the newest first, for a while.

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
            .where(~StoredReport.in_ledger, Project.deleted_at.is_(None))
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
        _log.info("reports read into the ledger of hosts", reports=read)
    return read


def _fill_one(container: Container, session_id: uuid.UUID) -> bool:
    with container.uow() as tx:
        stored = tx.session.execute(
            select(StoredReport)
            .where(StoredReport.session_id == session_id, ~StoredReport.in_ledger)
            .with_for_update(skip_locked=True)
        ).scalar_one_or_none()
        if stored is None:
            return False
        try:
            report = open_report(read_document(tx, stored))
        except UnknownDocumentError:
            # That version has written it there itself.
            stored.in_ledger = True
        else:
            write_readings(tx, session_id, report)
    return True
