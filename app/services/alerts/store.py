"""Incidents as rows: read a job's state, write its changes.

Protocol. Everything of a job changes under the lock of its group's row (`lock_group`), taken before
any other row of alerts: a session's evaluation, the sweeper's look, and a person's order follow
each other, and each sees what the one before it wrote. Under that lock the next number of the group
is taken for every transition and every notification, so that all of them have one order.

Locks are taken in the order task run, group, channel, delivery, and as FOR NO KEY UPDATE, which the
foreign keys of new rows do not wait for.
"""

from __future__ import annotations

import uuid
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import exists, func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import aliased

from app.alerts.board import IncidentChange, JobState
from app.alerts.evaluate import HISTORY_SESSIONS
from app.alerts.grouping import Timing, next_flush
from app.alerts.incidents import INCIDENT, Incident, Silence
from app.alerts.readings import BASELINE_SESSIONS
from app.alerts.rules import RULE, Rule
from app.alerts.states import IncidentState
from app.db.models.alerts import (
    AlertEvent,
    AlertGroup,
    AlertIncident,
    AlertOnHost,
    AlertRule,
)
from app.db.models.sessions import Job, Session
from app.services.alerts.facts import latest_hang, read_facts, sessions_with_facts
from app.services.alerts.notices import notices_of_job
from app.system.telemetry.spans import current

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from app.db.unit_of_work import Reads, UnitOfWork
    from app.settings import Settings

# Gaps between this number of sessions give the typical interval; one more session than gaps.
RECEIVED: Final = BASELINE_SESSIONS + 1

OPEN: Final = AlertIncident.state != IncidentState.RESOLVED

_placed: Final = aliased(AlertOnHost)
_lead: Final = aliased(AlertOnHost)
# Another incident speaks for it, or did to its end.
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
    """Return the intervals of groups."""
    return Timing(
        timedelta(seconds=settings.alert_group_wait_s),
        timedelta(seconds=settings.alert_group_interval_s),
        timedelta(seconds=settings.alert_repeat_interval_s),
    )


def group_of_job(tx: UnitOfWork, job_id: int) -> AlertGroup:
    """Return a job's group, made where there is none, locked until the transaction ends.

    In a transaction of all projects it is made in the job's own.
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
    """Return a group, locked until the transaction ends; None where it is gone.

    Parameters
    ----------
    skip_locked : bool
        Return None also where another transaction has it.
    """
    return tx.session.execute(
        select(AlertGroup)
        .where(AlertGroup.id == group_id)
        .with_for_update(key_share=True, skip_locked=skip_locked)
        .execution_options(populate_existing=True)
    ).scalar_one_or_none()


def load_rules(tx: Reads) -> list[Rule]:
    """Return all rules by name."""
    rows = tx.session.execute(select(AlertRule).order_by(AlertRule.name)).scalars()
    return [rule_of(row) for row in rows]


def rule_of(row: AlertRule) -> Rule:
    """Return the rule in a row."""
    return RULE.validate_python({"id": row.id, "name": row.name, **row.document})


def rule_document(rule: Rule) -> dict[str, Any]:
    """Return what the column `document` holds of a rule."""
    document: dict[str, Any] = RULE.dump_python(rule, mode="json", exclude={"id", "name"})
    return document


def incident_of(row: AlertIncident) -> Incident:
    """Return the incident in a row."""
    return INCIDENT.validate_python(row.document)


def open_incidents(tx: Reads, group_id: uuid.UUID) -> list[Incident]:
    """Return the incidents of a group that are not over."""
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
    """Return everything that rules look at."""
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
        .limit(RECEIVED)
    ).all()
    return JobState(
        job=name,
        labels=(received[0][1] or {}) if received else {},
        history=read_facts(tx, latest)[::-1],
        received=[at for at, _ in received][::-1],
        finished_at=finished_at,
        incidents=open_incidents(tx, group.id),
        silences=_silences(tx, group.id),
        since=_settled(tx, group.id, "resolved_by"),
        hang=latest_hang(tx, group.job_id),
        notices=notices_of_job(tx, group.job_id),
        heard=_settled(tx, group.id, "notice"),
    )


def save_change(  # noqa: PLR0913 - a transition, and who is behind it
    tx: UnitOfWork,
    group: AlertGroup,
    change: IncidentChange,
    intervals: Timing,
    *,
    actor: str | None = None,
    note: str | None = None,
) -> None:
    """Write an incident, its event, and when the group is to be notified."""
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
    if change.tells:
        group.flush_at = next_flush(intervals, tx.now, group.flushed_at, group.flush_at)
        group.traceparent = current()


def rule_names(rules: Sequence[Rule]) -> Mapping[uuid.UUID, str]:
    """Return names by id."""
    return {rule.id: rule.name for rule in rules}


def _silences(tx: UnitOfWork, group_id: uuid.UUID) -> dict[str, Silence]:
    rows = tx.session.execute(
        select(AlertIncident)
        .where(AlertIncident.group_id == group_id, AlertIncident.silenced_until > tx.now)
        .order_by(AlertIncident.opened_at)
    ).scalars()
    found = (incident_of(row) for row in rows)
    return {incident.fingerprint: incident.silence for incident in found if incident.silence}


def _settled(tx: UnitOfWork, group_id: uuid.UUID, which: str) -> dict[uuid.UUID, datetime]:
    """Return by rule when an incident of it last ended.

    Parameters
    ----------
    which : str
        ``resolved_by``: only those that a person ended; ``notice``: those of the pulse.
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
