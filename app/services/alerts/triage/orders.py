"""Use case: the same order for many incidents, in one transaction."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from app.alerts.states import IncidentState
from app.errors import ConflictError
from app.services.alerts.incidents import (
    Inside,
    acknowledging,
    carry_out,
    locked,
    reopening,
    resolving,
    silencing,
    unacknowledging,
)
from app.services.alerts.machines.leads import ended_with, inside_of, settle
from app.services.alerts.store import incident_of

if TYPE_CHECKING:
    from collections.abc import Collection
    from datetime import datetime

    from app.access.principals import Principal
    from app.services.alerts.incidents import Order
    from app.services.container import Container

# More than a person selects; a transaction holds the locks of their groups.
MOST: Final = 500
# Refusals of one incident, which do not hold up the others.
LEFT_ALONE: Final = frozenset(
    {"incident.wrong_state", "incident.ended_by_itself", "incident.open_again"}
)


@dataclass(frozen=True, slots=True)
class Left:
    """An incident that an order does not apply to, and stays as it is."""

    id: uuid.UUID
    state: IncidentState
    why: str


@dataclass(frozen=True, slots=True)
class OrderOutcome:
    """The outcome of an order for many incidents."""

    changed: Sequence[uuid.UUID]
    left: Sequence[Left]


def acknowledge_many(
    container: Container, ids: Collection[uuid.UUID], *, by: str | None, note: str | None
) -> OrderOutcome:
    """Acknowledge incidents; those that it does not apply to stay as they are.

    Raises
    ------
    NotFoundError
        If one of them is not there; then all stay as they are.
    """
    who = container.principal.called(by)
    return _order(container, ids, acknowledging(who), who, note)


def unacknowledge_many(
    container: Container, ids: Collection[uuid.UUID], *, by: str | None
) -> OrderOutcome:
    """Take acknowledgements back; incidents without one stay as they are.

    Raises
    ------
    NotFoundError
        If one of them is not there; then all stay as they are.
    """
    who = container.principal.called(by)
    return _order(container, ids, unacknowledging, who, None)


def reopen_many(
    container: Container, ids: Collection[uuid.UUID], *, by: str | None, note: str | None
) -> OrderOutcome:
    """Take back that incidents are over; those that ended by themselves stay so.

    Raises
    ------
    NotFoundError
        If one of them is not there; then all stay as they are.
    """
    who = container.principal.called(by)
    return _order(container, ids, reopening, who, note, inside=ended_with)


def silence_many(
    container: Container,
    ids: Collection[uuid.UUID],
    *,
    until: datetime,
    reason: str,
    by: str | None,
) -> OrderOutcome:
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
) -> OrderOutcome:
    """Resolve incidents; those that are over stay as they are.

    Raises
    ------
    NotFoundError
        If one of them is not there; then all stay as they are.
    """
    who = container.principal.called(by)
    return _order(container, ids, resolving(who, note), who, note)


def _order(  # noqa: PLR0913 - an order, who is behind it, and for what
    container: Container,
    ids: Collection[uuid.UUID],
    order: Order,
    who: Principal,
    note: str | None,
    *,
    inside: Inside = inside_of,
) -> OrderOutcome:
    changed, left = [], []
    with container.uow() as tx:
        for group, row in locked(tx, {*ids, *inside(tx, ids)}):
            incident = incident_of(row)
            try:
                change = order(incident, tx.now)
                if change is not None:
                    carry_out(container, tx, group, change, who=who, note=note)
                    changed.append(change.incident)
            except ConflictError as error:
                if error.stable_code not in LEFT_ALONE:
                    raise
                if row.id not in ids:
                    continue
                left.append(Left(row.id, incident.state, str(error)))
                continue
            if change is None and row.id in ids:
                left.append(Left(row.id, incident.state, f"The incident is {incident.state}."))
        settle(tx, changed)
    return OrderOutcome([one.id for one in changed], left)
