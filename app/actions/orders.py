"""Use cases of users: allow an action, decline it, or take it back."""

from __future__ import annotations

import uuid

from sqlalchemy import select

from app.access.audit import Action, record
from app.actions.decide import blamed_machines, fleet_of, release
from app.actions.kinds.kind import SENTENCES, Limit, hard_limits, limits_of
from app.actions.listed import ActionRow, get_action
from app.actions.models import ActionMode, ActionPolicy, ActionState, ActionSwitch, MachineAction
from app.actions.store import audit_name, is_stopped, lock_action, lock_switch, order
from app.errors import ConflictError
from app.incidents.models.tables import AlertIncident, IncidentState
from app.platform.container import Container
from app.platform.database.unit_of_work import UnitOfWork


def allow(container: Container, action_id: uuid.UUID) -> ActionRow:
    """Allow an action that waits for approval, that a limit holds, or that failed.

    Raises
    ------
    NotFoundError
    ConflictError
        ``action.wrong_state``; ``action.policy`` if the policy forbids actions; or the code of a
        limit that no user can override.
    """
    with container.uow() as tx:
        switch = lock_switch(tx)
        row = lock_action(tx, action_id)
        _refuse_unless(row, row.state in ActionState.ALLOWABLE, "be allowed")
        mode = tx.session.execute(
            select(ActionPolicy.mode).where(ActionPolicy.kind == row.kind)
        ).scalar()
        if mode not in ActionMode.ACTING:
            raise ConflictError("The project's policy lets nothing be done.", code="action.policy")
        other = tx.session.execute(
            select(MachineAction.id).where(
                MachineAction.kind == row.kind,
                MachineAction.host == row.host,
                MachineAction.id != row.id,
                MachineAction.hang.is_(None),
                MachineAction.state.in_(ActionState.OPEN),
            )
        ).first()
        if other is not None:
            raise ConflictError("Another action on the machine is open.", code="action.wrong_state")
        limits = _current_hard_limits(container, tx, switch, row)
        if limits:
            raise ConflictError(SENTENCES[limits[0]], code=limits[0])
        order(tx, row, container.principal.name)
        record(
            tx,
            container.principal,
            Action.ORDERED,
            audit_name(row),
            detail=row.command,
        )
    return _read(container, action_id)


def decline(container: Container, action_id: uuid.UUID) -> ActionRow:
    """Decline an action, so that the same incident does not cause it again.

    Raises
    ------
    NotFoundError, ConflictError
    """
    with container.uow() as tx:
        lock_switch(tx)
        row = lock_action(tx, action_id)
        _refuse_unless(row, row.state in ActionState.DECLINABLE, "be declined")
        row.state, row.ended_at = ActionState.DECLINED, tx.now
        record(tx, container.principal, Action.DECLINED, audit_name(row))
    return _read(container, action_id)


def put_back(container: Container, action_id: uuid.UUID) -> ActionRow:
    """Release a machine; for a day it is not taken out again without approval.

    Raises
    ------
    NotFoundError, ConflictError
    """
    with container.uow() as tx:
        lock_switch(tx)
        row = lock_action(tx, action_id)
        _refuse_unless(row, row.state is ActionState.DONE and row.hang is None, "be taken back")
        release(tx, row, container.principal.name)
        record(tx, container.principal, Action.RELEASED, audit_name(row))
    return _read(container, action_id)


def _read(container: Container, action_id: uuid.UUID) -> ActionRow:
    with container.reading() as tx:
        return get_action(tx, action_id)


def _refuse_unless(row: MachineAction, holds: bool, what: str) -> None:  # noqa: FBT001 - a condition
    if not holds:
        raise ConflictError(
            f"The action is {row.state.replace('_', ' ')}; it cannot {what}.",
            code="action.wrong_state",
        )


def _current_hard_limits(
    container: Container, tx: UnitOfWork, switch: ActionSwitch, row: MachineAction
) -> tuple[Limit, ...]:
    """Return the present limits that no user can override."""
    if row.hang is not None:
        state = tx.session.execute(
            select(AlertIncident.state).where(AlertIncident.id == row.incident_id)
        ).scalar()
        if state not in IncidentState.TOLD:
            raise ConflictError("The incident is over.", code="action.no_incident")
        return (Limit.STOPPED,) * is_stopped(container.settings, switch)
    fleet = fleet_of(tx, stopped=is_stopped(container.settings, switch))
    blamed = blamed_machines(tx, {row.host})
    if not blamed:
        raise ConflictError(
            "No open incident blames the machine any more.", code="action.no_incident"
        )
    return hard_limits(limits_of(blamed[0].case_for(row.kind), fleet))
