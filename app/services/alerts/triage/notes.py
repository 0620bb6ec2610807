"""Use cases: say something about an incident, and say whose it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import delete
from sqlalchemy.dialects.postgresql import insert

from app.db.models.alerts import AlertAssignee, AlertComment, AlertEvent
from app.services.access.audit import Action, record
from app.services.alerts.incident_reads import get_incident
from app.services.alerts.incidents import called, locked
from app.services.alerts.store import incident_of
from app.services.alerts.triage.orders import Left, OrderOutcome

if TYPE_CHECKING:
    import uuid
    from collections.abc import Collection

    from app.services.alerts.incident_reads import IncidentView
    from app.services.container import Container


def comment_on(
    container: Container, incident_id: uuid.UUID, *, words: str, by: str | None
) -> IncidentView:
    """Say something about an incident, in whatever state it is.

    Raises
    ------
    NotFoundError
    """
    who = container.principal.called(by)
    with container.uow() as tx:
        [(group, row)] = locked(tx, [incident_id])
        tx.session.add(AlertComment(incident_id=incident_id, author=who.name, words=words))
        record(tx, who, Action.COMMENTED, called(tx, group, incident_of(row)), detail=words)
    with container.reading() as tx:
        return get_incident(tx, incident_id)


def assign_incidents(
    container: Container, ids: Collection[uuid.UUID], *, to: str | None, by: str | None
) -> OrderOutcome:
    """Say whose incidents are; what is theirs already stays so.

    Parameters
    ----------
    ids : collection of UUID
    to : str or None
        None: no assignee.

    Raises
    ------
    NotFoundError
        If one of them is not there; then all stay as they are.
    """
    who = container.principal.called(by)
    changed, left = [], []
    with container.uow() as tx:
        for group, row in locked(tx, ids):
            before = tx.session.get(AlertAssignee, row.id)
            if (before.name if before else None) == to:
                left.append(
                    Left(row.id, row.state, f"It is {to}'s." if to else "It is not assigned.")
                )
                continue
            if to is None:
                tx.session.execute(delete(AlertAssignee).where(AlertAssignee.incident_id == row.id))
            else:
                values = {"name": to, "assigned_by": who.name, "at": tx.now}
                tx.session.execute(
                    insert(AlertAssignee)
                    .values(incident_id=row.id, **values)
                    .on_conflict_do_update(index_elements=["incident_id"], set_=values)
                )
            group.number += 1
            tx.session.add(
                AlertEvent(
                    incident_id=row.id,
                    number=group.number,
                    event="assigned",
                    from_state=row.state,
                    to_state=row.state,
                    actor=who.name,
                    note=to,
                )
            )
            subject = called(tx, group, incident_of(row))
            record(tx, who, Action.ASSIGNED, subject, detail=f"to {to}" if to else "to no one")
            changed.append(row.id)
    return OrderOutcome(changed, left)
