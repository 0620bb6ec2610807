"""What is under way over all projects: tasks, deliveries and incidents, as metrics count it.

Each statement reads an index of what is open, or of one day: no history makes a scrape slower.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from sqlalchemy import func, select

from app.alerts.states import DeliveryState, IncidentState
from app.db.models.alerts import AlertDelivery, AlertIncident
from app.db.models.tasks import TaskRun
from app.db.states import TaskState

if TYPE_CHECKING:
    from collections.abc import Mapping

    from app.db.unit_of_work import Reads
    from app.services.container import TaskKind

FAILURES_OVER: Final = timedelta(days=1)
OPEN_TASKS: Final = tuple(state for state in TaskState if state in TaskState.OPEN)
OPEN_DELIVERIES: Final = tuple(state for state in DeliveryState if state in DeliveryState.UNDERWAY)
OPEN_INCIDENTS: Final = tuple(
    state for state in IncidentState if state is not IncidentState.RESOLVED
)


@dataclass(frozen=True, slots=True)
class OpenWork:
    """Counts; what there is none of is there with 0."""

    # by kind, queue and state
    tasks: Mapping[tuple[str, str, TaskState], int]
    # those that are not over
    deliveries: Mapping[DeliveryState, int]
    # given up, of those made within a day
    failed_deliveries: int
    # those that are not resolved
    incidents: Mapping[IncidentState, int]


def open_work(tx: Reads, kinds: Mapping[str, TaskKind]) -> OpenWork:
    """Return what is under way.

    Raises
    ------
    SQLAlchemyError
        If the database does not answer.
    """
    tasks = tx.session.execute(
        select(TaskRun.kind, TaskRun.state, func.count())
        .where(TaskRun.state.in_(OPEN_TASKS))
        .group_by(TaskRun.kind, TaskRun.state)
    ).all()
    deliveries = tx.session.execute(
        select(AlertDelivery.state, func.count())
        .where(AlertDelivery.state.in_(OPEN_DELIVERIES))
        .group_by(AlertDelivery.state)
    ).all()
    failed = tx.session.execute(
        select(func.count()).where(
            AlertDelivery.created_at >= tx.now - FAILURES_OVER,
            AlertDelivery.state == DeliveryState.FAILED,
        )
    ).scalar_one()
    incidents = tx.session.execute(
        select(AlertIncident.state, func.count())
        .where(AlertIncident.state.in_(OPEN_INCIDENTS))
        .group_by(AlertIncident.state)
    ).all()
    none = {(kind.name, kind.queue, state): 0 for kind in kinds.values() for state in OPEN_TASKS}
    return OpenWork(
        tasks=none
        | {
            # A kind of another version has no queue here.
            (row[0], kinds[row[0]].queue, row[1]): row[2]
            for row in tasks
            if row[0] in kinds
        },
        deliveries=dict.fromkeys(OPEN_DELIVERIES, 0) | {row[0]: row[1] for row in deliveries},
        failed_deliveries=failed,
        incidents=dict.fromkeys(OPEN_INCIDENTS, 0) | {row[0]: row[1] for row in incidents},
    )
