"""Use case: the periodic pass that runs due evaluations, flushes and deliveries.

Runs in the thread of the sweeper. Several sweepers may run at once: a pass locks the rows that it
works on, and skips those that another one has locked.
"""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, cast

import structlog
from sqlalchemy import CursorResult, delete, exists, select

from app.incidents.batching import flush_group, pump, release_orphans
from app.incidents.evaluate import look_at_group
from app.incidents.machines import look_at_lead
from app.incidents.models.tables import (
    AlertChannel,
    AlertDelivery,
    AlertGroup,
    AlertOnHost,
    DeliveryState,
)
from app.incidents.secrets import check_secrets
from app.platform.container import Container
from app.platform.database.projects import is_there
from app.platform.database.states import TaskState
from app.platform.database.task_runs import DELIVER_ALERT, TaskRun

# Number of groups in a batch, and the time limit of a pass, because the sweeper has other tasks.
BATCH: Final = 100
PASS_LIMIT_S: Final = 10.0

# Task runs of deliveries are kept for this time, for inspection.
TASK_RUNS_KEPT: Final = timedelta(hours=1)
PRUNED: Final = 5_000

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class AlertSweep:
    """The counts of one pass."""

    # looked, flushed: number of evaluated jobs, and of flushed groups
    looked: int = 0
    flushed: int = 0
    # started, pruned: number of started deliveries, and of deleted rows
    started: int = 0
    pruned: int = 0
    # Number of channels whose secrets became readable or unreadable
    keys: int = 0


def sweep_alerts(container: Container) -> AlertSweep:
    """Run one pass; return its counts."""
    everywhere = container.everywhere()
    until_s = time.monotonic() + PASS_LIMIT_S
    looked = flushed = started = 0
    for of, incident_id in _changed_leads(everywhere):
        look_at_lead(container.within(of), incident_id)
    while time.monotonic() < until_s:
        due = _due_groups(everywhere, AlertGroup.look_at)
        looked += sum(look_at_group(container.within(of), group_id) for of, group_id in due)
        if len(due) < BATCH:
            break
    with everywhere.uow() as tx:
        release_orphans(tx)
    while time.monotonic() < until_s:
        due = _due_groups(everywhere, AlertGroup.flush_at)
        for of, group_id in due:
            flush_group(container.within(of), group_id)
        flushed += len(due)
        channels = _due_channels(everywhere)
        started += sum(pump(container.within(of), channel_id) for of, channel_id in channels)
        if len(due) < BATCH:
            break
    result = AlertSweep(looked, flushed, started, _prune(everywhere), check_secrets(everywhere))
    if result != AlertSweep():
        _log.info(
            "alerts swept",
            looked=result.looked,
            flushed=result.flushed,
            started=result.started,
            pruned=result.pruned,
            keys=result.keys,
        )
    return result


def _due_groups(container: Container, column: Any) -> list[tuple[int, uuid.UUID]]:  # noqa: ANN401 - a column
    with container.uow() as tx:
        rows = tx.session.execute(
            select(AlertGroup.project_id, AlertGroup.id)
            .where(column <= tx.now, is_there(AlertGroup.project_id))
            .order_by(column)
            .limit(BATCH)
        )
        return [(row.project_id, row.id) for row in rows]


def _changed_leads(container: Container) -> list[tuple[int, uuid.UUID]]:
    with container.uow() as tx:
        rows = tx.session.execute(
            select(AlertOnHost.project_id, AlertOnHost.incident_id)
            .where(AlertOnHost.stirred_at.is_not(None), is_there(AlertOnHost.project_id))
            .order_by(AlertOnHost.stirred_at)
            .limit(BATCH)
        )
        return [(row.project_id, row.incident_id) for row in rows]


def _due_channels(container: Container) -> list[tuple[int, uuid.UUID]]:
    with container.uow() as tx:
        waiting = exists().where(
            AlertDelivery.channel_id == AlertChannel.id,
            AlertDelivery.state == DeliveryState.WAITING,
            AlertDelivery.next_attempt_at <= tx.now,
        )
        rows = tx.session.execute(
            select(AlertChannel.project_id, AlertChannel.id).where(
                AlertChannel.enabled, waiting, is_there(AlertChannel.project_id)
            )
        )
        return [(row.project_id, row.id) for row in rows]


def _prune(container: Container) -> int:
    """Delete old task runs of deliveries; retention deletes the deliveries."""
    with container.uow() as tx:
        runs = (
            select(TaskRun.id)
            .where(
                TaskRun.kind == DELIVER_ALERT,
                TaskRun.state.in_(TaskState.OVER),
                TaskRun.finished_at < tx.now - TASK_RUNS_KEPT,
            )
            .limit(PRUNED)
        )
        gone = tx.session.execute(delete(TaskRun).where(TaskRun.id.in_(runs)))
        return cast("CursorResult[Any]", gone).rowcount
