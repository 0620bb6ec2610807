"""What a session says of fixes that were applied before it, in the transaction of its report.

The first session that was received after a fix was applied measures it. Two may be analyzed at
once, or one of them again: each locks the rows of the job's fixes in the order of their ids, and an
earlier session takes a measurement over from a later one, so that the result does not depend on
which ends first.
"""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING

from sqlalchemy import or_, select
from sqlalchemy.orm import aliased

from app.analysis.report.document import JobSizes
from app.analysis.report.noticed import noticed_fixes
from app.analysis.report.realized import Run, outcome, work_of
from app.analysis.trace.metadata import parse_metadata
from app.db.models.fixes import AppliedFix
from app.db.models.sessions import Session, StoredReport
from app.db.states import SessionState
from app.services.fixes.apply import note_applied
from app.services.fixes.report import report_of

if TYPE_CHECKING:
    import uuid

    from app.analysis.report.document import Report
    from app.db.unit_of_work import UnitOfWork

# Metadata that can show a fix; where they did not change there is nothing to look for.
_SHOWING = ("hosts", "gpus", "layers")


def measure_fixes(tx: UnitOfWork, session_id: uuid.UUID, report: Report) -> None:
    """Measure what was applied since the job's session before this one."""
    session = tx.session.get_one(Session, session_id)
    _notice(tx, session)
    measured, predicting = aliased(Session), aliased(Session)
    rows = tx.session.execute(
        select(AppliedFix, predicting)
        .join(predicting, predicting.id == AppliedFix.session_id)
        .outerjoin(measured, measured.id == AppliedFix.measured_by)
        .where(
            AppliedFix.job_id == session.job_id,
            AppliedFix.session_id != session_id,
            AppliedFix.applied_at <= session.received_at,
            or_(
                AppliedFix.measured_by.is_(None),
                AppliedFix.measured_by == session_id,
                measured.received_at > session.received_at,
            ),
        )
        .order_by(AppliedFix.id)
        .with_for_update(of=AppliedFix)
    ).all()
    meta = parse_metadata(session.meta)
    after = Run(fmean(report.step_times.recorded), report.sizes, work_of(meta.extra))
    for fix, before in rows:
        was = parse_metadata(before.meta)
        brought = outcome(
            Run(fix.step_time_s, _sizes(before), work_of(was.extra)), after, applied=len(rows)
        )
        fix.measured_by = session_id
        fix.realized_step_time_s = brought.step_time_s
        fix.realized_gain = brought.gain
        fix.unlike = brought.unlike


def _notice(tx: UnitOfWork, session: Session) -> None:
    """Note the fixes of the session before that this one's metadata show."""
    before = tx.session.execute(
        select(Session)
        .join(StoredReport, StoredReport.session_id == Session.id)
        .where(
            Session.job_id == session.job_id,
            Session.received_at < session.received_at,
            Session.state == SessionState.ANALYZED,
        )
        .order_by(Session.received_at.desc(), Session.id.desc())
        .limit(1)
    ).scalar()
    if before is None or all(before.meta.get(key) == session.meta.get(key) for key in _SHOWING):
        return
    report = report_of(tx, before.id)
    metas = parse_metadata(before.meta), parse_metadata(session.meta)
    for fix in noticed_fixes(report, *metas):
        note_applied(tx, before.id, session.job_id, report, fix, by=None, at=session.received_at)


def _sizes(session: Session) -> JobSizes:
    return JobSizes(
        dp=session.dp,
        pp=session.pp,
        tp=session.tp,
        cp=session.cp,
        vpp=session.vpp,
        world=session.world,
    )
