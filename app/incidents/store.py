"""Incidents as rows: read a job's state for its rules, and write the changes of incidents.

Protocol. All incidents of a job change under the lock of its group's row (`lock_group`), taken
before any other row of alerts: evaluations of sessions and of the sweeper, and orders of persons,
run one after the other. Each transition and notification takes the next number of the group under
that lock, so that all of them have one order.

Locks are taken in the order task run, group, channel, delivery, and as FOR NO KEY UPDATE, which the
foreign keys of new rows do not wait for.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import ColumnElement, Row, Select, exists, func, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import aliased

from app.analysis.pulse.step_pace import Pace
from app.analysis.report.session_verdict import SessionVerdict
from app.hangs.models import StoredHang, open_hang
from app.incidents.conditions import HISTORY_SESSIONS, judge_notice
from app.incidents.grouping import IncidentChange, JobState, Timing, next_flush
from app.incidents.lifecycle import INCIDENT, Incident
from app.incidents.models.facts import (
    BASELINE_SESSIONS,
    Facts,
    HangFacts,
    NoticeFacts,
    Outcome,
    facts_of,
)
from app.incidents.models.rules import RULE, Rule
from app.incidents.models.tables import (
    AlertEvent,
    AlertGroup,
    AlertIncident,
    AlertOnHost,
    AlertRule,
    IncidentState,
)
from app.jobs.models import Job
from app.platform.database.states import SessionState
from app.platform.database.unit_of_work import Reads, UnitOfWork
from app.platform.settings import Settings
from app.platform.telemetry import current
from app.pulse.models import PulseNotice, PulseState, RecordingRequest
from app.sessions.models.tables import Session, StoredVerdict

# Maximum of culprits that a message names.
_NAMED_CULPRITS: Final = 6


@dataclass(frozen=True, slots=True)
class FactsRow:
    """A row of the query `sessions_with_facts`, with the facts as JSON."""

    document: SessionVerdict
    id: uuid.UUID
    name: str
    attempt: int
    number: int
    received_at: datetime
    labels: dict[str, str] | None


def sessions_with_facts() -> Select[Any]:
    """Return the query that `read_facts` reads: sessions with the document of their verdict."""
    return (
        select(
            StoredVerdict.document,
            Session.id,
            Job.name,
            Session.attempt,
            Session.number,
            Session.received_at,
            Session.labels,
        )
        .select_from(Session)
        .join(Job, Job.id == Session.job_id)
        .join(StoredVerdict, StoredVerdict.session_id == Session.id)
    )


def read_facts(tx: Reads, query: Select[Any]) -> list[Facts]:
    """Return the facts of the sessions of a query made with `sessions_with_facts`."""
    return [facts_of_row(row) for row in tx.session.execute(query)]


def facts_of_row(row: Row[Any] | FactsRow) -> Facts:
    """Return the facts in a row of `sessions_with_facts`."""
    return facts_of(
        row.document,
        session=row.id,
        job=row.name,
        attempt=row.attempt,
        number=row.number,
        received_at=row.received_at,
        labels=row.labels or {},
    )


def latest_hang(tx: Reads, job_id: int) -> HangFacts | None:
    """Return a job's latest hang with a culprit, whether or not the hang ended."""
    row = tx.session.execute(
        select(StoredHang)
        .where(StoredHang.job_id == job_id, StoredHang.culprits > 0)
        .order_by(StoredHang.created_at.desc())
        .limit(1)
    ).scalar()
    if row is None:
        return None
    verdict = open_hang(row.document).verdict
    named = [f"{each.rank}{each.place and f' ({each.place})'}" for each in verdict.culprits]
    more = len(named) - _NAMED_CULPRITS
    culprits = ", ".join(named[:_NAMED_CULPRITS]) + (f" and {more} more" if more > 0 else "")
    return HangFacts(
        id=row.id,
        since=row.since,
        created_at=row.created_at,
        changed_at=row.changed_at,
        over_at=row.over_at,
        ranks=row.ranks,
        waiting=row.waiting,
        confidence=row.confidence,
        sentence=row.sentence,
        culprits=culprits,
        remedy=verdict.remedy,
    )


def end_hangs(tx: UnitOfWork, job_id: int) -> None:
    """Mark hangs of a job as over if a session or the job's end followed their files."""
    came = (
        select(func.min(Session.received_at))
        .where(Session.job_id == job_id, Session.received_at > StoredHang.changed_at)
        .scalar_subquery()
    )
    finished = (
        select(Job.finished_at)
        .where(Job.id == job_id, Job.finished_at > StoredHang.changed_at)
        .scalar_subquery()
    )
    tx.session.execute(
        update(StoredHang)
        .where(StoredHang.job_id == job_id, StoredHang.over_at.is_(None))
        # LEAST ignores nulls
        .values(over_at=func.least(came, finished))
        .execution_options(synchronize_session=False)
    )


def mark_hangs_over(tx: UnitOfWork, job_id: int, at: datetime, by: str) -> None:
    """Mark the hangs of a job as over, because a user resolved their incident."""
    tx.session.execute(
        update(StoredHang)
        .where(StoredHang.job_id == job_id, StoredHang.over_at.is_(None))
        .values(over_at=at, over_by=by)
        .execution_options(synchronize_session=False)
    )


# Notices are read up to this time after their end, for incidents that are still open.
_OVER_FOR: Final = timedelta(days=1)
_HOUR_NS: Final = 3_600e9


def notices_of_job(tx: Reads, job_id: int) -> list[NoticeFacts]:
    """Return the ongoing notices of a job, and those that ended within a day."""
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
    notices = []
    for row, heard_at, pace, session in rows:
        ranks = Pace.from_bytes(pace).ranks()
        fires_at = row.fires_at or row.noticed_at
        outcome = row.outcome
        if outcome is None and (row.cleared_at or tx.now) >= fires_at:
            outcome = Outcome.UNCONFIRMED
        notices.append(
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
                sentence=row.evidence.full_sentence,
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
    return notices


def judge_notices(tx: UnitOfWork, job_id: int) -> None:
    """Store the outcomes of notices according to the sessions that were requested for them."""
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
            .where(came_from_request(request))
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
            judged = judge_notice(notice, facts[0])
            if judged is None:
                continue
            outcome, cause = judged
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
                .values(outcome=outcome, cause=cause, session_id=came.id)
                .execution_options(synchronize_session=False)
            )


def came_from_request(request: RecordingRequest) -> ColumnElement[bool]:
    """Return the condition that a session was recorded for a request."""
    return (
        (Session.job_id == request.job_id)
        & (Session.attempt == request.attempt)
        & (Session.received_at > request.handed_at)
    )


def _seconds(ns: float | None) -> float | None:
    return None if ns is None else ns / 1e9


# Number of sessions whose gaps give the typical interval: one more than the number of gaps.
RECEIVED_READ: Final = BASELINE_SESSIONS + 1

OPEN: Final = AlertIncident.state != IncidentState.RESOLVED

_placed: Final = aliased(AlertOnHost)
_lead: Final = aliased(AlertOnHost)
# Condition that an incident is a member of a lead, or was a member when it ended.
INSIDE: Final = (
    exists()
    .where(
        _placed.incident_id == AlertIncident.id,
        _placed.incident_id != _placed.lead_id,
        _lead.incident_id == _placed.lead_id,
        _lead.over_at.is_(None) | ~OPEN,
    )
    .correlate(AlertIncident)
)


def timing(settings: Settings) -> Timing:
    """Return the notification intervals of groups."""
    return Timing(
        timedelta(seconds=settings.alert_group_wait_s),
        timedelta(seconds=settings.alert_group_interval_s),
        timedelta(seconds=settings.alert_repeat_interval_s),
    )


def group_of_job(tx: UnitOfWork, job_id: int) -> AlertGroup:
    """Return a job's group, created if missing, locked until the transaction ends.

    In a transaction over all projects it is created in the project of the job.
    """
    project_id = tx.scope.project_id
    if project_id is None:
        project_id = tx.session.execute(select(Job.project_id).where(Job.id == job_id)).scalar_one()
    tx.session.execute(
        insert(AlertGroup)
        .values(id=uuid.uuid4(), project_id=project_id, job_id=job_id, number=0)
        .on_conflict_do_nothing(index_elements=["job_id"])
    )
    return tx.session.execute(
        select(AlertGroup).where(AlertGroup.job_id == job_id).with_for_update(key_share=True)
    ).scalar_one()


def lock_group(
    tx: UnitOfWork, group_id: uuid.UUID, *, skip_locked: bool = False
) -> AlertGroup | None:
    """Return a group, locked until the transaction ends; None if the group was deleted.

    Parameters
    ----------
    skip_locked : bool
        Whether to return None if another transaction has locked the group.
    """
    return tx.session.execute(
        select(AlertGroup)
        .where(AlertGroup.id == group_id)
        .with_for_update(key_share=True, skip_locked=skip_locked)
        .execution_options(populate_existing=True)
    ).scalar_one_or_none()


def load_rules(tx: Reads) -> list[Rule]:
    """Return all rules, sorted by name."""
    rows = tx.session.execute(select(AlertRule).order_by(AlertRule.name)).scalars()
    return [rule_of(row) for row in rows]


def rule_of(row: AlertRule) -> Rule:
    """Return the rule stored in a row."""
    return RULE.validate_python({"id": row.id, "name": row.name, **row.document})


def rule_document(rule: Rule) -> dict[str, Any]:
    """Return the value of the column `document` of a rule."""
    document: dict[str, Any] = RULE.dump_python(rule, mode="json", exclude={"id", "name"})
    return document


def incident_of(row: AlertIncident) -> Incident:
    """Return the incident stored in a row."""
    return INCIDENT.validate_python(row.document)


def open_incidents(tx: Reads, group_id: uuid.UUID) -> list[Incident]:
    """Return the open incidents of a group."""
    rows = tx.session.execute(
        select(AlertIncident)
        .where(AlertIncident.group_id == group_id, OPEN)
        .order_by(AlertIncident.opened_at, AlertIncident.id)
    ).scalars()
    return [incident_of(row) for row in rows]


def job_and_labels(tx: Reads, job_id: int) -> tuple[str, Mapping[str, str]]:
    """Return a job's name, and the labels of its latest session."""
    name = tx.session.execute(select(Job.name).where(Job.id == job_id)).scalar_one()
    labels = tx.session.execute(
        select(Session.meta["labels"])
        .where(Session.job_id == job_id)
        .order_by(Session.received_at.desc())
        .limit(1)
    ).scalar()
    return name, labels or {}


def load_job(tx: UnitOfWork, group: AlertGroup) -> JobState:
    """Return all data of a job that rules read."""
    of_job = select(Job.name, Job.finished_at).where(Job.id == group.job_id)
    name, finished_at = tx.session.execute(of_job).one()
    latest = (
        sessions_with_facts()
        .where(Session.job_id == group.job_id)
        .order_by(Session.received_at.desc(), Session.id)
        .limit(HISTORY_SESSIONS)
    )
    received = tx.session.execute(
        select(Session.received_at, Session.meta["labels"])
        .where(Session.job_id == group.job_id)
        .order_by(Session.received_at.desc())
        .limit(RECEIVED_READ)
    ).all()
    rows = tx.session.execute(
        select(AlertIncident)
        .where(AlertIncident.group_id == group.id, AlertIncident.silenced_until > tx.now)
        .order_by(AlertIncident.opened_at)
    ).scalars()
    silenced = [incident_of(row) for row in rows]
    return JobState(
        job=name,
        labels=(received[0][1] or {}) if received else {},
        history=read_facts(tx, latest)[::-1],
        received=[at for at, _ in received][::-1],
        finished_at=finished_at,
        incidents=open_incidents(tx, group.id),
        silences={
            incident.fingerprint: incident.silence for incident in silenced if incident.silence
        },
        since=_last_resolved(tx, group.id, "resolved_by"),
        hang=latest_hang(tx, group.job_id),
        notices=notices_of_job(tx, group.job_id),
        heard=_last_resolved(tx, group.id, "notice"),
    )


def save_change(  # noqa: PLR0913 - a transition, and who caused it
    tx: UnitOfWork,
    group: AlertGroup,
    change: IncidentChange,
    intervals: Timing,
    *,
    actor: str | None = None,
    note: str | None = None,
) -> None:
    """Store an incident and its event, and schedule a flush of the group."""
    incident = change.incident
    values = {
        "fingerprint": incident.fingerprint,
        "state": incident.state,
        "opened_at": incident.opened_at,
        "fired_at": incident.fired_at,
        "resolved_at": incident.resolved_at,
        "silenced_until": incident.silence.until if incident.silence else None,
        "document": INCIDENT.dump_python(incident, mode="json"),
    }
    tx.session.execute(
        insert(AlertIncident)
        .values(id=incident.id, group_id=group.id, **values)
        .on_conflict_do_update(index_elements=["id"], set_=values)
    )
    if change.event == "held":
        return
    group.number += 1
    tx.session.add(
        AlertEvent(
            incident_id=incident.id,
            number=group.number,
            event=change.event,
            from_state=change.before,
            to_state=incident.state,
            actor=actor,
            note=note or incident.why_resolved,
            session_id=incident.facts.session if incident.facts else None,
            at=tx.now,
        )
    )
    if change.notifies:
        group.flush_at = next_flush(intervals, tx.now, group.flushed_at, group.flush_at)
        group.traceparent = current()


def rule_names(rules: Sequence[Rule]) -> Mapping[uuid.UUID, str]:
    """Return the names of rules by id."""
    return {rule.id: rule.name for rule in rules}


def _last_resolved(tx: UnitOfWork, group_id: uuid.UUID, which: str) -> dict[uuid.UUID, datetime]:
    """Return for each rule the time at which its last incident ended.

    Parameters
    ----------
    which : str
        ``resolved_by``: only incidents that a user resolved; ``notice``: only incidents of notices.
    """
    rule_id = func.jsonb_array_elements_text(AlertIncident.document["rules"]).column_valued(
        "rule", joins_implicitly=True
    )
    rows = tx.session.execute(
        select(rule_id, func.max(AlertIncident.resolved_at))
        .where(
            AlertIncident.group_id == group_id,
            AlertIncident.resolved_at.is_not(None),
            AlertIncident.document[which].astext.is_not(None),
        )
        .group_by(rule_id)
    ).all()
    return {uuid.UUID(id_): at for id_, at in rows}
