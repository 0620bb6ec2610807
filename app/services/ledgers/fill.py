"""Use case: write what reports of before a ledger say into it, bit by bit.

A ledger has rows of every report, so that none is read for what the rows say. Who stores a report
writes them in the same transaction; what was stored before there was the ledger is read here.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import structlog
from sqlalchemy import select

from app.db.documents import open_report
from app.db.models.access import Project
from app.db.models.sessions import StoredReport
from app.db.reports import read_document
from app.errors import LostBytesError, ObjectStoreError, UnknownDocumentError

if TYPE_CHECKING:
    import uuid
    from collections.abc import Callable

    from sqlalchemy.orm import InstrumentedAttribute

    from app.analysis.report.document import Report
    from app.db.unit_of_work import UnitOfWork
    from app.services.container import Container

# Reports that one pass of the sweeper reads at most, and for how long.
BATCH: Final = 64
PASS_LIMIT_S: Final = 5.0

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Ledger:
    """What is written of every report.

    Parameters
    ----------
    name : str
        For the log.
    has : column of StoredReport
        Whether a report is in the ledger.
    write : callable
        Takes a transaction, a session and its report, and writes the rows in place of what an
        earlier report of the session had; notes in `has` that they are there.
    """

    name: str
    has: InstrumentedAttribute[bool]
    write: Callable[[UnitOfWork, uuid.UUID, Report | None], None]


def fill(container: Container, ledger: Ledger) -> int:
    """Read reports that are not in a ledger, the newest first, for a while.

    Each is a transaction of its own; one that another process is at, or that is being replaced, is
    left to the next pass, and so is all the rest where the object store does not answer.

    Parameters
    ----------
    container : Container
    ledger : Ledger

    Returns
    -------
    int
        How many reports were read.
    """
    with container.everywhere().reading() as tx:
        left = tx.session.execute(
            select(StoredReport.session_id, StoredReport.project_id)
            .join(Project, Project.id == StoredReport.project_id)
            .where(~ledger.has, Project.deleted_at.is_(None))
            .order_by(StoredReport.created_at.desc())
            .limit(BATCH)
        ).all()
    until_s = time.monotonic() + PASS_LIMIT_S
    read = 0
    for session_id, project_id in left:
        if time.monotonic() >= until_s:
            break
        try:
            read += _fill_one(container.within(project_id), ledger, session_id)
        except ObjectStoreError as error:
            # The sweeper has other duties, which need no store.
            _log.warning("reports not read", ledger=ledger.name, error=error.message)
            break
    if read:
        _log.info("reports read", ledger=ledger.name, reports=read)
    return read


def _fill_one(container: Container, ledger: Ledger, session_id: uuid.UUID) -> bool:
    with container.uow() as tx:
        stored = tx.session.execute(
            select(StoredReport)
            .where(StoredReport.session_id == session_id, ~ledger.has)
            .with_for_update(skip_locked=True)
        ).scalar_one_or_none()
        if stored is None:
            return False
        try:
            report = open_report(read_document(tx, stored))
        except UnknownDocumentError:
            # That version has written it there itself.
            setattr(stored, ledger.has.key, True)
        except LostBytesError as error:
            # It would be asked for in every pass.
            setattr(stored, ledger.has.key, True)
            _log.warning("report lost", session=str(session_id), error=error.message)
        else:
            ledger.write(tx, session_id, report)
    return True
