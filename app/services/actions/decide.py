"""Use case: decide what is done to the machines of a project that incidents blame.

Level, not edge: each pass looks at the incidents that are open and at what was done, and brings
the one in line with the other. No incident can be missed, whichever server died meanwhile.
"""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import structlog
from sqlalchemy import exists, select, update

from app.access.principals import INSTALLATION
from app.actions.kinds.registry import KINDS
from app.actions.limits import Limit, hard, limits_of
from app.actions.states import ActionMode, ActionState
from app.alerts.states import IncidentState
from app.db.models.alerts import AlertIncident
from app.db.models.hosts import ActionPolicy, MachineAction
from app.db.models.tasks import ACT_ON_MACHINE, TaskRun
from app.db.states import TaskState
from app.errors import SecretKeyError
from app.services.access.audit import Action, record
from app.services.actions.cases import blamed_machines, fleet_of
from app.services.actions.hangs import tell_hangs
from app.services.actions.policies import opened
from app.services.actions.store import called, is_stopped, lock_fleet, lock_switch, order, order_of
from app.services.hosts.outcomes import Outcome
from app.services.hosts.repairs import latest_repairs
from app.services.probes.read import is_cleared_since

if TYPE_CHECKING:
    from collections.abc import Sequence

    from app.actions.limits import Fleet
    from app.alerts.incidents import Incident
    from app.db.unit_of_work import UnitOfWork
    from app.services.actions.cases import Blamed
    from app.services.container import Container

# Of these a machine has no name that a command could take.
NAMELESS: Final = frozenset((Limit.NOT_ONE_NODE, Limit.GUESSED))

_log = structlog.get_logger(__name__)


def decide(container: Container) -> int:
    """Do one pass over a project; return how many actions were ordered or released.

    Nothing is done where another server is at it.
    """
    with container.uow() as tx:
        switch = lock_switch(tx, skip_locked=True)
        if switch is None or not lock_fleet(tx):
            return 0
        _withdraw(tx)
        begun = _release(tx)
        stopped = is_stopped(container.settings, switch)
        policies = list(
            tx.session.execute(
                select(ActionPolicy)
                .where(ActionPolicy.mode != ActionMode.OFF, ActionPolicy.kind.in_(KINDS))
                .order_by(ActionPolicy.kind)
            ).scalars()
        )
        if policies:
            begun += tell_hangs(tx, policies, stopped=stopped)
            fleet = fleet_of(tx, stopped=stopped)
            for blamed in blamed_machines(tx):
                limits = limits_of(blamed.case, fleet)
                ordered = [_consider(container, tx, one, blamed, limits) for one in policies]
                if any(ordered):
                    begun += sum(ordered)
                    fleet = _with_one_out(fleet, blamed.case.node)
        _pump(tx)
    return begun


def release(tx: UnitOfWork, row: MachineAction, by: str | None) -> None:
    """Let an action be taken back, in this transaction.

    Parameters
    ----------
    by : str or None
        The person; None where a repair helped.
    """
    row.state = ActionState.RELEASING
    row.attempt = 0
    row.release_ordered_at, row.released_by = tx.now, by
    row.next_attempt_at = tx.now
    row.error_code = row.error = row.answer = None
    tx.session.flush()
    tx.enqueue(ACT_ON_MACHINE, row.id)


def _with_one_out(fleet: Fleet, node: str) -> Fleet:
    return replace(
        fleet,
        out=fleet.out | {node},
        taken_at={**fleet.taken_at, node: fleet.now},
        out_everywhere=fleet.out_everywhere + (node not in fleet.out),
    )


def _consider(
    container: Container,
    tx: UnitOfWork,
    policy: ActionPolicy,
    blamed: Blamed,
    limits: Sequence[Limit],
) -> bool:
    """Write what a policy makes of a machine; return whether something is ordered."""
    row = _open_row(tx, policy.kind, blamed.case.node)
    if row is None:
        news = _news(tx, policy.kind, blamed)
        if news is None:
            return False
        row = _new(tx, policy.kind, blamed, news)
    elif row.state not in ActionState.UNDECIDED:
        return False
    state = _state(policy.mode, limits)
    found = {
        "gpus": list(blamed.gpus),
        "confidence": blamed.case.confidence,
        "sessions": blamed.case.sessions,
        "lost_each_hour": blamed.lost_each_hour,
        "limits": [str(limit) for limit in limits],
    }
    changed = {name: value for name, value in found.items() if getattr(row, name) != value}
    for name, value in changed.items():
        setattr(row, name, value)
    if changed or not row.command:
        try:
            config = opened(container.settings, policy)
        except SecretKeyError as error:
            _log.warning("policy of actions cannot be read", kind=policy.kind, error=error.message)
            return False
        at_first = order_of(container.settings, tx, row, tx.now)
        # People copy what they read: of a name that is no node's there is nothing to run.
        nameless = NAMELESS.intersection(limits)
        row.command = "" if nameless else KINDS[policy.kind].describe(config, at_first)
    if state is ActionState.WAITING:
        order(tx, row, None)
        record(
            tx,
            INSTALLATION,
            Action.ORDERED,
            called(row),
            detail=row.command,
        )
        return True
    if row.state is not state:
        row.state = state
    return False


def _state(mode: ActionMode, limits: Sequence[Limit]) -> ActionState:
    if mode is ActionMode.DRY_RUN:
        return ActionState.DRY_RUN
    if mode is ActionMode.ASK:
        return ActionState.HELD if hard(limits) else ActionState.ASKED
    return ActionState.HELD if limits else ActionState.WAITING


def _open_row(tx: UnitOfWork, kind: str, host: str) -> MachineAction | None:
    return tx.session.execute(
        select(MachineAction)
        .where(
            MachineAction.kind == kind,
            MachineAction.host == host,
            MachineAction.state.in_(ActionState.OPEN),
        )
        .with_for_update()
    ).scalar_one_or_none()


def _news(tx: UnitOfWork, kind: str, blamed: Blamed) -> Incident | None:
    """Return an incident that nothing was decided about yet, the oldest of these.

    What a person declined or put back, and what failed, was decided about all that were open then:
    only one that fires later begins it anew.
    """
    ids = [incident.id for incident in blamed.incidents]
    decided = tx.session.execute(
        select(MachineAction.incident_id, MachineAction.state, MachineAction.ended_at).where(
            MachineAction.kind == kind,
            MachineAction.host == blamed.case.node,
            MachineAction.incident_id.in_(ids),
        )
    ).all()
    known = {row.incident_id for row in decided}
    ended = [row.ended_at for row in decided if row.state is not ActionState.WITHDRAWN]
    since = max((at for at in ended if at is not None), default=None)
    for incident in blamed.incidents:
        later = since is None or (incident.fired_at is not None and incident.fired_at > since)
        if incident.id not in known and later:
            return incident
    return None


def _new(tx: UnitOfWork, kind: str, blamed: Blamed, incident: Incident) -> MachineAction:
    row = MachineAction(
        id=uuid.uuid4(),
        kind=kind,
        incident_id=incident.id,
        host=blamed.case.node,
        job=blamed.jobs[incident.id],
        cause=incident.found,
        gpus=list(blamed.gpus),
        confidence=blamed.case.confidence,
        sessions=blamed.case.sessions,
        lost_each_hour=blamed.lost_each_hour,
        state=ActionState.HELD,
        limits=[],
        command="",
        attempt=0,
        next_attempt_at=tx.now,
    )
    tx.session.add(row)
    return row


def _withdraw(tx: UnitOfWork) -> None:
    """End what was not done yet and whose incident is over, or whose policy is off."""
    going_on = exists().where(
        AlertIncident.id == MachineAction.incident_id, AlertIncident.state.in_(IncidentState.TOLD)
    )
    in_force = exists().where(
        ActionPolicy.kind == MachineAction.kind, ActionPolicy.mode != ActionMode.OFF
    )
    tx.session.execute(
        update(MachineAction)
        .where(MachineAction.state.in_(ActionState.UNDECIDED), ~going_on | ~in_force)
        .values(state=ActionState.WITHDRAWN, ended_at=tx.now)
        .execution_options(synchronize_session=False)
    )


def _release(tx: UnitOfWork) -> int:
    """Take back what was done to machines that a repair made well."""
    rows = list(
        tx.session.execute(
            select(MachineAction).where(
                MachineAction.state == ActionState.DONE,
                MachineAction.hang.is_(None),
                # Of one that could not be taken back a person sees the reason.
                MachineAction.error_code.is_(None),
            )
        ).scalars()
    )
    repairs = latest_repairs(tx, {row.host for row in rows}) if rows else {}
    begun = 0
    for row in rows:
        repair = repairs.get(row.host)
        if repair is None or row.done_at is None or repair.at <= row.done_at:
            continue
        # On a node that takes no work no session says so.
        if repair.judged.outcome is Outcome.HELPED:
            why = "a repair helped"
        elif is_cleared_since(tx, row.host, repair.at):
            why = "a probe cleared it after a repair"
        else:
            continue
        release(tx, row, None)
        record(tx, INSTALLATION, Action.RELEASED, called(row), detail=f"{why}: {repair.what}")
        begun += 1
    return begun


def _pump(tx: UnitOfWork) -> None:
    """Start what is due and has no task run any more."""
    underway = select(TaskRun.id).where(
        TaskRun.kind == ACT_ON_MACHINE,
        TaskRun.subject_id == MachineAction.id,
        TaskRun.state.in_(TaskState.OPEN),
    )
    due = tx.session.execute(
        select(MachineAction.id).where(
            MachineAction.state.in_(ActionState.UNDERWAY),
            MachineAction.next_attempt_at <= tx.now,
            ~underway.exists(),
        )
    ).scalars()
    for action_id in list(due):
        tx.enqueue(ACT_ON_MACHINE, action_id)
