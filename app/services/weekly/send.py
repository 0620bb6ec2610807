"""Use case: make the summaries of a week that are due, and start them.

Protocol. A summary is one row for each rule, channel and week: the unique key of these three makes
it once, whoever sweeps, however often and after whatever was killed. It goes ``waiting → sending →
delivered | failed``, each step one conditional UPDATE, and back to ``waiting`` after a fault that
passes (`app.services.weekly.deliver`). Made and started are facts of one transaction each, so that
a death between them leaves a row that the next pass starts.
"""

from __future__ import annotations

import uuid
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

from sqlalchemy import select, update
from sqlalchemy.dialects.postgresql import insert

from app.alerts.channels.registry import KINDS
from app.alerts.rules import Rule, Weekly
from app.alerts.states import DeliveryState
from app.db.models.alerts import AlertChannel, AlertRule
from app.db.models.fleet import WeeklySummary
from app.db.models.tasks import SEND_SUMMARY
from app.services.access.projects import is_there
from app.services.alerts.store import rule_of
from app.services.weekly.compose import WEEK

if TYPE_CHECKING:
    from app.db.unit_of_work import Reads
    from app.services.container import Container

# Started in one pass of a project.
BATCH: Final = 100


def send_due(container: Container) -> int:
    """Make and start the summaries that are due, of all projects; return how many were started."""
    with container.everywhere().reading() as tx:
        weekly = AlertRule.document["condition"]["kind"].astext == "weekly"
        ruled = set(
            tx.session.execute(
                select(AlertRule.project_id).where(weekly, is_there(AlertRule.project_id))
            ).scalars()
        )
        waiting = set(
            tx.session.execute(
                select(WeeklySummary.project_id).where(
                    WeeklySummary.state == DeliveryState.WAITING,
                    WeeklySummary.next_attempt_at <= tx.now,
                    is_there(WeeklySummary.project_id),
                )
            ).scalars()
        )
    for project_id in sorted(ruled):
        _make(container.within(project_id))
    return sum(_start(container.within(project_id)) for project_id in sorted(ruled | waiting))


def audience(tx: Reads, rule: Rule) -> list[AlertChannel]:
    """Return the channels that a rule's summaries go to: those that can show a note."""
    channels = tx.session.execute(
        select(AlertChannel).where(AlertChannel.enabled).order_by(AlertChannel.name)
    ).scalars()
    return [
        channel
        for channel in channels
        if KINDS[channel.kind].tell is not None
        and (channel.id in rule.channels if rule.channels else channel.audience == rule.audience)
    ]


def monday_of(moment: datetime) -> datetime:
    """Return the beginning of a moment's week."""
    return moment - timedelta(days=moment.weekday())


def _make(container: Container) -> None:
    """Make what is due; of before a rule or a channel was added nothing is told."""
    with container.uow() as tx:
        for row in tx.session.execute(select(AlertRule).order_by(AlertRule.name)).scalars():
            rule = rule_of(row)
            if not rule.enabled or not isinstance(rule.condition, Weekly):
                continue
            due = rule.condition.due(tx.now)
            if row.created_at > due:
                continue
            for channel in audience(tx, rule):
                if channel.created_at > due:
                    continue
                tx.session.execute(
                    insert(WeeklySummary)
                    .values(
                        id=uuid.uuid4(),
                        rule_id=rule.id,
                        channel_id=channel.id,
                        week=monday_of(due).date(),
                        since=due - WEEK,
                        until=due,
                        state=DeliveryState.WAITING,
                        attempt=0,
                        next_attempt_at=tx.now,
                    )
                    .on_conflict_do_nothing(index_elements=["rule_id", "channel_id", "week"])
                )


def _start(container: Container) -> int:
    with container.uow() as tx:
        due = (
            select(WeeklySummary.id)
            .where(
                WeeklySummary.state == DeliveryState.WAITING,
                WeeklySummary.next_attempt_at <= tx.now,
            )
            .order_by(WeeklySummary.next_attempt_at)
            .limit(BATCH)
            .with_for_update(skip_locked=True)
        )
        ids = list(tx.session.execute(due).scalars())
        started = list(
            tx.session.execute(
                update(WeeklySummary)
                .where(WeeklySummary.id.in_(ids), WeeklySummary.state == DeliveryState.WAITING)
                .values(state=DeliveryState.SENDING)
                .returning(WeeklySummary.id)
            ).scalars()
        )
        for summary_id in started:
            tx.enqueue(SEND_SUMMARY, summary_id)
    return len(started)
