"""Incidents: acknowledge, silence and resolve them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sqlalchemy import select

from app.alerts.board import IncidentChange
from app.alerts.incidents import (
    Incident,
    Silence,
    acknowledge,
    clear,
    end_silence,
    silence,
)
from app.alerts.states import IncidentState
from app.db.models.alerts import AlertGroup, AlertIncident
from app.db.unit_of_work import reading
from app.errors import ConflictError
from app.services.alerts.incident_reads import get_incident, no_incident
from app.services.alerts.store import incident_of, lock_group, save_change, timing

if TYPE_CHECKING:
    import uuid
    from collections.abc import Callable
    from datetime import datetime

    from app.db.unit_of_work import UnitOfWork
    from app.services.alerts.incident_reads import IncidentView
    from app.services.container import Container

RESOLVED_BY_PERSON: Final = "resolved by hand"


def acknowledge_incident(
    container: Container, incident_id: uuid.UUID, *, by: str, note: str | None = None
) -> IncidentView:
    """Stop repeating it; once more by the same person is no error.

    Raises
    ------
    NotFoundError, ConflictError
    """

    def order(incident: Incident, _now: datetime) -> IncidentChange | None:
        if incident.state is IncidentState.ACKNOWLEDGED:
            return None
        return IncidentChange(acknowledge(incident, by), incident.state, "acknowledged")

    return _ordered(container, incident_id, order, by, note)


def silence_incident(
    container: Container, incident_id: uuid.UUID, *, until: datetime, reason: str, by: str
) -> IncidentView:
    """Silence an incident until a time, also if it ends and comes back meanwhile.

    Raises
    ------
    NotFoundError
    ConflictError
        If that time is over, or the incident is.
    """

    def order(incident: Incident, now: datetime) -> IncidentChange:
        if until <= now:
            raise ConflictError("A silence ends in the future.", code="incident.silence_over")
        changed = silence(incident, Silence(until, reason, by))
        return IncidentChange(changed, incident.state, "silenced")

    return _ordered(container, incident_id, order, by, reason)


def end_incident_silence(container: Container, incident_id: uuid.UUID, *, by: str) -> IncidentView:
    """End the silence of an incident; its message is due at once.

    Raises
    ------
    NotFoundError, ConflictError
    """

    def order(incident: Incident, _now: datetime) -> IncidentChange:
        return IncidentChange(end_silence(incident), incident.state, "unsilenced")

    return _ordered(container, incident_id, order, by, None)


def resolve_incident(
    container: Container, incident_id: uuid.UUID, *, by: str, note: str | None = None
) -> IncidentView:
    """End it; the sessions so far do not count any more for its rules.

    Raises
    ------
    NotFoundError, ConflictError
    """

    def order(incident: Incident, now: datetime) -> IncidentChange:
        ended = clear(incident, now, note or RESOLVED_BY_PERSON, by=by)
        return IncidentChange(ended, incident.state, "resolved")

    return _ordered(container, incident_id, order, by, note)


def _ordered(
    container: Container,
    incident_id: uuid.UUID,
    order: Callable[[Incident, datetime], IncidentChange | None],
    by: str,
    note: str | None,
) -> IncidentView:
    with container.uow() as tx:
        group = _group_of(tx, incident_id)
        row = tx.session.get_one(AlertIncident, incident_id)
        change = order(incident_of(row), tx.now)
        if change is not None:
            save_change(tx, group, change, timing(container.settings), actor=by, note=note)
            # A silence ends by time, and what was resolved may not have to be looked for.
            group.look_at = tx.now
    with reading(container.engine) as tx:
        return get_incident(tx, incident_id)


def _group_of(tx: UnitOfWork, incident_id: uuid.UUID) -> AlertGroup:
    group_id = tx.session.execute(
        select(AlertIncident.group_id).where(AlertIncident.id == incident_id)
    ).scalar()
    group = None if group_id is None else lock_group(tx, group_id)
    if group is None:
        raise no_incident(incident_id)
    return group
