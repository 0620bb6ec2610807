"""Use case: the same order for many incidents, in one transaction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from sqlalchemy import select

from app.alerts.states import IncidentState
from app.db.models.alerts import AlertIncident
from app.errors import ConflictError
from app.services.alerts.incident_reads import no_incident
from app.services.alerts.incidents import acknowledging, carry_out, resolving, silencing
from app.services.alerts.store import incident_of, lock_group

if TYPE_CHECKING:
    import uuid
    from collections.abc import Collection, Sequence
    from datetime import datetime

    from app.access.principals import Principal
    from app.db.models.alerts import AlertGroup
    from app.db.unit_of_work import UnitOfWork
    from app.services.alerts.incidents import Order
    from app.services.container import Container

# More than a person selects; a transaction holds the locks of their groups.
MOST: Final = 500


@dataclass(frozen=True, slots=True)
class Left:
    """An incident that an order does not apply to, and stays as it is."""

    id: uuid.UUID
    state: IncidentState
    why: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of an order for many incidents."""

    changed: Sequence[uuid.UUID]
    left: Sequence[Left]


def acknowledge_many(
    container: Container, ids: Collection[uuid.UUID], *, by: str | None, note: str | None
) -> Outcome:
    """Acknowledge incidents; those that it does not apply to stay as they are.

    Raises
    ------
    NotFoundError
        If one of them is not there; then all stay as they are.
    """
    who = container.principal.called(by)
    return _order(container, ids, acknowledging(who), who, note)


def silence_many(
    container: Container,
    ids: Collection[uuid.UUID],
    *,
    until: datetime,
    reason: str,
    by: str | None,
) -> Outcome:
    """Silence incidents; those that it does not apply to stay as they are.

    Raises
    ------
    NotFoundError
        If one of them is not there.
    ConflictError
        If the silence would end in the past. Then all stay as they are.
    """
    who = container.principal.called(by)
    return _order(container, ids, silencing(who, until, reason), who, reason)


def resolve_many(
    container: Container, ids: Collection[uuid.UUID], *, by: str | None, note: str | None
) -> Outcome:
    """Resolve incidents; those that are over stay as they are.

    Raises
    ------
    NotFoundError
        If one of them is not there; then all stay as they are.
    """
    who = container.principal.called(by)
    return _order(container, ids, resolving(who, note), who, note)


def locked(tx: UnitOfWork, ids: Collection[uuid.UUID]) -> list[tuple[AlertGroup, AlertIncident]]:
    """Return incidents with their groups, which are locked.

    In the order of their ids: two orders for the same incidents never wait for each other.

    Raises
    ------
    NotFoundError
    """
    found = tx.session.execute(
        select(AlertIncident.id, AlertIncident.group_id).where(AlertIncident.id.in_(ids))
    ).all()
    missing = set(ids) - {row.id for row in found}
    if missing:
        raise no_incident(min(missing))
    groups = {id_: lock_group(tx, id_) for id_ in sorted({row.group_id for row in found})}
    rows = tx.session.execute(
        select(AlertIncident)
        .where(AlertIncident.id.in_(ids))
        .order_by(AlertIncident.group_id, AlertIncident.opened_at, AlertIncident.id)
    ).scalars()
    with_groups = [(groups[row.group_id], row) for row in rows]
    if len(with_groups) < len(found) or None in groups.values():
        # Deleted with its job while others were waited for.
        raise no_incident(min(ids))
    return [(group, row) for group, row in with_groups if group is not None]


def _order(
    container: Container,
    ids: Collection[uuid.UUID],
    order: Order,
    who: Principal,
    note: str | None,
) -> Outcome:
    changed, left = [], []
    with container.uow() as tx:
        for group, row in locked(tx, ids):
            incident = incident_of(row)
            try:
                change = order(incident, tx.now)
            except ConflictError as error:
                if error.stable_code != "incident.wrong_state":
                    raise
                left.append(Left(row.id, incident.state, str(error)))
                continue
            if change is None:
                left.append(Left(row.id, incident.state, f"The incident is {incident.state}."))
                continue
            carry_out(container, tx, group, change, who=who, note=note)
            changed.append(row.id)
    return Outcome(changed, left)
