"""Actions as rows.

Protocol. Whatever is decided about a project's machines is decided under the lock of its switch's
row, taken before any row of an action: of two servers that look at once, one decides and the other
sees what it decided. What happens by itself is decided for one project at a time: a limit counts
the machines of all. What is to be done is then a task run (`app.platform.tasks.runs`),
written in the same transaction.
"""

from __future__ import annotations

import uuid
from datetime import datetime
from typing import Final

from sqlalchemy import func, select
from sqlalchemy.dialects.postgresql import insert

from app.actions.kinds.kind import HangOrder, Order
from app.actions.models import ActionState, ActionSwitch, MachineAction
from app.errors import NotFoundError
from app.incidents.deliver import base_url
from app.incidents.message import cause_name
from app.incidents.models.facts import HangFacts
from app.platform.database.task_runs import ACT_ON_MACHINE
from app.platform.database.unit_of_work import Reads, UnitOfWork
from app.platform.settings import Settings

# "actions", as the database takes a lock's name.
FLEET_LOCK: Final = 0x61637469


def lock_switch(tx: UnitOfWork, *, skip_locked: bool = False) -> ActionSwitch | None:
    """Return the switch of a transaction's project, locked until the transaction ends.

    Parameters
    ----------
    skip_locked : bool
        Return None where another transaction has it.
    """
    tx.session.execute(
        insert(ActionSwitch).values().on_conflict_do_nothing(index_elements=["project_id"])
    )
    return tx.session.execute(
        select(ActionSwitch)
        .with_for_update(skip_locked=skip_locked)
        .execution_options(populate_existing=True)
    ).scalar_one_or_none()


def lock_fleet(tx: UnitOfWork) -> bool:
    """Return whether this transaction alone decides by itself, of any project, until it ends."""
    taken: bool = tx.session.execute(
        select(func.pg_try_advisory_xact_lock(FLEET_LOCK))
    ).scalar_one()
    return taken


def is_stopped(settings: Settings, switch: ActionSwitch) -> bool:
    """Return whether nothing is to be done: by the project's switch, or the installation's."""
    return settings.actions_off or switch.stopped_at is not None


def lock_action(tx: UnitOfWork, action_id: uuid.UUID) -> MachineAction:
    """Return an action, locked; the switch is locked already.

    Raises
    ------
    NotFoundError
    """
    row = tx.session.execute(
        select(MachineAction).where(MachineAction.id == action_id).with_for_update()
    ).scalar_one_or_none()
    if row is None:
        raise NotFoundError(f"There is no action {action_id}.")
    return row


def audit_name(row: MachineAction) -> str:
    """Return what the audit log calls an action."""
    return f"{row.kind} action on {row.host or f'job {row.job}'}"


def hang_order_of(
    settings: Settings, tx: Reads, row: MachineAction, hang: HangFacts, at: datetime
) -> HangOrder:
    """Return what is to be said about a job that hangs."""
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
    """Return what is to be done, as kinds of actions take it."""
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
    """Let an action be done, in this transaction.

    Parameters
    ----------
    by : str or None
        The person; None where every limit let it pass.
    """
    row.state = ActionState.WAITING
    row.attempt = 0
    row.ended_at = None
    row.ordered_at, row.ordered_by = tx.now, by
    row.next_attempt_at = tx.now
    row.error_code = row.error = row.answer = None
    tx.session.flush()
    tx.enqueue(ACT_ON_MACHINE, row.id)
