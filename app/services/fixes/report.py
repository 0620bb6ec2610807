"""The report that recommends a fix."""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.db.documents import open_report
from app.db.models.sessions import StoredReport
from app.db.reports import read_document
from app.errors import NotFoundError

if TYPE_CHECKING:
    import uuid

    from app.analysis.report.document import Report
    from app.db.unit_of_work import Reads


def report_of(tx: Reads, session_id: uuid.UUID) -> Report:
    """Return the report of a session.

    Raises
    ------
    NotFoundError
        If there is no such session, or it has no report.
    """
    stored = tx.session.get(StoredReport, session_id)
    if stored is None:
        raise NotFoundError("There is no such session with a report.", code="report.none")
    return open_report(read_document(tx, stored))
