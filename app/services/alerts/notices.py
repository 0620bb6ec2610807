"""Notices of the pulse as rules see them, and what sessions that were asked for say of them."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Final

from sqlalchemy import select, update

from app.alerts.notices.facts import NoticeFacts, Outcome
from app.alerts.notices.judge import judge
from app.analysis.pulse.evidence.pace import Pace
from app.db.models.noticed import PulseNotice, PulseState, RecordingRequest
from app.db.models.sessions import Session
from app.db.states import SessionState
from app.services.alerts.facts import read_facts, sessions_with_facts

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement

    from app.db.unit_of_work import Reads, UnitOfWork

# For so long incidents may still be about one that is over.
_OVER_FOR: Final = timedelta(days=1)
_HOUR_NS: Final = 3_600e9


def notices_of_job(tx: Reads, job_id: int) -> list[NoticeFacts]:
    """Return the notices of a job that go on, and those that ended within a day."""
    rows = tx.session.execute(
        select(PulseNotice, PulseState.advanced_at, PulseState.pace, Session.number)
        .join(
            PulseState,
            (PulseState.job_id == PulseNotice.job_id) & (PulseState.attempt == PulseNotice.attempt),
        )
        .outerjoin(Session, Session.id == PulseNotice.session_id)
        .where(
            PulseNotice.job_id == job_id,
            PulseNotice.fires_at.is_not(None),
            PulseNotice.cleared_at.is_(None) | (PulseNotice.cleared_at > tx.now - _OVER_FOR),
        )
        .order_by(PulseNotice.noticed_at, PulseNotice.attempt, PulseNotice.number)
        .execution_options(populate_existing=True)
    )
    found = []
    for row, heard_at, pace, session in rows:
        ranks = Pace.from_bytes(pace).ranks()
        fires_at = row.fires_at or row.noticed_at
        outcome = row.outcome
        if outcome is None and (row.cleared_at or tx.now) >= fires_at:
            outcome = Outcome.UNCONFIRMED
        found.append(
            NoticeFacts(
                attempt=row.attempt,
                number=row.number,
                kind=row.kind,
                ranks=tuple(row.ranks),
                hosts=tuple(row.hosts),
                factor=row.factor,
                from_step=row.from_step,
                noticed_at=row.noticed_at,
                fires_at=fires_at,
                cleared_at=row.cleared_at,
                heard_at=heard_at or row.noticed_at,
                sentence=row.evidence.told,
                asked=row.request_id is not None,
                outcome=outcome,
                session=session,
                session_id=row.session_id,
                cause=row.cause,
                baseline_s=_seconds(row.baseline_ns),
                step_s=_seconds(row.step_ns),
                after_s=_seconds(row.after_ns),
                gpu_hours=max(0.0, row.lost_ns) / _HOUR_NS,
                job_ranks=ranks,
            )
        )
    return found


def judge_notices(tx: UnitOfWork, job_id: int) -> None:
    """Note what the sessions that came of requests say of the notices that asked for them."""
    requests = tx.session.execute(
        select(RecordingRequest).where(
            RecordingRequest.job_id == job_id,
            RecordingRequest.session_id.is_(None),
            RecordingRequest.handed_at.is_not(None),
            RecordingRequest.until > tx.now - _OVER_FOR,
        )
    ).scalars()
    for request in requests.all():
        came = tx.session.execute(
            select(Session.id, Session.state)
            .where(came_of(request))
            .order_by(Session.received_at, Session.id)
            .limit(1)
        ).one_or_none()
        if came is None or came.state in SessionState.UNDERWAY:
            continue
        request.session_id = came.id
        tx.session.flush()
        facts = read_facts(tx, sessions_with_facts().where(Session.id == came.id))
        if not facts:
            continue
        for notice in notices_of_job(tx, job_id):
            said = judge(notice, facts[0])
            if said is None:
                continue
            tx.session.execute(
                update(PulseNotice)
                .where(
                    PulseNotice.job_id == job_id,
                    PulseNotice.attempt == notice.attempt,
                    PulseNotice.number == notice.number,
                    PulseNotice.request_id == request.id,
                    PulseNotice.outcome.is_(None),
                    PulseNotice.cleared_at.is_(None),
                )
                .values(outcome=said[0], cause=said[1], session_id=came.id)
                .execution_options(synchronize_session=False)
            )


def came_of(request: RecordingRequest) -> ColumnElement[bool]:
    """Return what is true of the sessions that may have come of a request."""
    return (
        (Session.job_id == request.job_id)
        & (Session.attempt == request.attempt)
        & (Session.received_at > request.handed_at)
    )


def _seconds(ns: float | None) -> float | None:
    return None if ns is None else ns / 1e9
