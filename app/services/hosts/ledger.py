"""Use case: write what reports say of hosts into the ledger."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from sqlalchemy import delete, select

from app.db.models.hosts import HostReading
from app.db.models.sessions import Session
from app.services.hosts.places import write_places
from app.services.hosts.readings import readings_of

if TYPE_CHECKING:
    import uuid

    from app.analysis.report.document import Report
    from app.db.unit_of_work import UnitOfWork


def write_readings(tx: UnitOfWork, session_id: uuid.UUID, report: Report | None) -> None:
    """Write what a report says of hosts in place of what an earlier one of the session said.

    In the transaction that stores the report: the ledger never says anything else than reports do.

    Parameters
    ----------
    report : Report or None
        None where there is none any more.
    """
    tx.session.execute(delete(HostReading).where(HostReading.session_id == session_id))
    if report is None:
        return
    job_id, received_at = tx.session.execute(
        select(Session.job_id, Session.received_at).where(Session.id == session_id)
    ).one()
    write_places(tx, report, received_at)
    readings = readings_of(report)
    if not readings:
        return
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
            guessed=reading.guessed,
        )
        for reading in readings
    )
    tx.session.flush()
