"""What a delivery says: fixed by its first attempt, under the locks of the groups it tells of."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import TypeAlias

from app.alerts.grouping import CONTENT, Audience, Content, IncidentItem, content_for, is_due
from app.alerts.machines.inside import machine_of
from app.alerts.message import MESSAGE, Asked, Message, make_message
from app.alerts.states import DeliveryState
from app.db.models.alerts import AlertChannel, AlertDelivery, AlertGroup
from app.db.unit_of_work import Reads, UnitOfWork
from app.services.access.projects import pages_at, project_name
from app.services.alerts.deliveries.digests import digest, riders_of
from app.services.alerts.routing import audience, group_now, with_heard_of
from app.services.alerts.store import rule_names, timing
from app.services.container import Container
from app.settings import Settings

# The actions on machines that await a person's decision, by machine, for these machines.
PendingActions: TypeAlias = Callable[[Reads, Collection[str]], Mapping[str, list[Asked]]]


def base_url(settings: Settings, tx: Reads) -> str:
    """Return the address of the pages of a transaction's project, with a slash at its end."""
    project = f"{pages_at(project_name(tx))}/"
    if settings.external_url is not None:
        return settings.external_url.rstrip("/") + project
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    return f"http://{host}:{settings.port}{project}"


def fix_all(  # noqa: PLR0913, PLR0917 - a delivery and its surroundings
    container: Container,
    tx: UnitOfWork,
    groups: Mapping[uuid.UUID, AlertGroup | None],
    delivery: AlertDelivery,
    channel: AlertChannel,
    pending_actions: PendingActions,
) -> bool:
    """Fix what a delivery and those that ride with it say; False where there is nothing to say."""
    messages = []
    carrier: Message | None = None
    for one in (delivery, *riders_of(tx, delivery)):
        group = groups.get(one.group_id)
        if group is not None and _fix(container, tx, group, one, channel, pending_actions):
            one.attempt = max(one.attempt, 0 if one is delivery else 1)
            messages.append(MESSAGE.validate_python(one.message))
        elif one is not delivery:
            one.state, one.finished_at = DeliveryState.SUPERSEDED, tx.now
        if one is delivery and messages:
            carrier = messages[0]
    if not messages:
        return False
    if carrier is None:
        # Of its own group there is no news any more; it says what the others say, and no more.
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
    """Return what a channel knows of a group already."""
    if group is None:
        return Content()
    now = group_now(tx, group)
    heard = audience(tx, channel, group.id, without=delivery.id)
    return content_for(with_heard_of(tx, now.meant_for(channel), heard), heard, now.spoken_for)


def _fix(  # noqa: PLR0913, PLR0917 - a delivery and its surroundings
    container: Container,
    tx: UnitOfWork,
    group: AlertGroup,
    delivery: AlertDelivery,
    channel: AlertChannel,
    pending_actions: PendingActions,
) -> bool:
    """Fix what a delivery says; return False where there is nothing to say."""
    here_now = group_now(tx, group)
    heard = audience(tx, channel, group.id, without=delivery.id)
    meant = with_heard_of(tx, here_now.meant_for(channel), heard)
    content = content_for(meant, heard, here_now.spoken_for)
    intervals = timing(container.settings)
    if not is_due(content, meant, heard, intervals, tx.now):
        return False
    message = make_message(
        id=delivery.id,
        number=delivery.number,
        at=tx.now,
        job=here_now.job,
        receiver=channel.name,
        content=content,
        told_before=_told(heard),
        incidents={incident.id: incident for incident in meant},
        inside=here_now.inside,
        rule_names=rule_names(list(here_now.rules.values())),
        base_url=base_url(container.settings, tx),
        repeat=intervals.repeat_interval,
        asks=pending_actions(tx, {machine_of(incident) for incident in meant}),
        channel=channel.id,
    )
    delivery.content = CONTENT.dump_python(content, mode="json")
    delivery.message = MESSAGE.dump_python(message, mode="json")
    return True


def _told(heard: Audience) -> set[IncidentItem]:
    delivered = [sent.content for sent in heard.sent if sent.delivered and sent.counts]
    return {*delivered[-1].present, *delivered[-1].resolved} if delivered else set()
