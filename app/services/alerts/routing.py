"""Which incidents a channel is for, and what it has been sent."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Final

from pydantic import TypeAdapter
from sqlalchemy import func, select

from app.alerts.channels.registry import KINDS
from app.alerts.grouping import CONTENT, Audience, Sent
from app.alerts.rules import Selector
from app.alerts.states import DeliveryState
from app.db.models.alerts import AlertChannel, AlertDelivery, AlertIncident
from app.services.alerts.store import incident_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from app.alerts.incidents import Incident
    from app.alerts.rules import Rule
    from app.db.unit_of_work import UnitOfWork

SELECTOR: Final = TypeAdapter(Selector)


def routed(
    channel: AlertChannel,
    incidents: Sequence[Incident],
    rules: Mapping[uuid.UUID, Rule],
    job: str,
    labels: Mapping[str, str],
) -> list[Incident]:
    """Return the incidents that a channel is for.

    Parameters
    ----------
    channel : AlertChannel
    incidents : sequence of Incident
        Of one job.
    rules : mapping of UUID to Rule
    job : str
    labels : mapping of str to str
        Of the job.
    """
    selects = SELECTOR.validate_python(channel.selector).selects(job, labels)

    def meant(incident: Incident, rule: Rule) -> bool:
        if incident.escalated_at and rule.escalation and channel.id in rule.escalation.channels:
            return True
        if rule.channels:
            return channel.id in rule.channels
        return selects and channel.audience == rule.audience

    return [
        incident
        for incident in incidents
        if any(id_ in rules and meant(incident, rules[id_]) for id_ in incident.rules)
    ]


def audience(
    tx: UnitOfWork,
    channel: AlertChannel,
    group_id: uuid.UUID,
    *,
    without: uuid.UUID | None = None,
) -> Audience:
    """Return a channel as a group sees it, from the last delivered message on.

    Parameters
    ----------
    tx : UnitOfWork
    channel : AlertChannel
    group_id : UUID
    without : UUID, optional
        A delivery that is left out: the one that is about to be made.
    """
    here = (AlertDelivery.channel_id == channel.id, AlertDelivery.group_id == group_id)
    last = (
        select(func.max(AlertDelivery.number))
        .where(*here, AlertDelivery.state == DeliveryState.DELIVERED)
        .scalar_subquery()
    )
    rows = tx.session.execute(
        select(
            AlertDelivery.created_at,
            AlertDelivery.content,
            AlertDelivery.state,
            AlertDelivery.generation,
        )
        .where(
            *here,
            AlertDelivery.content.is_not(None),
            AlertDelivery.number >= func.coalesce(last, 0),
            AlertDelivery.id != without if without else AlertDelivery.id.is_not(None),
        )
        .order_by(AlertDelivery.number)
    ).all()
    return Audience(
        KINDS[channel.kind].manner,
        [
            Sent(
                created_at=row.created_at,
                content=CONTENT.validate_python(row.content),
                delivered=row.state is DeliveryState.DELIVERED,
                counts=row.state is not DeliveryState.SUPERSEDED
                and row.generation == channel.generation,
            )
            for row in rows
        ],
    )


def with_heard_of(tx: UnitOfWork, incidents: Sequence[Incident], heard: Audience) -> list[Incident]:
    """Return incidents and those, mostly over by now, that the channel may have heard of."""
    have = {incident.id for incident in incidents}
    missing = {id_ for sent in heard.sent for id_ in sent.content.told} - have
    if not missing:
        return list(incidents)
    rows = tx.session.execute(select(AlertIncident).where(AlertIncident.id.in_(missing))).scalars()
    return [*incidents, *(incident_of(row) for row in rows)]
