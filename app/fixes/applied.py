"""Applied fixes: mark a recommended fix as applied, measure its gain, list predictions."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from statistics import fmean
from typing import Annotated, Any, Final

from sqlalchemy import ColumnElement, Select, delete, or_, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import aliased

from app.access.audit import Action, record
from app.analysis.report.document import JobSizes, Recommendation, Report
from app.analysis.report.fix_outcomes import (
    Calibration,
    Run,
    calibration,
    noticed_fixes,
    outcome,
    prediction_error,
    work_of,
)
from app.analysis.trace.metadata import parse_metadata
from app.errors import ConflictError, NotFoundError
from app.fixes.models import AppliedFix
from app.jobs.models import Job
from app.platform.container import Container
from app.platform.database.states import FixSource, SessionState
from app.platform.database.unit_of_work import Reads, UnitOfWork
from app.sessions.models.reports import open_report, read_document
from app.sessions.models.tables import Session, StoredReport
from app.web.lists import Column, Listing, read


def report_of(tx: Reads, session_id: uuid.UUID) -> Report:
    """Return the analysis report of a session.

    Raises
    ------
    NotFoundError
        If there is no such session, or it has no report.
    """
    stored = tx.session.get(StoredReport, session_id)
    if stored is None:
        raise NotFoundError("There is no such session with a report.", code="report.none")
    return open_report(read_document(tx, stored))


def apply_fix(
    container: Container,
    session_id: uuid.UUID,
    action: str,
    title: str | None = None,
    by: str | None = None,
) -> None:
    """Mark a recommended fix as applied; the job's next session measures its gain.

    Marking it again changes nothing.

    Parameters
    ----------
    by : str, optional
        The user who acts; taken from the sign-in if there is one.

    Raises
    ------
    NotFoundError
        There is no such session, no report, or no such fix in it.
    ConflictError
        Several fixes have that code, and no title is given.
    """
    who = container.principal.called(by)
    with container.uow() as tx:
        report = report_of(tx, session_id)
        fixes = [
            fix
            for fix in report.recommendations
            if fix.action == action and title in {None, fix.title}
        ]
        if not fixes:
            raise NotFoundError("The session's report recommends no such fix.", code="fix.unknown")
        if len(fixes) > 1:
            titles = "; ".join(fix.title for fix in fixes)
            raise ConflictError(f"Say which one by its title: {titles}.", code="fix.ambiguous")
        (fix,) = fixes
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
    """Remove the mark of an applied fix, with its measurement.

    Raises
    ------
    NotFoundError
        It was not marked.
    """
    who = container.principal.called(by)
    with container.uow() as tx:
        query = delete(AppliedFix).where(
            AppliedFix.session_id == session_id, AppliedFix.action == action
        )
        if title is not None:
            query = query.where(AppliedFix.title == title)
        titles = tx.session.execute(query.returning(AppliedFix.title)).scalars().all()
        if not titles:
            raise NotFoundError("That fix is not marked as applied.", code="fix.not_applied")
        job = tx.session.execute(
            select(Job.name).join(Session, Session.job_id == Job.id).where(Session.id == session_id)
        ).scalar_one()
        for removed in titles:
            record(tx, who, Action.UNAPPLIED, f"{removed} on {job}")


def note_applied(  # noqa: PLR0913 - columns of the row
    tx: UnitOfWork,
    session_id: uuid.UUID,
    job_id: int,
    report: Report,
    fix: Recommendation,
    *,
    by: str | None,
    at: datetime | None = None,
) -> bool:
    """Store an applied fix; return False if it was stored before.

    Parameters
    ----------
    by : str or None
        The user; None if the metadata of a later session show the fix.
    at : datetime, optional
        Time of the application, by default now.
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


# Metadata fields whose change can show an applied fix.
_SHOWING = ("hosts", "gpus", "layers")


def measure_fixes(tx: UnitOfWork, session_id: uuid.UUID, report: Report) -> None:
    """Measure the job's fixes that were applied before this session and not measured earlier.

    The first session received after the application measures a fix. Several sessions may be
    analyzed at once or again: each locks the job's fixes in the order of their ids, and an earlier
    session takes over the measurement of a later one, so the result is independent of the order of
    the analyses.
    """
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
        sizes = JobSizes(
            dp=before.dp,
            pp=before.pp,
            tp=before.tp,
            cp=before.cp,
            vpp=before.vpp,
            world=before.world,
        )
        work = work_of(parse_metadata(before.meta).extra)
        measured_fix = outcome(Run(fix.step_time_s, sizes, work), after, applied=len(rows))
        fix.measured_by = session_id
        fix.realized_step_time_s = measured_fix.step_time_s
        fix.realized_gain = measured_fix.gain
        fix.unlike = measured_fix.unlike


def _notice(tx: UnitOfWork, session: Session) -> None:
    """Store the previous session's fixes that this session's metadata show as applied."""
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


# Limits of the applied fixes in a list, and in a calibration; both take the newest ones.
MOST_LISTED: Final = 100
MOST_CALIBRATED: Final = 10_000

_measured: Final = aliased(Session)


@dataclass(frozen=True, slots=True)
class Realized:
    """An applied fix with its predicted gain and the gain that the next session measured.

    The report of `session` predicted it; `applied_by` is null if metadata show it. Gains are
    shares of `step_time_s`, the mean recorded step time of that session; with `at_most` the gain is
    an upper bound. `unlike` is the reason why the two sessions cannot be compared. `error` is the
    excess of the step time over the prediction, null without a comparable measurement.
    """

    job: Annotated[str, Column(Job.name)]
    session: Annotated[uuid.UUID, Column(AppliedFix.session_id)]
    number: Annotated[int, Column(Session.number)]
    action: str
    title: str
    applied_at: datetime
    applied_by: str | None
    source: FixSource
    step_time_s: float
    predicted_gain: float
    at_most: bool
    measured_by: uuid.UUID | None
    measured_number: Annotated[int | None, Column(_measured.number)]
    realized_step_time_s: float | None
    realized_gain: float | None
    unlike: str | None
    error: float | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        comparable = self.unlike is None and not self.at_most
        measured = self.realized_gain if comparable else None
        error = None if measured is None else prediction_error(self.predicted_gain, measured)
        object.__setattr__(self, "error", error)


FIXES: Final = Listing(
    Realized,
    lambda query: (
        query.join(Job, Job.id == AppliedFix.job_id)
        .join(Session, Session.id == AppliedFix.session_id)
        .outerjoin(_measured, _measured.id == AppliedFix.measured_by)
    ),
    ties=(AppliedFix.applied_at.desc(), AppliedFix.id.desc()),
    model=AppliedFix,
)


def realized_fixes(  # noqa: PLR0913 - filters of a query
    tx: Reads,
    *,
    job: str | None = None,
    session: uuid.UUID | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    most: int = MOST_LISTED,
) -> list[Realized]:
    """Return the newest applied fixes, newest first.

    Parameters
    ----------
    session : UUID, optional
        Only those recommended or measured by this session.
    since, until : datetime, optional
        Only those applied within this time.
    most : int
        Limit of their number.
    """
    return read(tx, FIXES, *applied(job, session, since, until), limit=most)


def applied(
    job: str | None = None,
    session: uuid.UUID | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
) -> list[ColumnElement[bool]]:
    """Return the SQL conditions on `FIXES` for the filters of `realized_fixes`."""
    where: list[ColumnElement[bool]] = []
    if job is not None:
        where.append(Job.name == job)
    if session is not None:
        where.append(or_(AppliedFix.session_id == session, AppliedFix.measured_by == session))
    if since is not None:
        where.append(AppliedFix.applied_at >= since)
    if until is not None:
        where.append(AppliedFix.applied_at <= until)
    return where


def calibrations(tx: Reads) -> Mapping[str, Calibration]:
    """Return the calibration of predictions by fix code; the key ``""`` is that of all fixes."""
    return calibrations_of(map(tuple, tx.session.execute(measured_gains())))


def measured_gains() -> Select[*tuple[Any, ...]]:
    """Return the query for (action, predicted gain, realized gain) of the latest measured fixes."""
    return (
        select(AppliedFix.action, AppliedFix.predicted_gain, AppliedFix.realized_gain)
        .where(
            AppliedFix.realized_gain.is_not(None),
            AppliedFix.unlike.is_(None),
            AppliedFix.at_most.is_(False),
        )
        .order_by(AppliedFix.applied_at.desc())
        .limit(MOST_CALIBRATED)
    )


def calibrations_of(rows: Iterable[tuple[str, float, float]]) -> Mapping[str, Calibration]:
    """Return the calibrations by fix code, computed from rows of `measured_gains`."""
    errors: dict[str, list[float]] = {}
    for action, predicted, realized in rows:
        error = prediction_error(predicted, realized)
        errors.setdefault("", []).append(error)
        errors.setdefault(action, []).append(error)
    by_action = {action: calibration(items) for action, items in errors.items()}
    return {action: item for action, item in by_action.items() if item is not None}
