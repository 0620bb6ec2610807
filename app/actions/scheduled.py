"""Use case: read from schedulers on which nodes the jobs of a project run.

Senders of sessions choose the host names in them freely, so these names alone never justify an
action on a machine. The scheduler is the second source: `ScheduledNode` holds what it says.

Protocol. The periodic pass of actions (`queue_inventories`) enqueues a task run for each policy
whose inventory is due. `read_scheduler` asks the scheduler in a worker, outside of any transaction
and within the deadline of an attempt, so that a scheduler that does not answer delays no pass. A
failed attempt changes no placement: the last inventory ages, and the next attempt comes later each
time.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

import structlog
from sqlalchemy import (
    ARRAY,
    ColumnElement,
    ScalarSelect,
    Text,
    any_,
    delete,
    exists,
    func,
    literal,
    select,
)
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import aliased

from app.actions.kinds.kind import ActionKind, AttemptTools, Placement, Scheduler
from app.actions.kinds.registry import KINDS
from app.actions.models import ActionMode, ActionPolicy, ScheduledNode, SchedulerInventory
from app.actions.policies import open_config
from app.errors import SecretKeyError
from app.hosts.models import HostReading
from app.incidents.deliver import guard
from app.platform.container import Claim, Container
from app.platform.database.projects import is_there
from app.platform.database.states import TaskState
from app.platform.database.task_runs import READ_SCHEDULER, TaskRun
from app.platform.database.tenant_scope import COUNTS_EVERYWHERE
from app.platform.database.unit_of_work import Reads, UnitOfWork
from app.platform.outbound import DeliveryError, Outbound
from app.platform.settings import Settings
from app.platform.tasks.runs import finish

# Time between two inventories of a policy; after each failure in a row it doubles, up to the limit.
INTERVAL: Final = timedelta(minutes=1)
MAX_DOUBLINGS: Final = 4
# Maximum of inventories that are read at a time in the installation. They share threads of workers
# with messages and actions, which a scheduler that does not answer must not delay.
MAX_AT_ONCE: Final = 4
# A node without a job of the project for this time no longer counts as the project's.
KNOWN_FOR: Final = timedelta(days=30)
# Maximum of stored placements of a policy; beyond it the oldest are deleted.
MAX_STORED: Final = 500_000
# A node counts in the share of nodes that may be out once it was seen over at least this time.
COUNTED_AFTER: Final = timedelta(days=1)
# A session belongs to a job that the scheduler saw on the node at most this time before or after
# the session was received: a job may end, or the policy be set, in between.
CONFIRMED_WITHIN: Final = timedelta(days=1)
# Inventories of two projects are read at different times. If the latest sightings of a node are
# closer together than this, its jobs may run at the same time.
SAME_TIME: Final = timedelta(minutes=5)

SCHEDULERS: Final[Mapping[str, Scheduler]] = {
    name: kind.scheduler for name, kind in KINDS.items() if kind.scheduler is not None
}

_log = structlog.get_logger(__name__)


def tools_of(settings: Settings, outbound: Outbound) -> AttemptTools:
    """Return the tools of an attempt with an outbound connection."""
    scontrol = None if settings.slurm_scontrol is None else str(settings.slurm_scontrol)
    return AttemptTools(outbound, scontrol)


def queue_inventories(container: Container) -> int:
    """Enqueue the due inventories of all projects; return their number.

    At most `MAX_AT_ONCE` are queued or running at a time, those that are due longest first.
    """
    with container.everywhere().uow() as tx:
        in_force = (
            ActionPolicy.mode != ActionMode.OFF,
            ActionPolicy.kind.in_(SCHEDULERS),
            is_there(ActionPolicy.project_id),
        )
        has_inventory = exists().where(
            SchedulerInventory.project_id == ActionPolicy.project_id,
            SchedulerInventory.kind == ActionPolicy.kind,
        )
        for project_id, kind in tx.session.execute(
            select(ActionPolicy.project_id, ActionPolicy.kind).where(*in_force, ~has_inventory)
        ).all():
            _make_inventory(tx, project_id, kind)
        is_open = (TaskRun.kind == READ_SCHEDULER, TaskRun.state.in_(TaskState.OPEN))
        running = tx.session.execute(
            select(func.count()).select_from(TaskRun).where(*is_open)
        ).scalar_one()
        due = tx.session.execute(
            select(SchedulerInventory)
            .join(
                ActionPolicy,
                (ActionPolicy.project_id == SchedulerInventory.project_id)
                & (ActionPolicy.kind == SchedulerInventory.kind),
            )
            .where(
                *in_force,
                SchedulerInventory.next_at <= tx.now,
                ~exists().where(TaskRun.subject_id == SchedulerInventory.id, *is_open),
            )
            .order_by(SchedulerInventory.next_at)
            .limit(max(0, MAX_AT_ONCE - running))
            .with_for_update(of=SchedulerInventory, skip_locked=True)
        ).scalars()
        count = 0
        for inventory in due:
            inventory.next_at = tx.now + INTERVAL
            tx.enqueue(READ_SCHEDULER, inventory.id, inventory.project_id)
            count += 1
    return count


def _make_inventory(tx: UnitOfWork, project_id: int, kind: str) -> None:
    tx.session.execute(
        insert(SchedulerInventory)
        .values(id=uuid.uuid4(), project_id=project_id, kind=kind, next_at=tx.now, failures=0)
        .on_conflict_do_nothing(index_elements=["project_id", "kind"])
    )


@dataclass(frozen=True, slots=True)
class _Started:
    kind: ActionKind
    config: Any
    changed_at: datetime  # when the policy was changed last


def read_scheduler(container: Container, claim: Claim) -> None:
    """Read the inventory of one policy's scheduler, and store it.

    Raises
    ------
    LostClaimError
        If another worker took it over meanwhile; nothing is stored.
    """
    read: Sequence[Placement] | DeliveryError
    started = None
    try:
        started = _start(container, claim)
        read = () if started is None else _placements(container.settings, started)
    except DeliveryError as error:
        read = error
    except SecretKeyError as error:
        read = DeliveryError(error.stable_code, error.message)
    with container.uow() as tx:
        finish(tx, claim)
        inventory = tx.session.get(SchedulerInventory, claim.subject_id, with_for_update=True)
        policy = None if inventory is None else _policy_of(tx, inventory.kind)
        if inventory is None or policy is None:
            return
        if isinstance(read, DeliveryError):
            _log.info("scheduler not read", kind=inventory.kind, code=read.code)
            answer = "" if read.answer is None else f" {read.answer.text}"
            inventory.error_code, inventory.error = read.code, f"{read.sentence}{answer}"
            inventory.next_at = tx.now + INTERVAL * 2 ** min(inventory.failures, MAX_DOUBLINGS)
            inventory.failures += 1
        elif started is not None and policy.changed_at == started.changed_at:
            write_placements(tx, inventory, read)


def _start(container: Container, claim: Claim) -> _Started | None:
    with container.reading() as tx:
        inventory = tx.session.get(SchedulerInventory, claim.subject_id)
        policy = None if inventory is None else _policy_of(tx, inventory.kind)
        if policy is None:
            return None
        config = open_config(container.settings, policy)
        return _Started(KINDS[policy.kind], config, policy.changed_at)


def _policy_of(tx: Reads, kind: str) -> ActionPolicy | None:
    return tx.session.execute(
        select(ActionPolicy).where(
            ActionPolicy.kind == kind,
            ActionPolicy.kind.in_(SCHEDULERS),
            ActionPolicy.mode != ActionMode.OFF,
        )
    ).scalar_one_or_none()


def _placements(settings: Settings, started: _Started) -> Sequence[Placement]:
    with Outbound(guard(settings), settings.alert_attempt_limit_s) as outbound:
        return SCHEDULERS[started.kind.name].placements(
            started.config, tools_of(settings, outbound)
        )


def write_placements(
    tx: UnitOfWork, inventory: SchedulerInventory, placements: Sequence[Placement]
) -> None:
    """Store an inventory of a scheduler, which has answered now."""
    if placements:
        added = insert(ScheduledNode)
        tx.session.execute(
            added.on_conflict_do_update(
                index_elements=["project_id", "node", "job"],
                set_={
                    "kind": added.excluded.kind,
                    "node_id": added.excluded.node_id,
                    "last_seen_at": added.excluded.last_seen_at,
                },
            ),
            [
                {
                    "node": placement.node,
                    "job": placement.job,
                    "kind": inventory.kind,
                    "node_id": placement.node_id,
                    "first_seen_at": tx.now,
                    "last_seen_at": tx.now,
                }
                for placement in placements
            ],
        )
    if inventory.answered_at is None or inventory.answered_at.hour != tx.now.hour:
        _prune(tx, inventory.kind)
    inventory.answered_at, inventory.failures = tx.now, 0
    inventory.next_at = tx.now + INTERVAL
    inventory.error_code = inventory.error = None


def _prune(tx: UnitOfWork, kind: str) -> None:
    """Delete placements that are too old to count, and the oldest beyond `MAX_STORED`."""
    of_kind = ScheduledNode.kind == kind
    last = (
        select(ScheduledNode.last_seen_at)
        .where(of_kind)
        .order_by(ScheduledNode.last_seen_at.desc())
        .offset(MAX_STORED)
        .limit(1)
    )
    until = max(tx.now - KNOWN_FOR, tx.session.execute(last).scalar() or tx.now - KNOWN_FOR)
    tx.session.execute(delete(ScheduledNode).where(of_kind, ScheduledNode.last_seen_at <= until))


@dataclass(frozen=True, slots=True)
class Sighting:
    """What schedulers say about a node."""

    # Kinds of actions whose schedulers ran a job of the project on it, with their last answers
    kinds: Mapping[str, datetime | None] = field(default_factory=dict)
    # Those of these kinds whose latest job on it was another project's
    lost: frozenset[str] = frozenset()
    # Whether a scheduler ran jobs on a node of this name for other projects only
    elsewhere: bool = False


UNSEEN: Final = Sighting()


def sightings(tx: Reads, nodes: Collection[str]) -> Mapping[str, Sighting]:
    """Return what schedulers say about each of these nodes; nodes without a sighting are absent."""
    wanted = any_(literal(list(nodes), ARRAY(Text)))
    since = tx.now - KNOWN_FOR
    own = (
        select(
            ScheduledNode.kind,
            ScheduledNode.node,
            ScheduledNode.node_id,
            func.max(ScheduledNode.last_seen_at).label("last"),
        )
        .where(
            ScheduledNode.project_id == tx.scope.project_id,
            ScheduledNode.node == wanted,
            ScheduledNode.last_seen_at > since,
        )
        .group_by(ScheduledNode.kind, ScheduledNode.node, ScheduledNode.node_id)
        .subquery()
    )
    other, same = aliased(ScheduledNode), aliased(ScheduledNode)
    # A job that policies of both projects select belongs to both.
    is_shared = exists().where(
        same.project_id == tx.scope.project_id, same.node == other.node, same.job == other.job
    )
    lost = exists().where(
        other.project_id != tx.scope.project_id,
        other.kind == own.c.kind,
        other.node_id == own.c.node_id,
        other.last_seen_at >= own.c.last - SAME_TIME,
        ~is_shared,
    )
    rows = tx.session.execute(
        select(own.c.node, own.c.kind, lost), execution_options=COUNTS_EVERYWHERE
    ).all()
    foreign = set(
        tx.session.execute(
            select(other.node)
            .where(
                other.project_id != tx.scope.project_id,
                other.node == wanted,
                other.last_seen_at > since,
            )
            .distinct(),
            execution_options=COUNTS_EVERYWHERE,
        ).scalars()
    )
    known = {node for node, _, _ in rows}
    answers = {
        inventory.kind: inventory.answered_at
        for inventory in tx.session.execute(select(SchedulerInventory)).scalars()
    }
    return {
        node: Sighting(
            kinds={kind: answers.get(kind) for name, kind, _ in rows if name == node},
            lost=frozenset(kind for name, kind, is_lost in rows if name == node and is_lost),
            elsewhere=node not in known,
        )
        for node in known | foreign
    }


def is_confirmed() -> ColumnElement[bool]:
    """Return the condition on `HostReading` that a scheduler saw the session's job on the host."""
    launched_as = func.jsonb_array_elements_text(HostReading.launched_as).column_valued("launched")
    return exists().where(
        ScheduledNode.node == HostReading.host,
        ScheduledNode.job == launched_as,
        HostReading.received_at > ScheduledNode.first_seen_at - CONFIRMED_WITHIN,
        HostReading.received_at < ScheduledNode.last_seen_at + CONFIRMED_WITHIN,
    )


def counted_nodes(tx: Reads) -> ScalarSelect[int]:
    """Return the number of nodes that schedulers saw over more than a day, the last time lately."""
    first, last = func.min(ScheduledNode.first_seen_at), func.max(ScheduledNode.last_seen_at)
    nodes = (
        select(ScheduledNode.node)
        .where(ScheduledNode.last_seen_at > tx.now - KNOWN_FOR)
        .group_by(ScheduledNode.node)
        .having(last >= first + COUNTED_AFTER)
        .subquery()
    )
    return select(func.count()).select_from(nodes).scalar_subquery()
