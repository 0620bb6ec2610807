"""Use case: decide on actions on the machines of a project that open incidents blame.

Each pass compares the open incidents with the present actions, and orders or withdraws actions
until both agree. It depends on the present state only, so that no incident is missed if a server
dies.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

import structlog
from sqlalchemy import ARRAY, Text, any_, exists, func, literal, or_, select, update

from app.access.audit import Action, record
from app.actions.hangs import report_hangs
from app.actions.kinds.kind import TIME_BETWEEN_MACHINES, Case, Fleet, Limit, limits_of
from app.actions.kinds.registry import KINDS as REGISTRY_KINDS
from app.actions.models import ActionMode, ActionPolicy, ActionState, MachineAction
from app.actions.policies import open_config
from app.actions.store import (
    audit_name,
    is_stopped,
    lock_fleet,
    order,
    order_of,
    state_under,
    try_lock_switch,
)
from app.analysis.diagnosis.causes.registry import KINDS, blames_machine
from app.errors import SecretKeyError
from app.hosts.models import HostReading
from app.hosts.probes import is_cleared_since
from app.hosts.repairs import Outcome, latest_repairs
from app.incidents.held_machines import machine_of
from app.incidents.lifecycle import Incident
from app.incidents.models.tables import AlertGroup, AlertIncident, IncidentState
from app.incidents.store import incident_of
from app.jobs.models import Job
from app.platform.container import Container
from app.platform.database.states import SessionState, TaskState
from app.platform.database.task_runs import ACT_ON_MACHINE, TaskRun
from app.platform.database.tenant_scope import COUNTS_EVERYWHERE
from app.platform.database.unit_of_work import Reads, UnitOfWork
from app.platform.identity import INSTALLATION
from app.sessions.models.tables import Session

# A node without a session for this time no longer counts as a known node.
KNOWN_FOR: Final = timedelta(days=30)
# Sessions of at least this age no longer count against a machine.
BLAMED_FOR: Final = timedelta(days=7)
# Data of machines count as late if a session waits longer than this for its analysis.
BEHIND_AFTER: Final = timedelta(minutes=10)
# Maximum of incidents and of sessions that a pass reads, the oldest incidents first.
MOST_INCIDENTS: Final = 1000
MOST_SESSIONS: Final = 20_000

_MACHINES: Final = [name for name, kind in KINDS.items() if kind.blames_machine]


@dataclass(frozen=True, slots=True)
class Blamed:
    """A blamed machine, its incidents, and its cause with the highest confidence."""

    case: Case
    incidents: tuple[Incident, ...]  # incidents that blame the machine, the oldest first
    jobs: Mapping[uuid.UUID, str]  # names of jobs by incident
    gpus: tuple[str, ...]  # GPUs at fault: UUIDs if known, else their names on the host
    lost_each_hour: float | None


def fleet_of(tx: Reads, *, stopped: bool) -> Fleet:
    """Return the state of a project's machines, which the limits read."""
    # Reports of hangs take no machine out of service.
    of_machines = MachineAction.hang.is_(None)
    is_out = (MachineAction.state.in_(ActionState.OUT), of_machines)
    taken = (
        select(MachineAction.host, func.max(MachineAction.ordered_at))
        .where(MachineAction.ordered_at > tx.now - TIME_BETWEEN_MACHINES, of_machines)
        .group_by(MachineAction.host)
    )
    nodes_seen = (HostReading.received_at > tx.now - KNOWN_FOR, HostReading.guessed.is_(False))
    nodes = select(func.count(HostReading.host.distinct())).where(*nodes_seen)
    waiting = exists().where(
        Session.state.in_((SessionState.QUEUED, SessionState.ANALYZING)),
        Session.received_at < tx.now - BEHIND_AFTER,
    )
    everywhere = select(
        select(func.count(MachineAction.host.distinct())).where(*is_out).scalar_subquery(),
        nodes.scalar_subquery(),
    )
    out_everywhere, nodes_everywhere = tx.session.execute(
        everywhere, execution_options=COUNTS_EVERYWHERE
    ).one()
    return Fleet(
        now=tx.now,
        nodes=tx.session.execute(nodes).scalar_one(),
        out=frozenset(
            tx.session.execute(select(MachineAction.host).where(*is_out).distinct()).scalars()
        ),
        taken_at={host: at for host, at in tx.session.execute(taken) if at is not None},
        stopped=stopped,
        behind=tx.session.execute(select(Session.id).where(waiting).limit(1)).first() is not None,
        out_everywhere=out_everywhere,
        nodes_everywhere=nodes_everywhere,
    )


def blamed_machines(tx: Reads, only: Collection[str] | None = None) -> list[Blamed]:
    """Return the machines that open incidents blame, sorted by their first incident.

    Parameters
    ----------
    only : collection of str, optional
        Names of the machines to return; by default all.
    """
    by_host: dict[str, list[tuple[Incident, str]]] = {}
    document = AlertIncident.document
    rows = tx.session.execute(
        select(AlertIncident, Job.name)
        .join(AlertGroup, AlertGroup.id == AlertIncident.group_id)
        .join(Job, Job.id == AlertGroup.job_id)
        .where(
            AlertIncident.state.in_(IncidentState.TOLD),
            document["where"].astext != "",
            or_(
                document["cause"].astext.in_(_MACHINES),
                document["notice"]["cause"].astext.in_(_MACHINES),
            ),
        )
        .order_by(AlertIncident.fired_at, AlertIncident.id)
        .limit(MOST_INCIDENTS)
    )
    for row, job in rows:
        incident = incident_of(row)
        host = machine_of(incident)
        if host and (only is None or host in only):
            by_host.setdefault(host, []).append((incident, job))
    hosts = list(by_host)
    put_back = _put_back_times(tx, hosts)
    # Sessions before a repair, or before a user put the host back into service, do not count
    # against the host.
    since = dict.fromkeys(hosts, tx.now - BLAMED_FOR)
    for host, repair in latest_repairs(tx, hosts).items():
        since[host] = max(since[host], repair.at)
    for host, at in put_back.items():
        since[host] = max(since[host], at)
    sessions = _sessions(tx, since)
    recent = frozenset(
        tx.session.execute(
            select(HostReading.host)
            .where(
                HostReading.host == _any_of(hosts),
                HostReading.guessed.is_(False),
                HostReading.received_at > tx.now - KNOWN_FOR,
            )
            .distinct()
        ).scalars()
    )
    return [
        _blamed(host, blaming, host in recent, sessions.get(host, 0), put_back.get(host))
        for host, blaming in by_host.items()
    ]


def _blamed(
    host: str,
    blaming: Sequence[tuple[Incident, str]],
    known: bool,  # noqa: FBT001 - always passed with the others
    sessions: int,
    put_back_at: datetime | None,
) -> Blamed:
    incidents = tuple(incident for incident, _ in blaming)
    of_facts = [
        (incident.facts, cause)
        for incident in incidents
        if incident.facts is not None
        for cause in incident.facts.causes
        if host in cause.where and blames_machine(cause.cause)
    ]
    # The cause with the highest confidence counts, with the session that found it.
    best = max(of_facts, key=lambda pair: pair[1].confidence or 0.0, default=None)
    facts, cause = best or (None, None)
    gpus = () if cause is None else (gpu.uuid or gpu.gpu for gpu in cause.gpus if gpu.host == host)
    return Blamed(
        case=Case(
            node=host,
            guessed=any(
                incident.facts is not None and incident.facts.has_guessed_name(host)
                for incident in incidents
            ),
            known=known,
            in_hand=any(i.state is not IncidentState.FIRING for i in incidents),
            measured_at=None if facts is None else facts.received_at,
            confidence=None if cause is None else cause.confidence,
            sessions=sessions,
            put_back_at=put_back_at,
        ),
        incidents=incidents,
        jobs={incident.id: job for incident, job in blaming},
        gpus=tuple(dict.fromkeys(gpu for gpu in gpus if gpu)),
        lost_each_hour=None if facts is None else facts.lost_each_hour,
    )


def _any_of(hosts: Collection[str]) -> object:
    return any_(literal(list(hosts), ARRAY(Text)))


def _sessions(tx: Reads, since: Mapping[str, datetime]) -> Mapping[str, int]:
    """Return for each host the number of sessions whose verdict blames its recorded name."""
    if not since:
        return {}
    rows = tx.session.execute(
        select(HostReading.host, HostReading.received_at)
        .where(
            HostReading.host == _any_of(since),
            HostReading.cause.is_not(None),
            HostReading.guessed.is_(False),
            HostReading.received_at > tx.now - BLAMED_FOR,
        )
        .order_by(HostReading.received_at.desc())
        .limit(MOST_SESSIONS)
    )
    counts: dict[str, int] = {}
    for host, received_at in rows:
        if received_at > since[host]:
            counts[host] = counts.get(host, 0) + 1
    return counts


def _put_back_times(tx: Reads, hosts: Collection[str]) -> Mapping[str, datetime]:
    """Return for each host the time at which a user last put it back into service."""
    rows = tx.session.execute(
        select(MachineAction.host, func.max(MachineAction.release_ordered_at))
        .where(
            MachineAction.host == _any_of(hosts),
            MachineAction.released_by.is_not(None),
            MachineAction.release_ordered_at.is_not(None),
        )
        .group_by(MachineAction.host)
    )
    return {host: at for host, at in rows if at is not None}


# Limits that refuse a name that is no node name: no command may contain such a name.
NOT_A_NODE_NAME: Final = frozenset((Limit.NOT_ONE_NODE, Limit.GUESSED))

_log = structlog.get_logger(__name__)


def decide(container: Container) -> int:
    """Run one pass over a project; return the number of ordered and released actions.

    Does nothing if another server holds the locks.
    """
    with container.uow() as tx:
        switch = try_lock_switch(tx)
        if switch is None or not lock_fleet(tx):
            return 0
        _withdraw(tx)
        begun = _release(tx)
        stopped = is_stopped(container.settings, switch)
        policies = list(
            tx.session.execute(
                select(ActionPolicy)
                .where(ActionPolicy.mode != ActionMode.OFF, ActionPolicy.kind.in_(REGISTRY_KINDS))
                .order_by(ActionPolicy.kind)
            ).scalars()
        )
        if policies:
            begun += report_hangs(tx, policies, stopped=stopped)
            fleet = fleet_of(tx, stopped=stopped)
            for blamed in blamed_machines(tx):
                limits = limits_of(blamed.case, fleet)
                ordered = [_apply_policy(container, tx, each, blamed, limits) for each in policies]
                if any(ordered):
                    begun += sum(ordered)
                    fleet = replace(
                        fleet,
                        out=fleet.out | {blamed.case.node},
                        taken_at={**fleet.taken_at, blamed.case.node: fleet.now},
                        out_everywhere=fleet.out_everywhere + (blamed.case.node not in fleet.out),
                    )
        _start_due(tx)
    return begun


def release(tx: UnitOfWork, row: MachineAction, by: str | None) -> None:
    """Order the release of an action, in this transaction.

    Parameters
    ----------
    by : str or None
        The person; None if a repair helped.
    """
    row.state = ActionState.RELEASING
    row.attempt = 0
    row.release_ordered_at, row.released_by = tx.now, by
    row.next_attempt_at = tx.now
    row.error_code = row.error = row.answer = None
    tx.session.flush()
    tx.enqueue(ACT_ON_MACHINE, row.id)


def _apply_policy(
    container: Container,
    tx: UnitOfWork,
    policy: ActionPolicy,
    blamed: Blamed,
    limits: Sequence[Limit],
) -> bool:
    """Store a policy's decision on a machine; return whether an action was ordered."""
    row = tx.session.execute(
        select(MachineAction)
        .where(
            MachineAction.kind == policy.kind,
            MachineAction.host == blamed.case.node,
            MachineAction.state.in_(ActionState.OPEN),
        )
        .with_for_update()
    ).scalar_one_or_none()
    if row is None:
        news = _undecided_incident(tx, policy.kind, blamed)
        if news is None:
            return False
        row = MachineAction(
            id=uuid.uuid4(),
            kind=policy.kind,
            incident_id=news.id,
            host=blamed.case.node,
            job=blamed.jobs[news.id],
            cause=news.diagnosed_cause,
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
    elif row.state not in ActionState.UNDECIDED:
        return False
    state = state_under(policy.mode, limits)
    evidence = {
        "gpus": list(blamed.gpus),
        "confidence": blamed.case.confidence,
        "sessions": blamed.case.sessions,
        "lost_each_hour": blamed.lost_each_hour,
        "limits": [str(limit) for limit in limits],
    }
    changed = {name: value for name, value in evidence.items() if getattr(row, name) != value}
    for name, value in changed.items():
        setattr(row, name, value)
    if changed or not row.command:
        try:
            config = open_config(container.settings, policy)
        except SecretKeyError as error:
            _log.warning("policy of actions cannot be read", kind=policy.kind, error=error.message)
            return False
        at_first = order_of(container.settings, tx, row, tx.now)
        # Users copy commands, so none is shown for a name that is not the name of one node.
        nameless = NOT_A_NODE_NAME.intersection(limits)
        row.command = "" if nameless else REGISTRY_KINDS[policy.kind].describe(config, at_first)
    if state is ActionState.WAITING:
        order(tx, row, None)
        record(
            tx,
            INSTALLATION,
            Action.ORDERED,
            audit_name(row),
            detail=row.command,
        )
        return True
    if row.state is not state:
        row.state = state
    return False


def _undecided_incident(tx: UnitOfWork, kind: str, blamed: Blamed) -> Incident | None:
    """Return the oldest incident without a decision on the machine, or None.

    An action that was declined, put back or failed is the decision on all incidents that were open
    then; only incidents that fire later are undecided.
    """
    ids = [incident.id for incident in blamed.incidents]
    decided = tx.session.execute(
        select(MachineAction.incident_id, MachineAction.state, MachineAction.ended_at).where(
            MachineAction.kind == kind,
            MachineAction.host == blamed.case.node,
            MachineAction.incident_id.in_(ids),
        )
    ).all()
    with_action = {row.incident_id for row in decided}
    ended = [row.ended_at for row in decided if row.state is not ActionState.WITHDRAWN]
    since = max((at for at in ended if at is not None), default=None)
    for incident in blamed.incidents:
        later = since is None or (incident.fired_at is not None and incident.fired_at > since)
        if incident.id not in with_action and later:
            return incident
    return None


def _withdraw(tx: UnitOfWork) -> None:
    """Withdraw actions that were not done yet if their incident ended or their policy is off."""
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
    """Release the actions on repaired machines; return the number of released actions."""
    rows = list(
        tx.session.execute(
            select(MachineAction).where(
                MachineAction.state == ActionState.DONE,
                MachineAction.hang.is_(None),
                # A failed release needs a user, who sees the error.
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
        # No session runs on a drained node, so a probe proves the repair as well.
        if repair.judged.outcome is Outcome.HELPED:
            why = "a repair helped"
        elif is_cleared_since(tx, row.host, repair.at):
            why = "a probe cleared it after a repair"
        else:
            continue
        release(tx, row, None)
        record(tx, INSTALLATION, Action.RELEASED, audit_name(row), detail=f"{why}: {repair.what}")
        begun += 1
    return begun


def _start_due(tx: UnitOfWork) -> None:
    """Enqueue a task run for each due action that has none."""
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
