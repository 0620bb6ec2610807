"""Use case: one attempt to send a week's summary, and what a rule would send now.

At least once to the receiver, under the same id and with the same words on every try: between its
answer and the end of `_settle` a worker may die.
"""

from __future__ import annotations

import random
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import structlog
from sqlalchemy import update

from app.alerts.channels.note import NOTE, Note
from app.alerts.delivery import DeliveryError
from app.alerts.retry import wait_before
from app.alerts.states import DeliveryState
from app.db.models.alerts import AlertChannel
from app.db.models.fleet import WeeklySummary
from app.services.alerts.deliveries.deliver import (
    DISABLED,
    DeliveryTarget,
    disable,
    target_of,
)
from app.services.alerts.deliveries.fix import base_url
from app.services.alerts.deliveries.notes import attempt_note
from app.services.fleet_report.read import fleet_report
from app.services.tasks.task_runs import finish
from app.services.weekly.compose import WEEK, compose

if TYPE_CHECKING:
    from app.db.unit_of_work import Reads, UnitOfWork
    from app.services.container import Claim, Container
    from app.settings import Settings

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Started:
    note: Note
    target: DeliveryTarget


def preview_note(tx: Reads, settings: Settings) -> Note:
    """Return what a summary of the last seven days would say."""
    return compose(
        fleet_report(tx, tx.now - WEEK, tx.now),
        note_id=uuid.UUID(int=0),
        at=tx.now,
        base_url=base_url(settings, tx),
        receiver="",
    )


def deliver_summary(container: Container, claim: Claim) -> None:
    """Try to send a summary once and store what came out.

    Raises
    ------
    LostClaimError
        If another worker took it over meanwhile; nothing is stored.
    """
    started = _start(container, claim)
    if started is None:
        with container.uow() as tx:
            finish(tx, claim)
        return
    try:
        attempt_note(container, started.target, started.note)
    except DeliveryError as error:
        _log.info("summary not taken", code=error.code, error=error.sentence)
        _settle(container, claim, error)
    else:
        _settle(container, claim, None)


def _start(container: Container, claim: Claim) -> _Started | None:
    """Return what to send; None where there is nothing to send any more."""
    with container.uow() as tx:
        row = tx.session.get(WeeklySummary, claim.subject_id, with_for_update=True)
        if row is None or row.state is not DeliveryState.SENDING:
            return None
        channel = tx.session.get_one(AlertChannel, row.channel_id)
        if not channel.enabled:
            _end(tx, row.id, DeliveryState.FAILED, DISABLED)
            return None
        if row.note is None:
            note = compose(
                fleet_report(tx, row.since, row.until),
                note_id=row.id,
                at=tx.now,
                base_url=base_url(container.settings, tx),
                receiver=channel.name,
            )
            row.note = NOTE.dump_python(note, mode="json")
        row.attempt += 1
        return _Started(NOTE.validate_python(row.note), target_of(channel))


def _settle(container: Container, claim: Claim, error: DeliveryError | None) -> None:
    with container.uow() as tx:
        finish(tx, claim)
        row = tx.session.get(WeeklySummary, claim.subject_id)
        if row is None:
            return
        channel = tx.session.get_one(
            AlertChannel, row.channel_id, with_for_update={"key_share": True}
        )
        if error is None:
            channel.last_success_at = tx.now
            _end(tx, row.id, DeliveryState.DELIVERED)
            return
        channel.last_failure_at = tx.now
        channel.last_error = error.sentence
        if error.disable:
            disable(tx, channel, error.sentence)
        wait = (
            None
            if error.permanent
            else wait_before(
                row.attempt + 1,
                random.random(),  # noqa: S311 - spreads load
                tx.now - row.created_at,
                error.retry_after_s,
            )
        )
        if wait is None:
            _end(tx, row.id, DeliveryState.FAILED, error)
        else:
            _end(tx, row.id, DeliveryState.WAITING, error, next_attempt_at=tx.now + wait)


def _end(
    tx: UnitOfWork,
    summary_id: uuid.UUID,
    state: DeliveryState,
    error: DeliveryError | None = None,
    **more: Any,  # noqa: ANN401 - columns
) -> None:
    """End an attempt, where it is still under way."""
    tx.session.execute(
        update(WeeklySummary)
        .where(WeeklySummary.id == summary_id, WeeklySummary.state == DeliveryState.SENDING)
        .values(
            state=state,
            finished_at=None if state is DeliveryState.WAITING else tx.now,
            error_code=error.code if error else None,
            error=error.sentence if error else None,
            **more,
        )
    )
