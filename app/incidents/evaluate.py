"""Use cases: evaluate the rules of a job; acknowledge, silence, resolve or reopen an incident."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection
from dataclasses import replace
from datetime import datetime
from typing import Final

from sqlalchemy import select

from app.access.audit import Action, record
from app.errors import ConflictError
from app.incidents.conditions import evaluate, next_look
from app.incidents.grouping import IncidentChange
from app.incidents.lifecycle import (
    Incident,
    Silence,
    acknowledge,
    clear,
    end_silence,
    reopen,
    silence,
    unacknowledge,
)
from app.incidents.machines import (
    members_ended_with,
    open_members,
    place_incidents,
    without_early_ends,
)
from app.incidents.models.tables import AlertGroup, AlertIncident, IncidentState
from app.incidents.reads import IncidentView, get_incident, no_incident
from app.incidents.store import (
    OPEN,
    end_hangs,
    group_of_job,
    incident_of,
    judge_notices,
    load_job,
    load_rules,
    lock_group,
    mark_hangs_over,
    save_change,
    timing,
)
from app.jobs.models import Job
from app.platform.container import Container
from app.platform.database.unit_of_work import UnitOfWork
from app.platform.identity import Principal
from app.sessions.models.tables import Session


def evaluate_session(container: Container, tx: UnitOfWork, session_id: uuid.UUID) -> None:
    """Evaluate the job of a session, in the transaction that stores its analysis."""
    job_id = tx.session.execute(select(Session.job_id).where(Session.id == session_id)).scalar_one()
    look(container, tx, group_of_job(tx, job_id))


def look_at_group(container: Container, group_id: uuid.UUID) -> bool:
    """Evaluate a job because time passed or a rule changed; return False if it is not due."""
    with container.uow() as tx:
        group = lock_group(tx, group_id, skip_locked=True)
        if group is None or group.look_at is None or group.look_at > tx.now:
            return False
        look(container, tx, group)
    return True


def look(container: Container, tx: UnitOfWork, group: AlertGroup) -> None:
    """Evaluate a job whose group is locked, and store the changes."""
    end_hangs(tx, group.job_id)
    judge_notices(tx, group.job_id)
    rules = load_rules(tx)
    job = load_job(tx, group)
    intervals = timing(container.settings)
    changes = evaluate(job, rules, tx.now, uuid.uuid4)
    changes = without_early_ends(tx, job.incidents, changes)
    for change in changes:
        save_change(tx, group, change, intervals)
    incidents = {incident.id: incident for incident in job.incidents}
    incidents |= {change.incident.id: change.incident for change in changes}
    place_incidents(tx, incidents.values())
    left = [each for each in incidents.values() if each.state is not IncidentState.RESOLVED]
    group.look_at = next_look(replace(job, incidents=left), rules, tx.now)


# Returns the change that an order makes to an incident, or None if it changes nothing.
Order = Callable[[Incident, datetime], IncidentChange | None]
# Returns the members of leads that an order applies to as well.
MembersOf = Callable[["UnitOfWork", Collection["uuid.UUID"]], "set[uuid.UUID]"]

RESOLVED_BY_PERSON: Final = "resolved by hand"

# Action names in the audit log, by event of an incident.
ACTIONS: Final = {
    "acknowledged": Action.ACKNOWLEDGED,
    "unacknowledged": Action.UNACKNOWLEDGED,
    "reopened": Action.REOPENED,
    "silenced": Action.SILENCED,
    "unsilenced": Action.UNSILENCED,
    "resolved": Action.RESOLVED,
}


def acknowledging(who: Principal) -> Order:
    """Return the order to acknowledge an incident; an acknowledged incident stays as it is."""

    def order(incident: Incident, _now: datetime) -> IncidentChange | None:
        if incident.state is IncidentState.ACKNOWLEDGED:
            return None
        return IncidentChange(acknowledge(incident, who.name), incident.state, "acknowledged")

    return order


def unacknowledging(incident: Incident, _now: datetime) -> IncidentChange | None:
    """Undo an acknowledgement; a firing incident stays as it is."""
    if incident.state is IncidentState.FIRING:
        return None
    return IncidentChange(unacknowledge(incident), incident.state, "unacknowledged")


def reopening(incident: Incident, now: datetime) -> IncidentChange | None:
    """Undo a resolution; an open incident stays as it is."""
    if incident.state is not IncidentState.RESOLVED:
        return None
    return IncidentChange(reopen(incident, now), incident.state, "reopened")


def silencing(who: Principal, until: datetime, reason: str) -> Order:
    """Return the order to silence an incident until a time.

    The order raises `ConflictError` if that time has passed, or the incident is resolved.
    """

    def order(incident: Incident, now: datetime) -> IncidentChange:
        if until <= now:
            raise ConflictError("A silence ends in the future.", code="incident.silence_over")
        changed = silence(incident, Silence(until, reason, who.name))
        return IncidentChange(changed, incident.state, "silenced")

    return order


def resolving(who: Principal, note: str | None) -> Order:
    """Return the order to resolve an incident."""

    def order(incident: Incident, now: datetime) -> IncidentChange:
        ended = clear(incident, now, note or RESOLVED_BY_PERSON, by=who.name)
        return IncidentChange(ended, incident.state, "resolved")

    return order


def acknowledge_incident(
    container: Container, incident_id: uuid.UUID, *, by: str | None = None, note: str | None = None
) -> IncidentView:
    """Acknowledge an incident, so that its messages are not repeated.

    Raises
    ------
    NotFoundError, ConflictError
    """
    who = container.principal.called(by)
    return _execute(container, incident_id, acknowledging(who), who, note)


def unacknowledge_incident(
    container: Container, incident_id: uuid.UUID, *, by: str | None = None
) -> IncidentView:
    """Undo an acknowledgement: the incident fires again, and its messages are repeated.

    Raises
    ------
    NotFoundError, ConflictError
    """
    who = container.principal.called(by)
    return _execute(container, incident_id, unacknowledging, who, None)


def silence_incident(
    container: Container,
    incident_id: uuid.UUID,
    *,
    until: datetime,
    reason: str,
    by: str | None = None,
) -> IncidentView:
    """Silence an incident until a time, even if it ends and returns before.

    Raises
    ------
    NotFoundError
    ConflictError
        If that time has passed, or the incident is resolved.
    """
    who = container.principal.called(by)
    return _execute(container, incident_id, silencing(who, until, reason), who, reason)


def end_incident_silence(
    container: Container, incident_id: uuid.UUID, *, by: str | None = None
) -> IncidentView:
    """End the silence of an incident, so that its message is due at once.

    Raises
    ------
    NotFoundError, ConflictError
    """
    who = container.principal.called(by)

    def order(incident: Incident, _now: datetime) -> IncidentChange:
        return IncidentChange(end_silence(incident), incident.state, "unsilenced")

    return _execute(container, incident_id, order, who, None)


def resolve_incident(
    container: Container, incident_id: uuid.UUID, *, by: str | None = None, note: str | None = None
) -> IncidentView:
    """Resolve an incident; sessions up to now no longer count for its rules.

    Raises
    ------
    NotFoundError, ConflictError
    """
    who = container.principal.called(by)
    return _execute(container, incident_id, resolving(who, note), who, note)


def reopen_incident(
    container: Container, incident_id: uuid.UUID, *, by: str | None = None, note: str | None = None
) -> IncidentView:
    """Undo a resolution, also of members that ended with it: the earlier sessions count again.

    Raises
    ------
    NotFoundError
    ConflictError
        If its rules ended it, or the same problem is open again.
    """
    who = container.principal.called(by)
    return _execute(container, incident_id, reopening, who, note, inside=members_ended_with)


def apply_order(  # noqa: PLR0913 - an order, and who gives it
    container: Container,
    tx: UnitOfWork,
    group: AlertGroup,
    change: IncidentChange,
    *,
    who: Principal,
    note: str | None,
) -> None:
    """Store a user's order on an incident whose group is locked.

    Raises
    ------
    ConflictError
        ``incident.open_again``.
    """
    if change.before is IncidentState.RESOLVED:
        same = select(AlertIncident.id).where(
            AlertIncident.group_id == group.id,
            AlertIncident.fingerprint == change.incident.fingerprint,
            OPEN,
        )
        if tx.session.execute(same).scalar() is not None:
            raise ConflictError(
                "The same is open again, as another incident.", code="incident.open_again"
            )
    save_change(tx, group, change, timing(container.settings), actor=who.name, note=note)
    if change.event == "resolved" and change.incident.hang is not None:
        mark_hangs_over(tx, group.job_id, tx.now, who.name)
    record(tx, who, ACTIONS[change.event], audit_name(tx, group, change.incident), detail=note)
    # An evaluation now sets the next evaluation time: the end of a silence, or none after a
    # resolution.
    group.look_at = tx.now


def audit_name(tx: UnitOfWork, group: AlertGroup, incident: Incident) -> str:
    """Return the name of an incident in the audit log."""
    job = tx.session.execute(select(Job.name).where(Job.id == group.job_id)).scalar_one()
    where = f" {incident.where}" if incident.where else ""
    return f"incident {incident.cause}{where} of {job}"


def _execute(  # noqa: PLR0913 - an order, who gives it, and for which incidents
    container: Container,
    incident_id: uuid.UUID,
    order: Order,
    who: Principal,
    note: str | None,
    *,
    inside: MembersOf = open_members,
) -> IncidentView:
    with container.uow() as tx:
        changed = []
        for group, row in lock_incidents(tx, [incident_id, *inside(tx, [incident_id])]):
            try:
                change = order(incident_of(row), tx.now)
                if change is not None:
                    apply_order(container, tx, group, change, who=who, note=note)
                    changed.append(change.incident)
            except ConflictError:
                if row.id == incident_id:
                    raise
        place_incidents(tx, changed)
    with container.reading() as tx:
        return get_incident(tx, incident_id)


def lock_incidents(
    tx: UnitOfWork, ids: Collection[uuid.UUID]
) -> list[tuple[AlertGroup, AlertIncident]]:
    """Return incidents with their groups, locked in order of their ids, which avoids deadlocks.

    Raises
    ------
    NotFoundError
    """
    existing = tx.session.execute(
        select(AlertIncident.id, AlertIncident.group_id).where(AlertIncident.id.in_(ids))
    ).all()
    missing = set(ids) - {row.id for row in existing}
    if missing:
        raise no_incident(min(missing))
    groups = {id_: lock_group(tx, id_) for id_ in sorted({row.group_id for row in existing})}
    rows = tx.session.execute(
        select(AlertIncident)
        .where(AlertIncident.id.in_(ids))
        .order_by(AlertIncident.group_id, AlertIncident.opened_at, AlertIncident.id)
    ).scalars()
    with_groups = [(groups[row.group_id], row) for row in rows]
    if len(with_groups) < len(existing) or None in groups.values():
        # The incident was deleted with its job while this transaction waited for locks.
        raise no_incident(min(ids))
    return [(group, row) for group, row in with_groups if group is not None]
