"""Which incidents a channel is for, and what it has been sent."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from pydantic import TypeAdapter
from sqlalchemy import func, select

from app.incidents.channels.registry import KINDS
from app.incidents.grouping import CONTENT, Audience, Sent
from app.incidents.held_machines import Inside, speaking_for
from app.incidents.lifecycle import Incident
from app.incidents.machines import inside_of_group, standing_inside
from app.incidents.models.rules import Rule, Selector
from app.incidents.models.tables import (
    AlertChannel,
    AlertDelivery,
    AlertGroup,
    AlertIncident,
    AlertRule,
    DeliveryState,
    IncidentState,
)
from app.incidents.store import incident_of, job_and_labels, load_rules, open_incidents
from app.platform.database.unit_of_work import UnitOfWork

SELECTOR: Final = TypeAdapter(Selector)


@dataclass(frozen=True, slots=True)
class GroupNow:
    """A group as its channels are to hear of it."""

    job: str
    labels: Mapping[str, str]
    rules: Mapping[uuid.UUID, Rule]
    # The open ones; those that speak for a machine as they speak for all inside.
    incidents: Sequence[Incident]
    # By incident, what stands inside of it and is not over.
    inside: Mapping[uuid.UUID, Sequence[Inside]]
    # Incidents that one of another job speaks for.
    spoken_for: frozenset[uuid.UUID]
    attached: Mapping[tuple[uuid.UUID, uuid.UUID], datetime]  # see `routed`

    def meant_for(self, channel: AlertChannel) -> list[Incident]:
        """Return the incidents that a channel is for, by themselves or by one inside."""

        def any_inside(incident: Incident) -> bool:
            return any(
                routed(channel, [one.incident], self.rules, one.job, one.labels, self.attached)
                for one in self.inside.get(incident.id, ())
            )

        own = {
            found.id
            for found in routed(
                channel, self.incidents, self.rules, self.job, self.labels, self.attached
            )
        }
        return [found for found in self.incidents if found.id in own or any_inside(found)]


def group_now(tx: UnitOfWork, group: AlertGroup) -> GroupNow:
    """Return a group that is locked as its channels are to hear of it."""
    job, labels = job_and_labels(tx, group.job_id)
    ever = inside_of_group(tx, group.id)
    present = {
        lead: [one for one in ones if one.incident.state is not IncidentState.RESOLVED]
        for lead, ones in ever.items()
    }
    return GroupNow(
        job=job,
        labels=labels,
        rules={rule.id: rule for rule in load_rules(tx)},
        incidents=[
            speaking_for(found, ever[found.id]) if found.id in ever else found
            for found in open_incidents(tx, group.id)
        ],
        inside=present,
        spoken_for=standing_inside(tx, group.id),
        attached={
            (row.id, uuid.UUID(channel)): datetime.fromisoformat(at)
            for row in tx.session.execute(select(AlertRule.id, AlertRule.attached))
            for channel, at in row.attached.items()
        },
    )


def routed(  # noqa: PLR0913, PLR0917 - everything that routes
    channel: AlertChannel,
    incidents: Sequence[Incident],
    rules: Mapping[uuid.UUID, Rule],
    job: str,
    labels: Mapping[str, str],
    attached: Mapping[tuple[uuid.UUID, uuid.UUID], datetime] | None = None,
) -> list[Incident]:
    """Return the incidents that a channel is for.

    Parameters
    ----------
    attached : mapping, optional
        When a channel was added to a rule, by the ids of both, where that was after the rule.
    """
    selects = SELECTOR.validate_python(channel.selector).selects(job, labels)

    def meant(incident: Incident, rule: Rule) -> bool:
        # What was news before the channel was there is the past, which it is not sent.
        news_at = incident.escalated_at or incident.fired_at or incident.opened_at
        if news_at < channel.created_at:
            return False
        if incident.escalated_at and rule.escalation and channel.id in rule.escalation.channels:
            return True
        if rule.channels:
            since = (attached or {}).get((rule.id, channel.id))
            return channel.id in rule.channels and (since is None or news_at >= since)
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
    missing = {id_ for sent in heard.sent for id_ in sent.content.believed_open} - have
    if not missing:
        return list(incidents)
    rows = tx.session.execute(select(AlertIncident).where(AlertIncident.id.in_(missing))).scalars()
    return [*incidents, *(incident_of(row) for row in rows)]
