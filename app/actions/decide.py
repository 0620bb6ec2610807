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
from sqlalchemy import ARRAY, Select, Text, any_, exists, func, literal, or_, select, update
from sqlalchemy.orm import aliased

from app.access.audit import Action, record
from app.actions.hangs import report_hangs
from app.actions.kinds.kind import (
    MAX_DATA_AGE,
    TIME_BETWEEN_MACHINES,
    Case,
    Fleet,
    Limit,
    limits_of,
)
from app.actions.kinds.registry import KINDS as REGISTRY_KINDS
from app.actions.models import ActionMode, ActionPolicy, ActionState, MachineAction
from app.actions.policies import open_config
from app.actions.scheduled import (
    KNOWN_FOR,
    SCHEDULERS,
    UNSEEN,
    Sighting,
    counted_nodes,
    is_confirmed,
    sightings,
)
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
from app.incidents.conditions import SESSIONS_CLEAR
from app.incidents.held_machines import machine_of
from app.incidents.lifecycle import Incident
from app.incidents.models.facts import Facts, facts_of
from app.incidents.models.tables import AlertGroup, AlertIncident, IncidentState
from app.incidents.store import incident_of
from app.jobs.models import Job
from app.platform.container import Container
from app.platform.database.states import SessionState, TaskState
from app.platform.database.task_runs import ACT_ON_MACHINE, TaskRun
from app.platform.database.tenant_scope import COUNTS_EVERYWHERE
from app.platform.database.unit_of_work import Reads, UnitOfWork
from app.platform.identity import INSTALLATION
from app.sessions.models.tables import Session, StoredVerdict

# Sessions of at least this age no longer count against a machine.
BLAMED_FOR: Final = timedelta(days=7)
# Data of machines count as late if a session waits longer than this for its analysis.
BEHIND_AFTER: Final = timedelta(minutes=10)
# Maximum of incidents and of sessions that a pass reads, the oldest incidents first.
MOST_INCIDENTS: Final = 1000
MOST_SESSIONS: Final = 20_000
# Maximum of ended incidents that a pass checks for forged sessions, the latest first.
MOST_ENDED: Final = 100

# States of incidents that a user is working on.
IN_HAND: Final = (IncidentState.ACKNOWLEDGED, IncidentState.SILENCED)

_MACHINES: Final = [name for name, kind in KINDS.items() if kind.blames_machine]


@dataclass(frozen=True, slots=True)
class Blamed:
    """A blamed machine, its incidents, and its cause with the highest confidence."""

    case: Case  # evidence without what depends on the kind of action; see `case_for`
    sighting: Sighting
    incidents: tuple[Incident, ...]  # incidents that blame the machine, the oldest first
    jobs: Mapping[uuid.UUID, str]  # names of jobs by incident
    gpus: tuple[str, ...]  # GPUs at fault: UUIDs if known, else their names on the host
    lost_each_hour: float | None

    @property
    def counted_sessions(self) -> int:
        """Return the number of sessions to show: the confirmed ones, if there are any."""
        return self.case.confirmed or self.case.sessions

    def case_for(self, kind: str) -> Case:
        """Return the evidence for a kind of action.

        A kind with a scheduler acts only on nodes on which this scheduler ran the project's jobs. A
        kind without one needs a session that names the node, and no scheduler that ran jobs only of
        other projects there.
        """
        seen = self.sighting
        kinds = set(seen.kinds)
        known = self.case.known and not seen.elsewhere
        if kind in SCHEDULERS:
            kinds &= {kind}
            known = bool(kinds)
        answers = [at for each, at in seen.kinds.items() if each in kinds and at is not None]
        return replace(
            self.case,
            known=known,
            is_other_project=bool(kinds & seen.lost),
            scheduler_at=max(answers, default=None),
        )


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
    nodes = counted_nodes(tx)
    waiting = exists().where(
        Session.state.in_((SessionState.QUEUED, SessionState.ANALYZING)),
        Session.received_at < tx.now - BEHIND_AFTER,
    )
    everywhere = select(
        select(func.count(MachineAction.host.distinct())).where(*is_out).scalar_subquery(),
        nodes,
    )
    out_everywhere, nodes_everywhere = tx.session.execute(
        everywhere, execution_options=COUNTS_EVERYWHERE
    ).one()
    return Fleet(
        now=tx.now,
        nodes=tx.session.execute(select(nodes)).scalar_one(),
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
    rows = [
        *tx.session.execute(
            _about_machines()
            .where(AlertIncident.state.in_(IncidentState.TOLD))
            .order_by(AlertIncident.fired_at, AlertIncident.id)
            .limit(MOST_INCIDENTS)
        ),
        *_ended_without_proof(tx),
    ]
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
    sessions, confirmed = _sessions(tx, since)
    seen = sightings(tx, hosts)
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
        _blamed(
            Case(
                node=host,
                guessed=False,
                known=host in recent,
                in_hand=False,
                measured_at=None,
                confidence=None,
                sessions=len(sessions.get(host, ())),
                put_back_at=put_back.get(host),
            ),
            blaming,
            confirmed.get(host, ()),
            _proof(tx, blaming, confirmed.get(host, ())),
            seen.get(host, UNSEEN),
        )
        for host, blaming in by_host.items()
    ]


def _blamed(
    case: Case,
    blaming: Sequence[tuple[Incident, str]],
    confirmed: Sequence[uuid.UUID],
    proof: Facts | None,
    sighting: Sighting,
) -> Blamed:
    """Return a blamed machine.

    Parameters
    ----------
    confirmed : sequence of UUID
        Sessions that blame the machine and whose job a scheduler saw on it.
    proof : Facts or None
        Facts of such a session if no incident has them.
    """
    host = case.node
    incidents = tuple(incident for incident, _ in blaming)
    of_facts = [
        (facts, cause)
        for facts in [*(incident.facts for incident in incidents), proof]
        if facts is not None
        for cause in facts.causes
        if host in cause.where and blames_machine(cause.cause)
    ]
    # The cause with the highest confidence counts, with the session that found it. Confirmed
    # sessions come first, so that a forged one does not raise the confidence.
    best = max(
        of_facts,
        key=lambda pair: (pair[0].session in confirmed, pair[1].confidence or 0.0),
        default=None,
    )
    facts, cause = best or (None, None)
    gpus = () if cause is None else (gpu.uuid or gpu.gpu for gpu in cause.gpus if gpu.host == host)
    return Blamed(
        case=replace(
            case,
            guessed=any(
                incident.facts is not None and incident.facts.has_guessed_name(host)
                for incident in incidents
            ),
            in_hand=any(incident.state in IN_HAND for incident in incidents),
            measured_at=None if facts is None else facts.received_at,
            confidence=None if cause is None else cause.confidence,
            confirmed=len(confirmed) if facts is not None and facts.session in confirmed else 0,
        ),
        sighting=sighting,
        incidents=incidents,
        jobs={incident.id: job for incident, job in blaming},
        gpus=tuple(dict.fromkeys(gpu for gpu in gpus if gpu)),
        lost_each_hour=None if facts is None else facts.lost_each_hour,
    )


def _proof(
    tx: Reads, blaming: Sequence[tuple[Incident, str]], confirmed: Sequence[uuid.UUID]
) -> Facts | None:
    """Return the facts of the latest confirmed session if no incident has those of any.

    An incident keeps the facts of its latest session, which may be forged.
    """
    sessions = {incident.facts.session for incident, _ in blaming if incident.facts is not None}
    if not confirmed or not sessions.isdisjoint(confirmed):
        return None
    row = tx.session.execute(
        select(
            StoredVerdict.document, Session.attempt, Session.number, Session.received_at, Job.name
        )
        .join(Session, Session.id == StoredVerdict.session_id)
        .join(Job, Job.id == Session.job_id)
        .where(StoredVerdict.session_id == confirmed[0])
    ).one_or_none()
    if row is None:
        return None
    verdict, attempt, number, received_at, job = row
    return facts_of(
        verdict,
        session=confirmed[0],
        job=job,
        attempt=attempt,
        number=number,
        received_at=received_at,
        labels={},
    )


def _about_machines() -> Select[AlertIncident, str]:
    """Return the query of incidents that blame a machine, with the names of their jobs."""
    document = AlertIncident.document
    return (
        select(AlertIncident, Job.name)
        .join(AlertGroup, AlertGroup.id == AlertIncident.group_id)
        .join(Job, Job.id == AlertGroup.job_id)
        .where(
            document["where"].astext != "",
            or_(
                document["cause"].astext.in_(_MACHINES),
                document["notice"]["cause"].astext.in_(_MACHINES),
            ),
        )
    )


def _ended_without_proof(tx: Reads) -> list[tuple[AlertIncident, str]]:
    """Return incidents that healthy sessions ended although the scheduler confirms none of these.

    The session that blamed the machine last is confirmed, and no later one of the job is: the
    healthy sessions may be forged, so the incident still counts as long as its evidence is fresh.
    """
    last = aliased(HostReading)
    ended = tx.session.execute(
        _about_machines()
        .where(
            AlertIncident.state == IncidentState.RESOLVED,
            AlertIncident.fired_at > tx.now - BLAMED_FOR,
            AlertIncident.resolved_at > tx.now - MAX_DATA_AGE,
            AlertIncident.document["why_resolved"].astext == SESSIONS_CLEAR,
        )
        .order_by(AlertIncident.resolved_at.desc())
        .limit(MOST_ENDED)
    ).all()
    kept = []
    for row, job in ended:
        incident = incident_of(row)
        if incident.facts is None:
            continue
        session = incident.facts.session
        blamed = select(HostReading.host).where(
            HostReading.session_id == session,
            HostReading.host == machine_of(incident),
            is_confirmed(),
        )
        later = (
            select(HostReading.host)
            .join(last, last.job_id == HostReading.job_id)
            .where(
                last.session_id == session,
                HostReading.received_at > last.received_at,
                is_confirmed(),
            )
        )
        is_blamed = tx.session.execute(blamed.limit(1)).first() is not None
        if is_blamed and tx.session.execute(later.limit(1)).first() is None:
            kept.append((row, job))
    return kept


def _any_of(hosts: Collection[str]) -> object:
    return any_(literal(list(hosts), ARRAY(Text)))


def _sessions(
    tx: Reads, since: Mapping[str, datetime]
) -> tuple[Mapping[str, Sequence[uuid.UUID]], Mapping[str, Sequence[uuid.UUID]]]:
    """Return for each host the sessions whose verdict blames its recorded name.

    Returns
    -------
    tuple of mappings of str to sequence of UUID
        All such sessions, and those whose job a scheduler saw on the host; the latest first.
    """
    sessions: dict[str, list[uuid.UUID]] = {}
    confirmed: dict[str, list[uuid.UUID]] = {}
    if not since:
        return sessions, confirmed
    rows = tx.session.execute(
        select(HostReading.host, HostReading.received_at, HostReading.session_id, is_confirmed())
        .where(
            HostReading.host == _any_of(since),
            HostReading.cause.is_not(None),
            HostReading.guessed.is_(False),
            HostReading.received_at > tx.now - BLAMED_FOR,
        )
        .order_by(HostReading.received_at.desc())
        .limit(MOST_SESSIONS)
    )
    for host, received_at, session, is_so in rows:
        if received_at > since[host]:
            sessions.setdefault(host, []).append(session)
            if is_so:
                confirmed.setdefault(host, []).append(session)
    return sessions, confirmed


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
                ordered = [
                    _apply_policy(
                        container, tx, each, blamed, limits_of(blamed.case_for(each.kind), fleet)
                    )
                    for each in policies
                ]
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
            sessions=blamed.counted_sessions,
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
        "sessions": blamed.counted_sessions,
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
    ) | MachineAction.incident_id.in_([row.id for row, _ in _ended_without_proof(tx)])
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
    hosts = {row.host for row in rows}
    # Where schedulers see the project's jobs, only sessions that they confirm prove a repair.
    seen = {host for host, each in sightings(tx, hosts).items() if each.kinds} if rows else set()
    repairs = {
        **latest_repairs(tx, hosts - seen),
        **latest_repairs(tx, seen, proven_by=is_confirmed()),
    }
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
