"""Tables of alert rules, channels, incidents and deliveries, and the names of their states."""

from __future__ import annotations

import uuid
from datetime import datetime
from enum import StrEnum, nonmember
from typing import Any

from sqlalchemy import BigInteger, Identity, Index, UniqueConstraint, Uuid, text
from sqlalchemy.orm import Mapped, mapped_column

from app.platform.database.columns import (
    Base,
    OfProject,
    StateColumn,
    belongs_to,
    in_project,
    one_of,
)


class IncidentState(StrEnum):
    """The state of an incident."""

    PENDING = "pending"
    FIRING = "firing"
    ACKNOWLEDGED = "acknowledged"
    SILENCED = "silenced"
    RESOLVED = "resolved"

    # Open states in which channels may have been notified. Sets of states are tuples, because SQL's
    # IN takes tuples.
    TOLD = nonmember((FIRING, ACKNOWLEDGED, SILENCED))


class DeliveryState(StrEnum):
    """The state of a delivery."""

    WAITING = "waiting"
    SENDING = "sending"
    DELIVERED = "delivered"
    FAILED = "failed"  # no further attempt is made
    SUPERSEDED = "superseded"  # by newer content, or because nothing was left to send

    UNDERWAY = nonmember((WAITING, SENDING))
    OVER = nonmember((DELIVERED, FAILED, SUPERSEDED))
    # A user may send the delivery again.
    REPLAYABLE = nonmember((FAILED, WAITING))


class AlertRule(OfProject, Base):
    """An alert rule; `document` is an `app.incidents.models.rules.Rule` without its id and name."""

    __tablename__ = "alert_rule"
    __table_args__ = (
        in_project(),
        UniqueConstraint("project_id", "name"),
    )

    id: Mapped[uuid.UUID] = mapped_column(Uuid, primary_key=True)
    name: Mapped[str]
    document: Mapped[dict[str, Any]]
    # Time at which a channel was added to the existing rule, by channel id
    attached: Mapped[dict[str, Any]] = mapped_column(server_default=text("'{}'"))
    created_at: Mapped[datetime] = mapped_column(server_default=text("now()"))
    updated_at: Mapped[datetime] = mapped_column(server_default=text("now()"))


class AlertChannel(OfProject, Base):
    """A channel: a receiver of messages."""

    __tablename__ = "alert_channel"
    __table_args__ = (
        in_project(),
        UniqueConstraint("project_id", "name"),
        UniqueConstraint("project_id", "id"),
    )

    id: Mapped[uuid.UUID] = mapped_column(Uuid, primary_key=True)
    name: Mapped[str]
    kind: Mapped[str]
    audience: Mapped[str]
    # document of an `app.incidents.models.rules.Selector`
    selector: Mapped[dict[str, Any]]
    # config, secrets: the configuration without secrets, and the encrypted secrets
    config: Mapped[dict[str, Any]]
    secrets: Mapped[bytes]
    # secret_hints: names of the secrets that are set, with the host of each address; the second
    # field tells whether the workers' keys decrypt the secrets
    secret_hints: Mapped[dict[str, Any]] = mapped_column(server_default=text("'{}'"))
    readable: Mapped[bool] = mapped_column(server_default=text("true"))
    enabled: Mapped[bool]
    # Limit of messages in ten minutes; further messages go into the next digest
    per_10_min: Mapped[int] = mapped_column(server_default=text("10"))
    # Incremented when all open incidents are to be sent to the channel again
    generation: Mapped[int]
    disabled_reason: Mapped[str | None]
    # Time before which no message is sent, because the receiver requested a pause or did not answer
    hold_until: Mapped[datetime | None]
    failures: Mapped[int]
    last_error: Mapped[str | None]
    last_failure_at: Mapped[datetime | None]
    last_success_at: Mapped[datetime | None]
    created_at: Mapped[datetime] = mapped_column(server_default=text("now()"))


class AlertGroup(OfProject, Base):
    """The incidents of one job; a change of these incidents requires the lock on this row."""

    __tablename__ = "alert_group"
    __table_args__ = (
        belongs_to("job_id", "job.id"),
        UniqueConstraint("project_id", "id"),
        Index("ix_alert_group_flush_at", "flush_at", postgresql_where=text("flush_at IS NOT NULL")),
        Index("ix_alert_group_look_at", "look_at", postgresql_where=text("look_at IS NOT NULL")),
    )

    id: Mapped[uuid.UUID] = mapped_column(Uuid, primary_key=True)
    job_id: Mapped[int] = mapped_column(BigInteger, unique=True)
    # The last number given to a transition or a notification of this group
    number: Mapped[int] = mapped_column(BigInteger)
    # flush_at, flushed_at: times of the next and of the last creation of deliveries
    flush_at: Mapped[datetime | None]
    flushed_at: Mapped[datetime | None]
    # Time of the next evaluation without new data, when a silence ends or a job becomes silent
    look_at: Mapped[datetime | None]
    # Trace context of the span that stored the latest news, in the format of the header
    # `traceparent`; null without tracing
    traceparent: Mapped[str | None]


class AlertIncident(OfProject, Base):
    """An incident; `document` is an `app.incidents.lifecycle.Incident` and authoritative.

    The other columns copy the parts that queries filter by.
    """

    __tablename__ = "alert_incident"
    __table_args__ = (
        one_of("state", IncidentState),
        belongs_to("group_id", "alert_group.id"),
        UniqueConstraint("project_id", "id"),
        Index(
            "uq_alert_incident_open",
            "group_id",
            "fingerprint",
            unique=True,
            postgresql_where=text("state <> 'resolved'"),
        ),
        Index("ix_alert_incident_group_id_resolved_at", "group_id", "resolved_at"),
        Index("ix_alert_incident_state_fired_at", "state", "fired_at"),
    )

    id: Mapped[uuid.UUID] = mapped_column(Uuid, primary_key=True)
    group_id: Mapped[uuid.UUID] = mapped_column(Uuid)
    fingerprint: Mapped[str]
    state: Mapped[IncidentState] = mapped_column(StateColumn(IncidentState))
    opened_at: Mapped[datetime]
    fired_at: Mapped[datetime | None]
    resolved_at: Mapped[datetime | None]
    # Time until which a silence lasts, even if the incident ends before
    silenced_until: Mapped[datetime | None]
    document: Mapped[dict[str, Any]]


class AlertOnHost(OfProject, Base):
    """The role of an incident on the host that it blames: lead, or member of the lead.

    The unique index allows one lead of a host at a time, even with concurrent evaluations.
    """

    __tablename__ = "alert_on_host"
    __table_args__ = (
        belongs_to("incident_id", "alert_incident.id"),
        belongs_to("lead_id", "alert_incident.id"),
        Index(
            "uq_alert_on_host_lead",
            "project_id",
            "host",
            unique=True,
            postgresql_where=text("incident_id = lead_id AND over_at IS NULL"),
        ),
        Index("ix_alert_on_host_lead_id", "lead_id"),
        Index(
            "ix_alert_on_host_stirred_at",
            "stirred_at",
            postgresql_where=text("stirred_at IS NOT NULL"),
        ),
    )

    incident_id: Mapped[uuid.UUID] = mapped_column(Uuid, primary_key=True)
    lead_id: Mapped[uuid.UUID] = mapped_column(Uuid)
    host: Mapped[str]
    # Only for a lead: time at which it ceased to lead
    over_at: Mapped[datetime | None]
    # Only for a lead: time at which a member was added or resolved since the group's last
    # evaluation
    stirred_at: Mapped[datetime | None]


class AlertEvent(OfProject, Base):
    """A transition in the history of an incident."""

    __tablename__ = "alert_event"
    __table_args__ = (
        belongs_to("incident_id", "alert_incident.id"),
        UniqueConstraint("incident_id", "number"),
    )

    id: Mapped[int] = mapped_column(BigInteger, Identity(always=True), primary_key=True)
    incident_id: Mapped[uuid.UUID] = mapped_column(Uuid)
    # Numbered within the group, so that the events of one job have an order
    number: Mapped[int] = mapped_column(BigInteger)
    at: Mapped[datetime] = mapped_column(server_default=text("now()"))
    event: Mapped[str]
    from_state: Mapped[IncidentState | None] = mapped_column(StateColumn(IncidentState))
    to_state: Mapped[IncidentState] = mapped_column(StateColumn(IncidentState))
    actor: Mapped[str | None]
    note: Mapped[str | None]
    session_id: Mapped[uuid.UUID | None] = mapped_column(Uuid)


class AlertComment(OfProject, Base):
    """A user's comment on an incident; comments are never edited."""

    __tablename__ = "alert_comment"
    __table_args__ = (
        belongs_to("incident_id", "alert_incident.id"),
        Index("ix_alert_comment_incident_id_id", "incident_id", "id"),
    )

    id: Mapped[int] = mapped_column(BigInteger, Identity(always=True), primary_key=True)
    incident_id: Mapped[uuid.UUID] = mapped_column(Uuid)
    at: Mapped[datetime] = mapped_column(server_default=text("now()"))
    author: Mapped[str]
    words: Mapped[str]


class AlertAssignee(OfProject, Base):
    """The assignee of an incident; an incident without a row has no assignee."""

    __tablename__ = "alert_assignee"
    __table_args__ = (belongs_to("incident_id", "alert_incident.id"),)

    incident_id: Mapped[uuid.UUID] = mapped_column(Uuid, primary_key=True)
    name: Mapped[str]
    assigned_by: Mapped[str]
    at: Mapped[datetime] = mapped_column(server_default=text("now()"))


class AlertDelivery(OfProject, Base):
    """A message of a group to a channel, sent at least once and always under this id."""

    __tablename__ = "alert_delivery"
    __table_args__ = (
        one_of("state", DeliveryState),
        belongs_to("group_id", "alert_group.id"),
        belongs_to("channel_id", "alert_channel.id"),
        UniqueConstraint("channel_id", "group_id", "number"),
        Index(
            "ix_alert_delivery_due",
            "channel_id",
            "next_attempt_at",
            postgresql_where=text("state IN ('waiting', 'sending')"),
        ),
        Index("ix_alert_delivery_created_at", "created_at"),
        Index("ix_alert_delivery_channel_id_started_at", "channel_id", "started_at"),
        Index("ix_alert_delivery_digest_id", "digest_id"),
    )

    id: Mapped[uuid.UUID] = mapped_column(Uuid, primary_key=True)
    group_id: Mapped[uuid.UUID] = mapped_column(Uuid)
    channel_id: Mapped[uuid.UUID] = mapped_column(Uuid)
    # Number of the notification: the same for all deliveries of one flush, larger for each later
    # flush
    number: Mapped[int] = mapped_column(BigInteger)
    # Generation of the channel when this delivery was created
    generation: Mapped[int]
    state: Mapped[DeliveryState] = mapped_column(StateColumn(DeliveryState))
    attempt: Mapped[int]
    next_attempt_at: Mapped[datetime]
    created_at: Mapped[datetime] = mapped_column(server_default=text("now()"))
    # content, message: stored by the first attempt; an `app.incidents.grouping.Content` and the
    # whole message
    content: Mapped[dict[str, Any] | None]
    message: Mapped[dict[str, Any] | None]
    # Id of the delivery's carrier in a digest; a carrier has its own id
    digest_id: Mapped[uuid.UUID | None] = mapped_column(Uuid)
    # Time of the first attempt
    started_at: Mapped[datetime | None]
    finished_at: Mapped[datetime | None]
    error_code: Mapped[str | None]
    error: Mapped[str | None]
    answer_status: Mapped[int | None]
    answer: Mapped[str | None]


class SlackRequest(OfProject, Base):
    """An executed request of Slack, kept for some minutes to refuse a replay."""

    __tablename__ = "slack_request"
    __table_args__ = (in_project(), Index("ix_slack_request_project_id_at", "project_id", "at"))

    project_id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    # SHA-256 of the request's signature
    digest: Mapped[bytes] = mapped_column(primary_key=True)
    at: Mapped[datetime]
