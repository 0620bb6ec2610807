"""Routing: which incidents are sent to a channel, and which messages were sent to it."""

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
from app.incidents.held_machines import MemberIncident, as_lead
from app.incidents.lifecycle import Incident
from app.incidents.machines import led_incidents, members_by_lead
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
class GroupSnapshot:
    """The present state of a group, from which its channels are notified."""

    job: str
    labels: Mapping[str, str]
    rules: Mapping[uuid.UUID, Rule]
    # Open incidents; a lead has the highest severity of all its members
    incidents: Sequence[Incident]
    # Open members, grouped by lead
    inside: Mapping[uuid.UUID, Sequence[MemberIncident]]
    # Ids of incidents that are members of leads of other jobs
    led_elsewhere: frozenset[uuid.UUID]
    attached: Mapping[tuple[uuid.UUID, uuid.UUID], datetime]  # see `routed`

    def incidents_for(self, channel: AlertChannel) -> list[Incident]:
        """Return the incidents that are routed to a channel, directly or through a member."""

        def any_inside(incident: Incident) -> bool:
            return any(
                routed(
                    channel,
                    [member.incident],
                    self.rules,
                    member.job,
                    member.labels,
                    self.attached,
                )
                for member in self.inside.get(incident.id, ())
            )

        own = {
            incident.id
            for incident in routed(
                channel, self.incidents, self.rules, self.job, self.labels, self.attached
            )
        }
        return [each for each in self.incidents if each.id in own or any_inside(each)]


def group_snapshot(tx: UnitOfWork, group: AlertGroup) -> GroupSnapshot:
    """Return the present state of a locked group."""
    job, labels = job_and_labels(tx, group.job_id)
    ever = members_by_lead(tx, group.id)
    present = {
        lead: [each for each in members if each.incident.state is not IncidentState.RESOLVED]
        for lead, members in ever.items()
    }
    return GroupSnapshot(
        job=job,
        labels=labels,
        rules={rule.id: rule for rule in load_rules(tx)},
        incidents=[
            as_lead(incident, ever[incident.id]) if incident.id in ever else incident
            for incident in open_incidents(tx, group.id)
        ],
        inside=present,
        led_elsewhere=led_incidents(tx, group.id),
        attached={
            (row.id, uuid.UUID(channel)): datetime.fromisoformat(at)
            for row in tx.session.execute(select(AlertRule.id, AlertRule.attached))
            for channel, at in row.attached.items()
        },
    )


def routed(  # noqa: PLR0913, PLR0917 - all that routing depends on
    channel: AlertChannel,
    incidents: Sequence[Incident],
    rules: Mapping[uuid.UUID, Rule],
    job: str,
    labels: Mapping[str, str],
    attached: Mapping[tuple[uuid.UUID, uuid.UUID], datetime] | None = None,
) -> list[Incident]:
    """Return the incidents that are routed to a channel.

    Parameters
    ----------
    attached : mapping, optional
        Time at which a channel was added to an existing rule, by the ids of rule and channel.
    """
    selects = SELECTOR.validate_python(channel.selector).selects(job, labels)

    def meant(incident: Incident, rule: Rule) -> bool:
        # News from before a channel's creation are not sent to the channel.
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


def audience_of(
    tx: UnitOfWork,
    channel: AlertChannel,
    group_id: uuid.UUID,
    *,
    without: uuid.UUID | None = None,
) -> Audience:
    """Return the messages of a group to a channel, from the last delivered message on.

    Parameters
    ----------
    without : UUID, optional
        The delivery whose message is being made, which is left out.
    """
    of_group = (AlertDelivery.channel_id == channel.id, AlertDelivery.group_id == group_id)
    last = (
        select(func.max(AlertDelivery.number))
        .where(*of_group, AlertDelivery.state == DeliveryState.DELIVERED)
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
            *of_group,
            AlertDelivery.content.is_not(None),
            AlertDelivery.number >= func.coalesce(last, 0),
            AlertDelivery.id != without if without else AlertDelivery.id.is_not(None),
        )
        .order_by(AlertDelivery.number)
    ).all()
    return Audience(
        KINDS[channel.kind].style,
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


def with_notified(tx: UnitOfWork, incidents: Sequence[Incident], heard: Audience) -> list[Incident]:
    """Return the incidents, and those that may have been sent to the channel before."""
    have = {incident.id for incident in incidents}
    missing = {id_ for sent in heard.sent for id_ in sent.content.believed_open} - have
    if not missing:
        return list(incidents)
    rows = tx.session.execute(select(AlertIncident).where(AlertIncident.id.in_(missing))).scalars()
    return [*incidents, *(incident_of(row) for row in rows)]
