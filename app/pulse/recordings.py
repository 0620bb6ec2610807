"""Requests for sessions: by a notice of a job's pulse within a budget, by a session or a person.

A session that cannot show which rank of a group is slow requests one of every rank, with the
collectives of tensor-, context- and expert-parallel groups: once an attempt, beyond the budget.

The answer to a body of rank 0's host carries the request; again a bounded number of times if the
session does not arrive.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from sqlalchemy import ColumnElement, Select, exists, func, or_, select, update

from app.access.audit import Action, record
from app.analysis.pulse.step_pace import Pace
from app.errors import ConflictError, PacelineError
from app.incidents.store import group_of_job
from app.jobs.models import Job
from app.platform.container import Claim, Container
from app.platform.database.unit_of_work import Reads, UnitOfWork
from app.platform.settings import Settings
from app.platform.tasks.runs import finish
from app.pulse.body import read_pulse
from app.pulse.models import PulseState, RecordingRequest
from app.sessions.models.tables import Session
from app.sessions.receive import no_job

# Largest number of answers that carry the same request.
MOST_HANDED: Final = 3
# A person's request expires this long after its steps should have been recorded.
PATIENCE: Final = timedelta(minutes=10)
# Step time that is assumed for a job whose step times are unknown, seconds.
_STEP_S: Final = 1.0
_REASON_CHARACTERS: Final = 200
LISTED: Final = 50


class Asker(StrEnum):
    """Who requests a session."""

    NOTICE = "notice"
    PERSON = "person"


@dataclass(frozen=True, slots=True)
class Recording:
    """A request for a session in an answer to a pulse."""

    steps: int
    reason: str
    by: Asker
    """Requests of notices count against the budget of a job, those of persons do not."""
    every_rank: bool = False
    """Whether every rank is to record, with tensor-, context- and expert-parallel collectives."""


@dataclass(frozen=True, slots=True)
class RequestRow:
    """A request for a session."""

    id: int
    attempt: int
    steps: int
    reason: str
    asked_by: str | None
    """Name of the person who requested it; null if a notice or a session did."""
    asked_at: datetime
    until: datetime
    """When the request expires."""
    handed_at: datetime | None
    """When an answer to a pulse last carried the request; null if none did."""
    handed: int
    session_id: str | None
    """Id of the session that was recorded for the request."""
    every_rank: bool
    """Whether every rank is to record, with tensor-, context- and expert-parallel collectives."""


def request_recording(  # noqa: PLR0913 - what is requested, by whom, and for how long
    tx: UnitOfWork,
    job_id: int,
    attempt: int,
    *,
    steps: int,
    reason: str,
    by: str | None,
    window_s: float,
    patience: timedelta,
) -> RecordingRequest:
    """Request a session, or return the open request; the job's group of alerts must be locked."""
    open_one = open_request(tx, job_id, attempt)
    if open_one is not None:
        return open_one
    request = RecordingRequest(
        job_id=job_id,
        attempt=attempt,
        steps=steps,
        reason=reason[:_REASON_CHARACTERS],
        asked_by=by,
        asked_at=tx.now,
        until=tx.now + timedelta(seconds=window_s) + patience,
        window_s=window_s,
        handed=0,
    )
    tx.session.add(request)
    tx.session.flush()
    return request


def open_request(tx: Reads, job_id: int, attempt: int) -> RecordingRequest | None:
    """Return the open request of an attempt; None if there is none."""
    return tx.session.execute(open_requests(tx.now, job_id, attempt).limit(1)).scalar()


def open_requests(
    now: datetime, job_id: int | ColumnElement[int], attempt: int | ColumnElement[int]
) -> Select[RecordingRequest]:
    """Return a query for the open requests of an attempt: without a session, and not expired."""
    return (
        select(RecordingRequest)
        .where(
            RecordingRequest.job_id == job_id,
            RecordingRequest.attempt == attempt,
            RecordingRequest.session_id.is_(None),
            RecordingRequest.until > now,
        )
        .order_by(RecordingRequest.id)
    )


def is_within_budget(
    tx: Reads, settings: Settings, job_id: int, attempt: int, steps_sent: int
) -> bool:
    """Return whether the budget (interval, share of steps) lets a notice request a session.

    Parameters
    ----------
    steps_sent : int
        Steps of the attempt so far. The first session is always within the share.
    """
    by_notice = (
        RecordingRequest.job_id == job_id,
        RecordingRequest.asked_by.is_(None),
        RecordingRequest.every_rank.is_(False),
    )
    interval = timedelta(seconds=settings.pulse_record_interval_s)
    last = tx.session.execute(
        select(func.max(RecordingRequest.asked_at)).where(*by_notice)
    ).scalar()
    if last is not None and last > tx.now - interval:
        return False
    recorded = tx.session.execute(
        select(func.coalesce(func.sum(RecordingRequest.steps), 0)).where(
            *by_notice, RecordingRequest.attempt == attempt, RecordingRequest.handed > 0
        )
    ).scalar_one()
    return bool(recorded <= settings.pulse_record_share * steps_sent)


def due_request(tx: Reads, settings: Settings, job_id: int, attempt: int) -> int | None:
    """Return the id of the request that the next answer to rank 0's host carries, or None."""
    due = _due(tx, settings, job_id, attempt)
    return tx.session.execute(
        select(RecordingRequest.id).where(*due).order_by(RecordingRequest.id).limit(1)
    ).scalar()


def hand_out(
    tx: UnitOfWork, settings: Settings, job_id: int, attempt: int, body: bytes
) -> Recording | None:
    """Return the request that the answer to a body carries, and count this answer.

    Call it only while a request is due: the body must be read to know whether it has rank 0.
    """
    try:
        if not (read_pulse(body, attempt).rows.rank == 0).any():
            return None
    except PacelineError:
        return None  # the worker that reads the body counts the error
    due = due_request(tx, settings, job_id, attempt)
    handed = tx.session.execute(
        update(RecordingRequest)
        .where(RecordingRequest.id == due, *_due(tx, settings, job_id, attempt))
        .values(handed_at=tx.now, handed=RecordingRequest.handed + 1)
        .returning(
            RecordingRequest.steps,
            RecordingRequest.reason,
            RecordingRequest.asked_by,
            RecordingRequest.every_rank,
        )
        .execution_options(synchronize_session=False)
    ).one_or_none()
    if handed is None:
        return None
    asker = Asker.NOTICE if handed.asked_by is None else Asker.PERSON
    return Recording(handed.steps, handed.reason, asker, handed.every_rank)


def _due(
    tx: Reads, settings: Settings, job_id: int, attempt: int
) -> tuple[ColumnElement[bool], ...]:
    again = timedelta(seconds=settings.pulse_record_again_s)
    not_yet = or_(
        RecordingRequest.handed_at.is_(None),
        (RecordingRequest.handed < MOST_HANDED)
        & (
            RecordingRequest.handed_at
            + again
            + func.make_interval(0, 0, 0, 0, 0, 0, RecordingRequest.window_s)
            < tx.now
        )
        & ~exists().where(
            Session.job_id == RecordingRequest.job_id,
            Session.attempt == RecordingRequest.attempt,
            Session.received_at > RecordingRequest.handed_at,
        ),
    )
    return (
        RecordingRequest.job_id == job_id,
        RecordingRequest.attempt == attempt,
        RecordingRequest.session_id.is_(None),
        RecordingRequest.until > tx.now,
        not_yet,
    )


def request_recording_now(
    container: Container, job: str, steps: int, by: str | None = None
) -> tuple[RequestRow, bool]:
    """Request a session on behalf of a person; return the request, and whether it is new.

    Parameters
    ----------
    by : str, optional
        Name of a person who did not sign in.

    Raises
    ------
    NotFoundError
        If there is no such job.
    ConflictError
        ``recording.no_pulse``: the job sends no pulse, whose answer could ask.
    """
    who = container.principal.called(by)
    with container.uow() as tx:
        job_id = tx.session.execute(select(Job.id).where(Job.name == job)).scalar()
        if job_id is None:
            raise no_job(job)
        group_of_job(tx, job_id)
        latest = tx.session.execute(
            select(PulseState.attempt, PulseState.pace)
            .where(PulseState.job_id == job_id, PulseState.advanced_at > tx.now - PATIENCE)
            .order_by(PulseState.attempt.desc())
            .limit(1)
        ).one_or_none()
        if latest is None:
            raise ConflictError(
                "The job sends no pulse: its answers are what asks for a session.",
                code="recording.no_pulse",
            )
        before = open_request(tx, job_id, latest.attempt)
        request = before or request_recording(
            tx,
            job_id,
            latest.attempt,
            steps=steps,
            reason=f"{who.name} asked for it",
            by=who.name,
            window_s=window_s(Pace.from_bytes(latest.pace), steps),
            patience=PATIENCE,
        )
        if before is None:
            record(tx, who, Action.ASKED, f"job {job}", detail=f"{steps} steps")
        return _row(request), before is None


def request_every_rank(container: Container, claim: Claim) -> None:
    """Request a session of every rank for a claimed session that lacks collectives of groups.

    Nothing is requested if the session's attempt sends no pulse, or had such a request before. An
    open request of the attempt becomes one of every rank.
    """
    with container.uow() as tx:
        finish(tx, claim)
        session = tx.session.execute(
            select(Session.job_id, Session.attempt, Session.number).where(
                Session.id == claim.subject_id
            )
        ).one_or_none()
        if session is None:
            return
        group_of_job(tx, session.job_id)
        key = session.job_id, session.attempt
        earlier = tx.session.execute(
            select(RecordingRequest.id).where(
                RecordingRequest.job_id == session.job_id,
                RecordingRequest.attempt == session.attempt,
                RecordingRequest.every_rank,
            )
        ).first()
        running = tx.session.execute(
            select(PulseState.pace).where(
                PulseState.job_id == session.job_id,
                PulseState.attempt == session.attempt,
                PulseState.advanced_at > tx.now - PATIENCE,
            )
        ).one_or_none()
        if earlier is not None or running is None:
            return
        steps = container.settings.pulse_record_steps
        request = request_recording(
            *(tx, *key),
            steps=steps,
            reason=f"session {session.number} does not show which rank of a group is slow",
            by=None,
            window_s=window_s(Pace.from_bytes(running.pace), steps),
            patience=PATIENCE,
        )
        request.every_rank = True


def window_s(pace: Pace, steps: int) -> float:
    """Return the expected duration of `steps` steps, seconds."""
    mean_ns = pace.mean_ns()
    return steps * (_STEP_S if mean_ns is None else mean_ns / 1e9)


def requests_of(tx: Reads, job: str) -> list[RequestRow]:
    """Return the latest requests for sessions of a job, the latest first."""
    rows = tx.session.execute(
        select(RecordingRequest)
        .join(Job, Job.id == RecordingRequest.job_id)
        .where(Job.name == job)
        .order_by(RecordingRequest.id.desc())
        .limit(LISTED)
    ).scalars()
    return [_row(row) for row in rows]


def _row(row: RecordingRequest) -> RequestRow:
    return RequestRow(
        id=row.id,
        attempt=row.attempt,
        steps=row.steps,
        reason=row.reason,
        asked_by=row.asked_by,
        asked_at=row.asked_at,
        until=row.until,
        handed_at=row.handed_at,
        handed=row.handed,
        session_id=None if row.session_id is None else str(row.session_id),
        every_rank=row.every_rank,
    )
