"""Use case: one attempt at an action or a release, and the periodic pass over all projects.

The protocol is that of deliveries (`app.incidents.deliver`): the claim and its lease belong to a
task run. `_start` commits the attempt before it runs, outside of any transaction, within less time
than the lease; `_settle` finishes the task run, which rolls everything back if another worker has
claimed it meanwhile. If a worker dies in between, the action is repeated: a drained node stays
drained, and an event has the same id.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

import structlog
from sqlalchemy import delete, select, union

from app.access.audit import Action, record
from app.actions.decide import blamed_machines, decide, fleet_of
from app.actions.kinds.kind import ActionKind, HangOrder, Limit, Order, hard_limits, limits_of
from app.actions.kinds.registry import KINDS
from app.actions.models import ActionMode, ActionPolicy, ActionState, ActionSwitch, MachineAction
from app.actions.policies import open_config
from app.actions.scheduled import queue_inventories, tools_of
from app.actions.store import (
    audit_name,
    hang_order_of,
    is_stopped,
    lock_action,
    lock_switch,
    order_of,
)
from app.errors import NotFoundError, SecretKeyError
from app.incidents.deliver import guard
from app.incidents.held_machines import is_one_node
from app.platform.container import Claim, Container
from app.platform.database.projects import is_there
from app.platform.database.states import TaskState
from app.platform.database.task_runs import ACT_ON_MACHINE, READ_SCHEDULER, TaskRun
from app.platform.database.unit_of_work import UnitOfWork
from app.platform.identity import INSTALLATION
from app.platform.outbound import DeliveryError, Outbound, ReceiverAnswer, wait_before
from app.platform.tasks.runs import finish

# Time between attempts at a release while the kill switch is on.
STOPPED_FOR: Final = timedelta(minutes=1)

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Started:
    kind: ActionKind
    config: Any
    order: Order | HangOrder
    release: bool


def perform(container: Container, claim: Claim) -> None:
    """Attempt an action once and store the outcome.

    Raises
    ------
    LostClaimError
        If another worker took it over meanwhile; nothing is stored.
    """
    try:
        started = _start(container, claim)
    except SecretKeyError as error:
        # A temporary failure, because the action can be done once the operator restores the key.
        _settle(container, claim, DeliveryError(error.stable_code, error.message))
        return
    if started is None:
        with container.uow() as tx:
            finish(tx, claim)
        return
    try:
        answer = _attempt(container, started)
    except DeliveryError as error:
        _log.info("action not done", code=error.code, error=error.sentence)
        _settle(container, claim, error)
    else:
        _settle(container, claim, answer)


def _attempt(container: Container, started: _Started) -> ReceiverAnswer:
    settings = container.settings
    kind, order = started.kind, started.order
    with Outbound(guard(settings), settings.alert_attempt_limit_s) as outbound:
        means = tools_of(settings, outbound)
        if isinstance(order, HangOrder):
            if kind.report_hang is None:
                raise DeliveryError("action.no_hangs", "The kind tells of no job.", permanent=True)
            return kind.report_hang(started.config, order, means)
        do = kind.release if started.release else kind.act
        return do(started.config, order, means)


def _start(container: Container, claim: Claim) -> _Started | None:
    """Return the order to execute; None if the action is over or a limit holds it."""
    with container.uow() as tx:
        switch, row = _locked(tx, claim)
        if row is None or row.state not in ActionState.UNDERWAY:
            return None
        policy = tx.session.execute(
            select(ActionPolicy).where(ActionPolicy.kind == row.kind)
        ).scalar_one()
        release = row.state is ActionState.RELEASING
        if release and is_stopped(container.settings, switch):
            row.next_attempt_at = tx.now + STOPPED_FOR
        elif not release and (
            (limits := _present_limits(container, tx, switch, row)) is None
            or limits
            or policy.mode not in ActionMode.ACTING
        ):
            # The next pass decides again on an action that is held.
            row.state = ActionState.HELD
            row.limits = list(limits or ())
            row.ordered_at = row.ordered_by = None
        else:
            row.attempt += 1
            at = (row.release_ordered_at if release else row.ordered_at) or tx.now
            order: Order | HangOrder
            if row.hang is None:
                order = order_of(container.settings, tx, row, at)
            else:
                order = hang_order_of(container.settings, tx, row, row.hang, at)
            return _Started(
                KINDS[row.kind], open_config(container.settings, policy), order, release
            )
    return None


def _present_limits(
    container: Container, tx: UnitOfWork, switch: ActionSwitch, row: MachineAction
) -> Sequence[Limit] | None:
    """Return the limits that hold an ordered action, which may have changed since the decision.

    A later attempt is held by limits that no user can override only, because an earlier attempt may
    have acted on the machine.

    Returns
    -------
    sequence of Limit, or None
        None if no incident blames the machine any more, and no user approved the action.
    """
    stopped = is_stopped(container.settings, switch)
    if stopped or row.hang is not None:
        return [Limit.STOPPED] * stopped
    if not is_one_node(row.host):
        return [Limit.NOT_ONE_NODE]
    only_hard = row.attempt > 0 or row.ordered_by is not None
    blamed = blamed_machines(tx, {row.host})
    if not blamed:
        return [] if only_hard else None
    limits = limits_of(blamed[0].case_for(row.kind), fleet_of(tx, stopped=stopped))
    return hard_limits(limits) if only_hard else limits


def _settle(container: Container, claim: Claim, came: ReceiverAnswer | DeliveryError) -> None:
    with container.uow() as tx:
        finish(tx, claim)
        _, row = _locked(tx, claim)
        if row is None or row.state not in ActionState.UNDERWAY:
            return
        release = row.state is ActionState.RELEASING
        if isinstance(came, DeliveryError):
            _failed(tx, row, came, release=release)
            return
        row.error_code = row.error = None
        row.answer = came.text
        if release:
            row.state = ActionState.RELEASED
            row.released_at = row.ended_at = tx.now
        else:
            row.state, row.done_at = ActionState.DONE, tx.now
        done = f"release of {row.host}" if release else row.command
        record(tx, INSTALLATION, Action.DONE, audit_name(row), detail=done)


def _failed(tx: UnitOfWork, row: MachineAction, error: DeliveryError, *, release: bool) -> None:
    row.error_code, row.error = error.code, error.sentence
    row.answer = None if error.answer is None else error.answer.text
    since = (row.release_ordered_at if release else row.ordered_at) or tx.now
    wait = None
    if not error.permanent:
        wait = wait_before(
            row.attempt + 1,
            random.random(),  # noqa: S311 - spreads load
            tx.now - since,
            error.retry_after_s,
        )
    if wait is not None:
        row.next_attempt_at = tx.now + wait
        return
    # After a failed release the machine is still out of service.
    row.state = ActionState.DONE if release else ActionState.FAILED
    row.ended_at = None if release else tx.now
    record(
        tx,
        INSTALLATION,
        Action.NOT_DONE,
        audit_name(row),
        detail=f"{error.code}: {error.sentence}",
    )


def _locked(tx: UnitOfWork, claim: Claim) -> tuple[ActionSwitch, MachineAction | None]:
    switch = lock_switch(tx)
    try:
        return switch, lock_action(tx, claim.subject_id)
    except NotFoundError:
        return switch, None


# Task runs of actions and of inventories are kept for this time, for inspection; actions are kept
# forever.
TASK_RUNS_KEPT: Final = timedelta(hours=1)

# States that may change without an order of a user.
_LIVE: Final = (*ActionState.UNDECIDED, *ActionState.OUT)


def sweep_actions(container: Container) -> int:
    """Run one pass over all projects; return the number of ordered and released actions."""
    queue_inventories(container)
    everywhere = container.everywhere()
    with everywhere.uow() as tx:
        policies = select(ActionPolicy.project_id).where(
            ActionPolicy.mode != ActionMode.OFF, is_there(ActionPolicy.project_id)
        )
        actions = select(MachineAction.project_id).where(
            MachineAction.state.in_(_LIVE), is_there(MachineAction.project_id)
        )
        projects = sorted(tx.session.execute(union(policies, actions)).scalars())
        tx.session.execute(
            delete(TaskRun).where(
                TaskRun.kind.in_((ACT_ON_MACHINE, READ_SCHEDULER)),
                TaskRun.state.in_(TaskState.OVER),
                TaskRun.finished_at < tx.now - TASK_RUNS_KEPT,
            )
        )
    begun = sum(decide(container.within(project_id)) for project_id in projects)
    if begun:
        _log.info("actions on machines", begun=begun)
    return begun
