"""Use case: one attempt to deliver a message or a note to a channel.

Protocol. A delivery goes ``waiting → sending → delivered | failed``, back to ``waiting`` after a
temporary failure, or ends ``superseded``. Every race shows as "rows updated != 1":

start (`app.incidents.batching.pump`)
    WHERE state = waiting → sending, and a task run, in one transaction: the claim and its lease
    belong to that task run (`app.platform.tasks.runs`). When a worker is killed its lease expires
    and the task runs again, up to three times; then the delivery waits, and is never given up for
    that reason.
fix
    Before the first attempt, under the group's lock, the message is made from the present state
    and stored. Where nothing is left to report the delivery is superseded. Each later attempt sends
    the same bytes under the same id.
send
    Outside of any transaction, within `alert_attempt_limit_s`, which is shorter than the lease: a
    worker that lost its claim is no longer sending.
settle
    `finish` of the task run (rows != 1: another worker has it, nothing is stored), then under the
    group's lock WHERE state = sending → the outcome.

At least once: when a worker dies between the receiver's answer and the end of `settle`, the message
is sent again under its id. For the order of messages see `pump`.
"""

from __future__ import annotations

import ipaddress
import random
import uuid
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final, TypeAlias, cast

import structlog
from sqlalchemy import CursorResult, select, update

from app.access.projects import pages_at, project_name
from app.analysis.report.charts import mean_heatmap
from app.errors import SecretKeyError
from app.incidents.batching import digest, groups_of, pause_after, pump, riders_of
from app.incidents.channels.apprise import APPRISE, is_installed
from app.incidents.channels.digest import digest_note
from app.incidents.channels.kind import ChannelKind, Note, OutgoingMessage
from app.incidents.channels.registry import KINDS
from app.incidents.grouping import CONTENT, Content, content_for, is_due
from app.incidents.held_machines import machine_of
from app.incidents.message import MESSAGE, Message, PendingAction, make_message
from app.incidents.models.tables import AlertChannel, AlertDelivery, AlertGroup, DeliveryState
from app.incidents.routing import audience_of, group_snapshot, with_notified
from app.incidents.secrets import unseal
from app.incidents.store import lock_group, rule_names, timing
from app.platform.container import Claim, Container
from app.platform.database.unit_of_work import Reads, UnitOfWork
from app.platform.outbound import AddressGuard, DeliveryError, Outbound, ReceiverAnswer, wait_before
from app.platform.settings import Settings
from app.platform.tasks.runs import finish
from app.sessions.models.reports import read_heatmaps
from app.sessions.models.tables import StoredReport

# Returns the actions that wait for approval on the given machines, grouped by machine.
PendingActions: TypeAlias = Callable[[Reads, Collection[str]], Mapping[str, list[PendingAction]]]


def base_url(settings: Settings, tx: Reads) -> str:
    """Return the address of the project's pages, with a slash at its end."""
    project = f"{pages_at(project_name(tx))}/"
    if settings.external_url is not None:
        return settings.external_url.rstrip("/") + project
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    return f"http://{host}:{settings.port}{project}"


def fix_messages(  # noqa: PLR0913, PLR0917 - a delivery and its surroundings
    container: Container,
    tx: UnitOfWork,
    groups: Mapping[uuid.UUID, AlertGroup | None],
    delivery: AlertDelivery,
    channel: AlertChannel,
    pending_actions: PendingActions,
) -> bool:
    """Store the messages of a delivery and of its riders; return False if nothing is to be sent."""
    messages = []
    carrier: Message | None = None
    for row in (delivery, *riders_of(tx, delivery)):
        group = groups.get(row.group_id)
        if group is not None and _fix_message(container, tx, group, row, channel, pending_actions):
            row.attempt = max(row.attempt, 0 if row is delivery else 1)
            messages.append(MESSAGE.validate_python(row.message))
        elif row is not delivery:
            row.state, row.finished_at = DeliveryState.SUPERSEDED, tx.now
        if row is delivery and messages:
            carrier = messages[0]
    if not messages:
        return False
    if carrier is None:
        # The carrier's own group has no news any more: the digest contains only the riders'
        # messages.
        carrier = replace(messages[0], id=delivery.id, number=delivery.number)
        delivery.content = CONTENT.dump_python(
            _content_now(tx, groups[delivery.group_id], delivery, channel), mode="json"
        )
    if delivery.digest_id is not None:
        delivery.message = MESSAGE.dump_python(digest(carrier, messages), mode="json")
    return True


def _content_now(
    tx: UnitOfWork, group: AlertGroup | None, delivery: AlertDelivery, channel: AlertChannel
) -> Content:
    """Return the present content of a group's message to a channel."""
    if group is None:
        return Content()
    now = group_snapshot(tx, group)
    heard = audience_of(tx, channel, group.id, without=delivery.id)
    return content_for(
        with_notified(tx, now.incidents_for(channel), heard), heard, now.led_elsewhere
    )


def _fix_message(  # noqa: PLR0913, PLR0917 - a delivery and its surroundings
    container: Container,
    tx: UnitOfWork,
    group: AlertGroup,
    delivery: AlertDelivery,
    channel: AlertChannel,
    pending_actions: PendingActions,
) -> bool:
    """Store content and message of one delivery; return False if nothing is to be sent."""
    snapshot = group_snapshot(tx, group)
    heard = audience_of(tx, channel, group.id, without=delivery.id)
    meant = with_notified(tx, snapshot.incidents_for(channel), heard)
    content = content_for(meant, heard, snapshot.led_elsewhere)
    intervals = timing(container.settings)
    if not is_due(content, meant, heard, intervals, tx.now):
        return False
    delivered = [sent.content for sent in heard.sent if sent.delivered and sent.counts]
    message = make_message(
        id=delivery.id,
        number=delivery.number,
        at=tx.now,
        job=snapshot.job,
        receiver=channel.name,
        content=content,
        sent_before={*delivered[-1].present, *delivered[-1].resolved} if delivered else set(),
        incidents={incident.id: incident for incident in meant},
        inside=snapshot.inside,
        rule_names=rule_names(list(snapshot.rules.values())),
        base_url=base_url(container.settings, tx),
        repeat=intervals.repeat_interval,
        asks=pending_actions(tx, {machine_of(incident) for incident in meant}),
        channel=channel.id,
        project=project_name(tx),
    )
    delivery.content = CONTENT.dump_python(content, mode="json")
    delivery.message = MESSAGE.dump_python(message, mode="json")
    return True


DISABLED: Final = DeliveryError("channel.disabled", "The channel is disabled.", permanent=True)
NO_APPRISE: Final = (
    "Channels of Apprise need the extra `apprise`, and PACELINE_ALERT_APPRISE=true: they may send "
    "to private addresses."
)

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class DeliveryTarget:
    """The fields of a channel that an attempt needs."""

    id: uuid.UUID
    name: str
    kind: str
    config: dict[str, Any]  # configuration without its secret fields
    secrets: bytes  # encrypted secret fields


@dataclass(frozen=True, slots=True)
class _Started:
    message: Message
    target: DeliveryTarget


def deliver(container: Container, claim: Claim, pending_actions: PendingActions) -> None:
    """Attempt a delivery once and store the outcome.

    Parameters
    ----------
    pending_actions : callable
        Reads the actions on machines that wait for approval, for buttons in messages.

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
    """Send a message to a channel within the time of one attempt.

    Raises
    ------
    DeliveryError
        If the receiver did not accept it.
    """
    kind, config = open_channel(container, target)
    picture = _picture(container, message) if kind.pictures else None
    limit_s = container.settings.alert_attempt_limit_s
    with Outbound(guard(container.settings), limit_s) as outbound:
        if message.digest and kind.tell is not None and not kind.whole_digests:
            return kind.tell(config, digest_note(message), outbound)
        return kind.send(config, OutgoingMessage(message, picture, outbound))


def open_channel(container: Container, target: DeliveryTarget) -> tuple[ChannelKind, Any]:
    """Return a channel's kind and its configuration, with the secrets decrypted.

    Raises
    ------
    DeliveryError
        If it cannot be used at present.
    """
    kind = KINDS[target.kind]
    if kind is APPRISE and not apprise_is_usable(container.settings):
        # A temporary failure, because the operator may allow Apprise again.
        raise DeliveryError("apprise.off", NO_APPRISE)
    try:
        config = kind.config.validate_python(
            target.config | unseal(container.settings, target.secrets)
        )
    except SecretKeyError as error:
        # A temporary failure, because the message can be sent once the operator restores the key.
        raise DeliveryError(error.stable_code, error.message) from error
    return kind, config


def apprise_is_usable(settings: Settings) -> bool:
    """Return whether Apprise is allowed by the operator and installed."""
    return settings.alert_apprise and is_installed()


def guard(settings: Settings) -> AddressGuard:
    """Return the address guard, with the networks that the operator allows."""
    return AddressGuard(
        tuple(ipaddress.ip_network(text) for text in settings.alert_allowed_networks)
    )


def _start(
    container: Container, claim: Claim, pending_actions: PendingActions
) -> tuple[uuid.UUID | None, _Started | None]:
    """Return the channel's id and the message to send; None if there is no message."""
    with container.uow() as tx:
        groups = {id_: lock_group(tx, id_) for id_ in groups_of(tx, claim.subject_id)}
        delivery = tx.session.get(AlertDelivery, claim.subject_id)
        if delivery is None or groups.get(delivery.group_id) is None:
            return None, None
        channel = tx.session.get_one(AlertChannel, delivery.channel_id)
        if delivery.state is not DeliveryState.SENDING:
            return channel.id, None
        if not channel.enabled:
            _set_state(tx, delivery, DeliveryState.FAILED, DISABLED)
            return channel.id, None
        if delivery.message is None and not fix_messages(
            container, tx, groups, delivery, channel, pending_actions
        ):
            _set_state(tx, delivery, DeliveryState.SUPERSEDED)
            return channel.id, None
        delivery.attempt += 1
        message = MESSAGE.validate_python(delivery.message)
        target = target_of(channel)
    return target.id, _Started(message, target)


def target_of(channel: AlertChannel) -> DeliveryTarget:
    """Return the fields of a channel that an attempt needs."""
    return DeliveryTarget(channel.id, channel.name, channel.kind, channel.config, channel.secrets)


def _picture(container: Container, message: Message) -> bytes | None:
    """Return the heatmap of the session of the message's first alert, or None."""
    facts = message.main.facts
    if facts is None or facts.slowdown is None or message.test or not message.firing:
        return None
    from app.incidents.picture import heatmap_png  # noqa: PLC0415 - most channels show no pictures

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
        delivery, channel = _finish_and_lock(tx, claim)
        if delivery is None or channel is None:
            return
        _set_state(tx, delivery, DeliveryState.DELIVERED, answer=answer)
        channel.failures = 0
        channel.hold_until = None
        channel.last_success_at = tx.now
        channel.last_error = None


def _settle_failure(container: Container, claim: Claim, error: DeliveryError) -> None:
    with container.uow() as tx:
        delivery, channel = _finish_and_lock(tx, claim)
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
            _set_state(tx, delivery, DeliveryState.FAILED, error)
            tx.session.execute(
                update(AlertGroup)
                .where(AlertGroup.id.in_(groups), AlertGroup.flush_at.is_(None))
                .values(flush_at=tx.now + timing(container.settings).repeat_interval)
            )
        elif delivery.digest_id is None and _has_newer(tx, delivery):
            _set_state(tx, delivery, DeliveryState.SUPERSEDED, error)
        else:
            _set_state(tx, delivery, DeliveryState.WAITING, error)
            delivery.next_attempt_at = tx.now + wait
            delivery.finished_at = None


def _finish_and_lock(
    tx: UnitOfWork, claim: Claim
) -> tuple[AlertDelivery | None, AlertChannel | None]:
    """Finish the task run; return delivery and channel, locked, or None if they were deleted."""
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


def _set_state(
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
            _set_state(tx, rider, state, error, answer=answer)


def _has_newer(tx: UnitOfWork, delivery: AlertDelivery) -> bool:
    newer = select(AlertDelivery.id).where(
        AlertDelivery.channel_id == delivery.channel_id,
        AlertDelivery.group_id == delivery.group_id,
        AlertDelivery.number > delivery.number,
        AlertDelivery.state == DeliveryState.WAITING,
    )
    return tx.session.execute(newer.limit(1)).scalar() is not None


def disable(tx: UnitOfWork, channel: AlertChannel, reason: str) -> int:
    """Disable a locked channel and give its deliveries up; return the number of deliveries."""
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


def attempt_note(container: Container, target: DeliveryTarget, note: Note) -> ReceiverAnswer:
    """Send a note to a channel within the time of one attempt.

    Raises
    ------
    DeliveryError
        If the receiver did not accept it.
    """
    kind, config = open_channel(container, target)
    if kind.tell is None:
        raise DeliveryError("channel.no_notes", f"{kind.title} takes no notes.", permanent=True)
    limit_s = container.settings.alert_attempt_limit_s
    with Outbound(guard(container.settings), limit_s) as outbound:
        return kind.tell(config, note, outbound)
