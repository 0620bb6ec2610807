"""The read side of applied fixes: of a session, of a job, of all, and how predictions fared."""

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

# ---- The report that recommends a fix ----------------------------------------------------------


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


# ---- Use cases: say that a recommended fix was applied, and take that back ---------------------


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


# ---- What a session says of fixes that were applied before it, in the transaction of its report --
# The first session that was received after a fix was applied measures it. Two may be analyzed at
# once, or one of them again: each locks the rows of the job's fixes in the order of their ids, and
# an earlier session takes a measurement over from a later one, so that the result does not depend
# on which ends first.


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


# Newest ones that a page or an answer lists, and that a calibration is of.
MOST_LISTED: Final = 100
MOST_CALIBRATED: Final = 10_000


_measured: Final = aliased(Session)


@dataclass(frozen=True, slots=True)
class Realized:
    """A fix that was applied: what was predicted, and what the next session measured.

    `session` is whose report predicted it, `applied_by` null where metadata show it. Gains are
    shares of `step_time_s`, the mean recorded step time of that session; `at_most` says that a gain
    is the most that such a change can bring. `unlike` says why the two sessions cannot be compared.
    `error` is by how much steps are slower than predicted, null where nothing says so.
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


def realized_fixes(  # noqa: PLR0913 - all that they are asked for
    tx: Reads,
    *,
    job: str | None = None,
    session: uuid.UUID | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    most: int = MOST_LISTED,
) -> list[Realized]:
    """Return the fixes that were applied, newest first.

    Parameters
    ----------
    session : UUID, optional
        Those that this session's report recommended, and those that it measured.
    since, until : datetime, optional
        Applied within that time.
    most : int
        The newest of them.
    """
    return read(tx, FIXES, *applied(job, session, since, until), limit=most)


def applied(
    job: str | None = None,
    session: uuid.UUID | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
) -> list[ColumnElement[bool]]:
    """Return what a row of `FIXES` has to meet; see `realized_fixes`."""
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
    """Return how the predictions of each kind of fix turned out; ``""`` is all of them."""
    return calibrations_of(map(tuple, tx.session.execute(measured_gains())))


def measured_gains() -> Select[*tuple[Any, ...]]:
    """Return the query of what was predicted and measured, of the latest fixes of every kind."""
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
    """Return how predictions turned out, of rows of `measured_gains`."""
    errors: dict[str, list[float]] = {}
    for action, predicted, realized in rows:
        error = prediction_error(predicted, realized)
        errors.setdefault("", []).append(error)
        errors.setdefault(action, []).append(error)
    found = {action: calibration(items) for action, items in errors.items()}
    return {action: item for action, item in found.items() if item is not None}
