"""Incidents: read them, acknowledge, silence and resolve them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from sqlalchemy import case, func, select

from app.alerts.board import Change
from app.alerts.incidents import (
    Incident,
    Silence,
    State,
    acknowledge,
    clear,
    end_silence,
    silence,
)
from app.db.models.alerts import AlertEvent, AlertGroup, AlertIncident
from app.db.models.sessions import Job
from app.errors import ConflictError, NotFoundError
from app.services.alerts.store import (
    OPEN,
    incident_of,
    load_rules,
    lock_group,
    rule_names,
    save_change,
    timing,
)

if TYPE_CHECKING:
    import uuid
    from collections.abc import Callable, Mapping, Sequence
    from datetime import datetime

    from sqlalchemy import Select

    from app.db.unit_of_work import UnitOfWork
    from app.services.container import Container

RESOLVED_BY_PERSON: Final = "resolved by hand"

# What needs somebody comes first.
_ORDER: Final = case(
    {"firing": 0, "acknowledged": 1, "silenced": 2, "pending": 3},
    value=AlertIncident.state,
    else_=4,
)
_BEGAN_OR_ENDED: Final = func.coalesce(AlertIncident.resolved_at, AlertIncident.opened_at)


@dataclass(frozen=True, slots=True)
class IncidentRow:
    """An incident as lists show it.

    Parameters
    ----------
    job : str
    incident : Incident
    rules : mapping of UUID to str
        Names of those of its rules that are still there.
    """

    job: str
    incident: Incident
    rules: Mapping[uuid.UUID, str]


@dataclass(frozen=True, slots=True)
class EventRow:
    """A transition of an incident."""

    at: datetime
    event: str
    from_state: str | None
    to_state: str
    actor: str | None
    note: str | None
    session: uuid.UUID | None


@dataclass(frozen=True, slots=True)
class IncidentView:
    """An incident with its history, the oldest event first, and the database's time."""

    row: IncidentRow
    events: Sequence[EventRow]
    now: datetime


def list_incidents(
    container: Container,
    limit: int,
    *,
    state: str | None = None,
    job: str | None = None,
    open_only: bool = False,
) -> list[IncidentRow]:
    """Return incidents, firing ones first, then the newest; of those that are over, the latest.

    Parameters
    ----------
    container : Container
    limit : int
    state, job : str, optional
        Only those.
    open_only : bool
        Leave out what is over. What was never told of and is over is left out in any case.
    """
    query = (
        _rows()
        .where(OPEN | AlertIncident.fired_at.is_not(None))
        .order_by(_ORDER, _BEGAN_OR_ENDED.desc(), AlertIncident.id)
        .limit(limit)
    )
    if state is not None:
        query = query.where(AlertIncident.state == state)
    if job is not None:
        query = query.where(Job.name == job)
    if open_only:
        query = query.where(OPEN)
    with container.uow() as tx:
        names = rule_names(load_rules(tx))
        return [_row(row, name, names) for row, name in tx.session.execute(query)]


def get_incident(container: Container, incident_id: uuid.UUID) -> IncidentView:
    """Return an incident.

    Raises
    ------
    NotFoundError
    """
    with container.uow() as tx:
        found = tx.session.execute(_rows().where(AlertIncident.id == incident_id)).one_or_none()
        if found is None:
            raise _unknown(incident_id)
        events = tx.session.execute(
            select(AlertEvent)
            .where(AlertEvent.incident_id == incident_id)
            .order_by(AlertEvent.number)
        ).scalars()
        return IncidentView(
            row=_row(found[0], found[1], rule_names(load_rules(tx))),
            events=[
                EventRow(
                    at=event.at,
                    event=event.event,
                    from_state=event.from_state,
                    to_state=event.to_state,
                    actor=event.actor,
                    note=event.note,
                    session=event.session_id,
                )
                for event in events
            ],
            now=tx.now,
        )


def acknowledge_incident(
    container: Container, incident_id: uuid.UUID, *, by: str, note: str | None = None
) -> IncidentView:
    """Stop repeating it; once more by the same person is no error.

    Raises
    ------
    NotFoundError, ConflictError
    """

    def order(incident: Incident, _now: datetime) -> Change | None:
        if incident.state is State.ACKNOWLEDGED:
            return None
        return Change(acknowledge(incident, by), incident.state, "acknowledged")

    return _ordered(container, incident_id, order, by, note)


def silence_incident(
    container: Container, incident_id: uuid.UUID, *, until: datetime, reason: str, by: str
) -> IncidentView:
    """Tell nobody of it until a time, also if it ends and comes back meanwhile.

    Raises
    ------
    NotFoundError
    ConflictError
        If that time is over, or the incident is.
    """

    def order(incident: Incident, now: datetime) -> Change:
        if until <= now:
            raise ConflictError("A silence ends in the future.", code="incident.silence_over")
        changed = silence(incident, Silence(until, reason, by))
        return Change(changed, incident.state, "silenced")

    return _ordered(container, incident_id, order, by, reason)


def end_incident_silence(container: Container, incident_id: uuid.UUID, *, by: str) -> IncidentView:
    """Tell of it again at once.

    Raises
    ------
    NotFoundError, ConflictError
    """

    def order(incident: Incident, _now: datetime) -> Change:
        return Change(end_silence(incident), incident.state, "unsilenced")

    return _ordered(container, incident_id, order, by, None)


def resolve_incident(
    container: Container, incident_id: uuid.UUID, *, by: str, note: str | None = None
) -> IncidentView:
    """End it; the sessions so far do not count any more for its rules.

    Raises
    ------
    NotFoundError, ConflictError
    """

    def order(incident: Incident, now: datetime) -> Change:
        ended = clear(incident, now, note or RESOLVED_BY_PERSON, by=by)
        return Change(ended, incident.state, "resolved")

    return _ordered(container, incident_id, order, by, note)


def _ordered(
    container: Container,
    incident_id: uuid.UUID,
    order: Callable[[Incident, datetime], Change | None],
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
    return get_incident(container, incident_id)


def _group_of(tx: UnitOfWork, incident_id: uuid.UUID) -> AlertGroup:
    group_id = tx.session.execute(
        select(AlertIncident.group_id).where(AlertIncident.id == incident_id)
    ).scalar()
    group = None if group_id is None else lock_group(tx, group_id)
    if group is None:
        raise _unknown(incident_id)
    return group


def _rows() -> Select[AlertIncident, str]:
    return (
        select(AlertIncident, Job.name)
        .join(AlertGroup, AlertGroup.id == AlertIncident.group_id)
        .join(Job, Job.id == AlertGroup.job_id)
    )


def _row(row: AlertIncident, job: str, names: Mapping[uuid.UUID, str]) -> IncidentRow:
    incident = incident_of(row)
    return IncidentRow(job, incident, {id_: names[id_] for id_ in incident.rules if id_ in names})


def _unknown(incident_id: uuid.UUID) -> NotFoundError:
    return NotFoundError(f"There is no incident {incident_id}.")


def count_firing(container: Container) -> int:
    """Return how many incidents fire and nobody has acknowledged."""
    with container.uow() as tx:
        return tx.session.execute(
            select(func.count()).where(AlertIncident.state == State.FIRING)
        ).scalar_one()
