"""Actions as rows: locks, orders, and names in the audit log.

Protocol. Decisions on a project's machines require the lock on the row of its kill switch, which is
locked before any row of an action: of two concurrent servers one decides, and the other reads the
result. Automatic decisions are made for one project at a time, because one limit counts the
machines of all projects. An order is a task run (`app.platform.tasks.runs`), written in the same
transaction.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import datetime
from typing import Final

from sqlalchemy import ScalarResult, func, select
from sqlalchemy.dialects.postgresql import insert

from app.actions.kinds.kind import HangOrder, Limit, Order
from app.actions.models import ActionMode, ActionState, ActionSwitch, MachineAction
from app.errors import NotFoundError
from app.incidents.deliver import base_url
from app.incidents.message import cause_name
from app.incidents.models.facts import HangFacts
from app.platform.database.task_runs import ACT_ON_MACHINE
from app.platform.database.unit_of_work import Reads, UnitOfWork
from app.platform.settings import Settings

# Key of the advisory lock on all projects' machines: "acti" in ASCII.
FLEET_LOCK: Final = 0x61637469


def lock_switch(tx: UnitOfWork) -> ActionSwitch:
    """Return the kill switch of a transaction's project, locked until the transaction ends."""
    return _locked_switch(tx, skip_locked=False).one()


def try_lock_switch(tx: UnitOfWork) -> ActionSwitch | None:
    """Return what `lock_switch` does; None if another transaction has locked the switch."""
    return _locked_switch(tx, skip_locked=True).one_or_none()


def _locked_switch(tx: UnitOfWork, *, skip_locked: bool) -> ScalarResult[ActionSwitch]:
    tx.session.execute(
        insert(ActionSwitch).values().on_conflict_do_nothing(index_elements=["project_id"])
    )
    return tx.session.execute(
        select(ActionSwitch)
        .with_for_update(skip_locked=skip_locked)
        .execution_options(populate_existing=True)
    ).scalars()


def lock_fleet(tx: UnitOfWork) -> bool:
    """Lock automatic decisions of all projects until the transaction ends; False if locked."""
    taken: bool = tx.session.execute(
        select(func.pg_try_advisory_xact_lock(FLEET_LOCK))
    ).scalar_one()
    return taken


def is_stopped(settings: Settings, switch: ActionSwitch) -> bool:
    """Return whether the kill switch of the project or of the installation is on."""
    return settings.actions_off or switch.stopped_at is not None


def state_under(mode: ActionMode, limits: Sequence[str]) -> ActionState:
    """Return the state of an undecided action, according to its policy's mode and its limits."""
    if mode is ActionMode.DRY_RUN:
        return ActionState.DRY_RUN
    if mode is ActionMode.ASK:
        held = any(limit in Limit.HARD for limit in limits)
        return ActionState.HELD if held else ActionState.ASKED
    return ActionState.HELD if limits else ActionState.WAITING


def lock_action(tx: UnitOfWork, action_id: uuid.UUID) -> MachineAction:
    """Return an action, locked; the caller must have locked the kill switch.

    Raises
    ------
    NotFoundError
    """
    row = tx.session.execute(
        select(MachineAction).where(MachineAction.id == action_id).with_for_update()
    ).scalar_one_or_none()
    if row is None:
        raise no_action(action_id)
    return row


def no_action(action_id: uuid.UUID) -> NotFoundError:
    """Return the error for an unknown action."""
    return NotFoundError(f"There is no action {action_id}.")


def audit_name(row: MachineAction) -> str:
    """Return the name of an action in the audit log."""
    return f"{row.kind} action on {row.host or f'job {row.job}'}"


def hang_order_of(
    settings: Settings, tx: Reads, row: MachineAction, hang: HangFacts, at: datetime
) -> HangOrder:
    """Return the order to report a job that hangs."""
    pages = base_url(settings, tx)
    return HangOrder(
        id=row.id,
        at=at,
        job=row.job,
        hang=hang.id,
        began=hang.began,
        ranks=hang.ranks,
        waiting=hang.waiting,
        confidence=hang.confidence,
        sentence=hang.sentence,
        culprits=hang.culprits,
        remedy=hang.remedy,
        incident=row.incident_id,
        evidence_url=f"{pages}hangs/{hang.id}",
        source_url=pages,
    )


def order_of(settings: Settings, tx: Reads, row: MachineAction, at: datetime) -> Order:
    """Return the order on a machine for its kind of action."""
    pages = base_url(settings, tx)
    return Order(
        id=row.id,
        at=at,
        node=row.host,
        gpus=tuple(row.gpus),
        cause=row.cause,
        cause_title=cause_name(row.cause),
        confidence=row.confidence,
        sessions=row.sessions,
        lost_each_hour=row.lost_each_hour,
        job=row.job,
        incident=row.incident_id,
        evidence_url=f"{pages}incidents/{row.incident_id}/evidence",
        source_url=pages,
        confirmed=not row.limits,
    )


def order(tx: UnitOfWork, row: MachineAction, by: str | None) -> None:
    """Order an action, in this transaction.

    Parameters
    ----------
    by : str or None
        The person; None for an automatic action.
    """
    row.state = ActionState.WAITING
    row.attempt = 0
    row.ended_at = None
    row.ordered_at, row.ordered_by = tx.now, by
    row.next_attempt_at = tx.now
    row.error_code = row.error = row.answer = None
    tx.session.flush()
    tx.enqueue(ACT_ON_MACHINE, row.id)
