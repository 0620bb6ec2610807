"""Use case: one attempt of a delivery.

Protocol. A delivery goes ``waiting → sending → delivered | failed``, back to ``waiting`` after a
fault that passes, or ends ``superseded``. Every race shows as "rows updated != 1":

start (`app.services.alerts.flush.pump`)
    WHERE state = waiting → sending, and a task run, in one transaction: the claim with its lease is
    that task run's (`app.services.tasks.task_runs`). A killed worker's lease runs out and the task
    is run again; three times, then the delivery waits, and is never given up for that.
fix
    Before the first attempt, under the group's lock: what the message says is computed from the
    present and stored, unless there is nothing to say any more: superseded. Every later attempt
    sends the same bytes under the same id.
send
    Outside of any transaction, within `alert_attempt_limit_s`, which is below the lease: who lost
    his claim is not sending any more.
settle
    `finish` of the task run (rows != 1: another worker has it, nothing is stored), then under the
    group's lock WHERE state = sending → what came out.

At least once: between the receiver's answer and the end of `settle` a worker may die, and the
message is sent again, with its id. In order: see `pump`.
"""

from __future__ import annotations

import ipaddress
import random
import uuid
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, cast

import structlog
from sqlalchemy import CursorResult, select, update

from app.alerts.addresses import AddressGuard
from app.alerts.channels.apprise import APPRISE, is_installed
from app.alerts.channels.digest import digest_note
from app.alerts.channels.kind import ChannelKind, Parcel
from app.alerts.channels.registry import KINDS
from app.alerts.delivery import DeliveryError, ReceiverAnswer
from app.alerts.message import MESSAGE, Message
from app.alerts.outbound import Outbound
from app.alerts.retry import wait_before
from app.alerts.states import DeliveryState
from app.analysis.report.heatmaps import mean_heatmap
from app.db.models.alerts import AlertChannel, AlertDelivery, AlertGroup
from app.db.models.sessions import StoredReport
from app.db.reports import read_heatmaps
from app.errors import SecretKeyError
from app.services.alerts.deliveries.digests import groups_of, riders_of
from app.services.alerts.deliveries.fix import PendingActions, fix_all
from app.services.alerts.deliveries.flush import pause_after, pump
from app.services.alerts.secrets import unseal
from app.services.alerts.store import (
    lock_group,
    timing,
)
from app.services.container import Claim
from app.services.tasks.task_runs import finish

if TYPE_CHECKING:
    from app.db.unit_of_work import UnitOfWork
    from app.services.container import Container
    from app.settings import Settings

DISABLED: Final = DeliveryError("channel.disabled", "The channel is disabled.", permanent=True)
NO_APPRISE: Final = (
    "Channels of Apprise need the extra `apprise`, and PACELINE_ALERT_APPRISE=true: they may send "
    "to private addresses."
)

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class DeliveryTarget:
    """A channel as an attempt needs it."""

    id: uuid.UUID
    name: str
    kind: str
    config: dict[str, Any]  # what may be shown of it
    secrets: bytes  # the rest, encrypted


@dataclass(frozen=True, slots=True)
class _Started:
    message: Message
    target: DeliveryTarget


def deliver(container: Container, claim: Claim, pending_actions: PendingActions) -> None:
    """Try a delivery once and store what came out.

    Parameters
    ----------
    pending_actions : callable
        Reads the actions on machines that await a person's decision, which a message offers.

    Raises
    ------
    LostClaimError
        If another worker took it over meanwhile; nothing is stored.
    """
    channel_id, started = _start(container, claim, pending_actions)
    if started is None:
        with container.uow() as tx:
            finish(tx, claim)
    else:
        try:
            answer = attempt(container, started.target, started.message)
        except DeliveryError as error:
            _log.info("delivery not taken", code=error.code, error=error.sentence)
            _settle_failure(container, claim, error)
        else:
            _settle_success(container, claim, answer)
    if channel_id is not None:
        pump(container, channel_id)


def attempt(container: Container, target: DeliveryTarget, message: Message) -> ReceiverAnswer:
    """Send a message to a channel, now, within the time of one attempt.

    Raises
    ------
    DeliveryError
        If it was not taken.
    """
    kind, config = opened(container, target)
    picture = _picture(container, message) if kind.pictures else None
    limit_s = container.settings.alert_attempt_limit_s
    with Outbound(guard(container.settings), limit_s) as outbound:
        if message.digest and kind.tell is not None and not kind.whole_digests:
            return kind.tell(config, digest_note(message), outbound)
        return kind.send(config, Parcel(message, picture, outbound))


def opened(container: Container, target: DeliveryTarget) -> tuple[ChannelKind, Any]:
    """Return a channel's kind and its whole configuration.

    Raises
    ------
    DeliveryError
        If it cannot be used at present.
    """
    kind = KINDS[target.kind]
    if kind is APPRISE and not apprise_is_usable(container.settings):
        # The operator's to allow again, as with the keys below.
        raise DeliveryError("apprise.off", NO_APPRISE)
    try:
        config = kind.config.validate_python(
            target.config | unseal(container.settings, target.secrets)
        )
    except SecretKeyError as error:
        # The operator's to repair, upon which it can still go out.
        raise DeliveryError(error.stable_code, error.message) from error
    return kind, config


def apprise_is_usable(settings: Settings) -> bool:
    """Return whether the operator allows Apprise and has installed it."""
    return settings.alert_apprise and is_installed()


def guard(settings: Settings) -> AddressGuard:
    """Return the guard with the networks that the operator allows."""
    return AddressGuard(
        tuple(ipaddress.ip_network(text) for text in settings.alert_allowed_networks)
    )


def _start(
    container: Container, claim: Claim, pending_actions: PendingActions
) -> tuple[uuid.UUID | None, _Started | None]:
    """Return the channel, and what to send, if anything is to be sent."""
    with container.uow() as tx:
        groups = {id_: lock_group(tx, id_) for id_ in groups_of(tx, claim.subject_id)}
        delivery = tx.session.get(AlertDelivery, claim.subject_id)
        if delivery is None or groups.get(delivery.group_id) is None:
            return None, None
        channel = tx.session.get_one(AlertChannel, delivery.channel_id)
        if delivery.state is not DeliveryState.SENDING:
            return channel.id, None
        if not channel.enabled:
            _end(tx, delivery, DeliveryState.FAILED, DISABLED)
            return channel.id, None
        if delivery.message is None and not fix_all(
            container, tx, groups, delivery, channel, pending_actions
        ):
            _end(tx, delivery, DeliveryState.SUPERSEDED)
            return channel.id, None
        delivery.attempt += 1
        message = MESSAGE.validate_python(delivery.message)
        target = target_of(channel)
    return target.id, _Started(message, target)


def target_of(channel: AlertChannel) -> DeliveryTarget:
    """Return what an attempt needs of a channel."""
    return DeliveryTarget(channel.id, channel.name, channel.kind, channel.config, channel.secrets)


def _picture(container: Container, message: Message) -> bytes | None:
    """Return the heatmap of the leading alert's session, where there is one."""
    facts = message.main.facts
    if facts is None or facts.slowdown is None or message.test or not message.firing:
        return None
    from app.alerts.picture import heatmap_png  # noqa: PLC0415 - most channels show no pictures

    with container.reading() as tx:
        report = tx.session.get(StoredReport, facts.session)
        if report is None or report.heatmap_blob is None:
            return None
        heatmaps = read_heatmaps(tx, report.heatmap_blob)
    return heatmap_png(
        mean_heatmap(heatmaps), f"{message.job}, session {facts.number}: slowdown of workers"
    )


def _settle_success(container: Container, claim: Claim, answer: ReceiverAnswer) -> None:
    with container.uow() as tx:
        delivery, channel = _locked(tx, claim)
        if delivery is None or channel is None:
            return
        _end(tx, delivery, DeliveryState.DELIVERED, answer=answer)
        channel.failures = 0
        channel.hold_until = None
        channel.last_success_at = tx.now
        channel.last_error = None


def _settle_failure(container: Container, claim: Claim, error: DeliveryError) -> None:
    with container.uow() as tx:
        delivery, channel = _locked(tx, claim)
        if delivery is None or channel is None:
            return
        channel.failures += 1
        channel.last_failure_at = tx.now
        channel.last_error = error.sentence
        if error.disable:
            disable(tx, channel, error.sentence)
        wait = None
        if not error.permanent:
            wait = wait_before(
                delivery.attempt + 1,
                random.random(),  # noqa: S311 - spreads load
                tx.now - delivery.created_at,
                error.retry_after_s,
            )
            pause = max(pause_after(channel.failures), timedelta(seconds=error.retry_after_s or 0))
            channel.hold_until = tx.now + pause if pause else None
        if wait is None:
            groups = groups_of(tx, delivery.id)
            _end(tx, delivery, DeliveryState.FAILED, error)
            for group_id in groups:
                _come_back(container, tx, group_id)
        elif delivery.digest_id is None and _overtaken(tx, delivery):
            _end(tx, delivery, DeliveryState.SUPERSEDED, error)
        else:
            _end(tx, delivery, DeliveryState.WAITING, error)
            delivery.next_attempt_at = tx.now + wait
            delivery.finished_at = None


def _locked(tx: UnitOfWork, claim: Claim) -> tuple[AlertDelivery | None, AlertChannel | None]:
    """Finish the task run, and return delivery and channel, locked; None where they are gone."""
    finish(tx, claim)
    row = tx.session.execute(
        select(AlertDelivery.group_id, AlertDelivery.channel_id).where(
            AlertDelivery.id == claim.subject_id
        )
    ).one_or_none()
    locked = {id_ for id_ in groups_of(tx, claim.subject_id) if lock_group(tx, id_) is not None}
    if row is None or row.group_id not in locked:
        return None, None
    channel = tx.session.execute(
        select(AlertChannel)
        .where(AlertChannel.id == row.channel_id)
        .with_for_update(key_share=True)
    ).scalar_one_or_none()
    delivery = tx.session.execute(
        select(AlertDelivery)
        .where(AlertDelivery.id == claim.subject_id, AlertDelivery.state == DeliveryState.SENDING)
        .with_for_update()
    ).scalar_one_or_none()
    return delivery, channel


def _end(
    tx: UnitOfWork,
    delivery: AlertDelivery,
    state: DeliveryState,
    error: DeliveryError | None = None,
    *,
    answer: ReceiverAnswer | None = None,
) -> None:
    answer = error.answer if error else answer
    delivery.state = state
    delivery.finished_at = tx.now
    delivery.error_code = error.code if error else None
    delivery.error = error.sentence if error else None
    delivery.answer_status = answer.status if answer else None
    delivery.answer = answer.text if answer else None
    if state in DeliveryState.OVER:
        for rider in riders_of(tx, delivery):
            _end(tx, rider, state, error, answer=answer)


def _overtaken(tx: UnitOfWork, delivery: AlertDelivery) -> bool:
    newer = select(AlertDelivery.id).where(
        AlertDelivery.channel_id == delivery.channel_id,
        AlertDelivery.group_id == delivery.group_id,
        AlertDelivery.number > delivery.number,
        AlertDelivery.state == DeliveryState.WAITING,
    )
    return tx.session.execute(newer.limit(1)).scalar() is not None


def _come_back(container: Container, tx: UnitOfWork, group_id: uuid.UUID) -> None:
    """Schedule another flush of the group: a channel did not get its message."""
    again = tx.now + timing(container.settings).repeat_interval
    tx.session.execute(
        update(AlertGroup)
        .where(AlertGroup.id == group_id, AlertGroup.flush_at.is_(None))
        .values(flush_at=again)
    )


def disable(tx: UnitOfWork, channel: AlertChannel, reason: str) -> int:
    """Disable a channel that is locked, give its deliveries up, and return how many those were."""
    channel.enabled = False
    channel.disabled_reason = reason
    given_up = tx.session.execute(
        update(AlertDelivery)
        .where(AlertDelivery.channel_id == channel.id, AlertDelivery.state == DeliveryState.WAITING)
        .values(
            state=DeliveryState.FAILED,
            finished_at=tx.now,
            error_code=DISABLED.code,
            error=DISABLED.sentence,
        )
    )
    return cast("CursorResult[Any]", given_up).rowcount
