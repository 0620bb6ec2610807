"""Use cases: say that a recommended fix was applied, and take that back."""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING

from sqlalchemy import delete, select
from sqlalchemy.dialects.postgresql import insert

from app.db.models.fixes import AppliedFix
from app.db.models.sessions import Job, Session
from app.db.states import FixSource
from app.errors import ConflictError, NotFoundError
from app.services.access.audit import Action, record
from app.services.fixes.report import report_of

if TYPE_CHECKING:
    import uuid
    from datetime import datetime

    from app.analysis.report.document import Report
    from app.analysis.report.findings import Recommendation
    from app.db.unit_of_work import UnitOfWork
    from app.services.container import Container


def apply_fix(
    container: Container,
    session_id: uuid.UUID,
    action: str,
    title: str | None = None,
    by: str | None = None,
) -> None:
    """Note that a fix was applied: the job's next session measures what it brought.

    Said again, it stays as it was said first.

    Parameters
    ----------
    by : str, optional
        The user who acts; taken from the sign-in where there is one.

    Raises
    ------
    NotFoundError
        If there is no such session, no report, or no such fix in it.
    ConflictError
        If several fixes have that code, and none is named.
    """
    who = container.principal.called(by)
    with container.uow() as tx:
        report = report_of(tx, session_id)
        fix = _the_one(report, action, title)
        job_id, job = tx.session.execute(
            select(Job.id, Job.name)
            .join(Session, Session.job_id == Job.id)
            .where(Session.id == session_id)
        ).one()
        if note_applied(tx, session_id, job_id, report, fix, by=who.name):
            record(tx, who, Action.APPLIED, f"{fix.title} on {job}")


def take_back(
    container: Container,
    session_id: uuid.UUID,
    action: str,
    title: str | None = None,
    by: str | None = None,
) -> None:
    """Take back that a fix was applied, with what was measured of it.

    Raises
    ------
    NotFoundError
        If it was not marked.
    """
    who = container.principal.called(by)
    with container.uow() as tx:
        query = delete(AppliedFix).where(
            AppliedFix.session_id == session_id, AppliedFix.action == action
        )
        if title is not None:
            query = query.where(AppliedFix.title == title)
        gone = tx.session.execute(query.returning(AppliedFix.title)).scalars().all()
        if not gone:
            raise NotFoundError("That fix is not marked as applied.", code="fix.not_applied")
        job = tx.session.execute(
            select(Job.name).join(Session, Session.job_id == Job.id).where(Session.id == session_id)
        ).scalar_one()
        for told in gone:
            record(tx, who, Action.UNAPPLIED, f"{told} on {job}")


def note_applied(  # noqa: PLR0913 - what is known of it
    tx: UnitOfWork,
    session_id: uuid.UUID,
    job_id: int,
    report: Report,
    fix: Recommendation,
    *,
    by: str | None,
    at: datetime | None = None,
) -> bool:
    """Write that a fix was applied; return False where that is known.

    Parameters
    ----------
    by : str or None
        None where the metadata of a later session show it.
    at : datetime, optional
        When; now, if not given.
    """
    values = {
        "project_id": tx.session.execute(
            select(Session.project_id).where(Session.id == session_id)
        ).scalar_one(),
        "job_id": job_id,
        "session_id": session_id,
        "action": fix.action,
        "title": fix.title,
        "applied_by": by,
        "source": FixSource.METADATA if by is None else FixSource.PERSON,
        "step_time_s": fmean(report.step_times.recorded),
        "predicted_gain": fix.predicted_gain,
        "at_most": fix.at_most,
        "applied_at": tx.now if at is None else at,
    }
    return (
        tx.session.execute(
            insert(AppliedFix)
            .values(**values)
            .on_conflict_do_nothing(index_elements=["session_id", "action", "title"])
            .returning(AppliedFix.id)
        ).scalar()
        is not None
    )


def _the_one(report: Report, action: str, title: str | None) -> Recommendation:
    found = [
        fix for fix in report.recommendations if fix.action == action and title in {None, fix.title}
    ]
    if not found:
        raise NotFoundError("The session's report recommends no such fix.", code="fix.unknown")
    if len(found) > 1:
        titles = "; ".join(fix.title for fix in found)
        raise ConflictError(f"Say which one by its title: {titles}.", code="fix.ambiguous")
    return found[0]
