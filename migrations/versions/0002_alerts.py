"""Alerts: rules, channels, groups, incidents, deliveries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

if TYPE_CHECKING:
    from collections.abc import Sequence

revision: str = "0002"
down_revision: str | None = "0001"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

# The rules that come with the product, as they were at this revision: inserted once, from then on
# they are the operator's to edit and delete.
IMPORTANT: Final = {"importance": ["normal", "high"]}
DEFAULT_RULES: Final = (
    (
        "5a0c1ea1-0000-4000-8000-000000000001",
        "Slow job",
        {
            "condition": {"kind": "slowdown", "at_least": 1.1, "clears_below": 1.05},
            "selector": IMPORTANT,
            "escalation": {"at_least": 1.5},
        },
    ),
    (
        "5a0c1ea1-0000-4000-8000-000000000002",
        "Regression against the job's baseline",
        {
            "condition": {"kind": "regression", "at_least": 0.05, "clears_below": 0.03},
            "selector": IMPORTANT,
        },
    ),
    (
        "5a0c1ea1-0000-4000-8000-000000000003",
        "Slow worker, for certain",
        {
            "condition": {
                "kind": "cause",
                "confidence": 0.9,
                "clears_below": 0.8,
                "causes": ["slow_worker"],
            },
            "selector": IMPORTANT,
            "consecutive": 1,
        },
    ),
    (
        "5a0c1ea1-0000-4000-8000-000000000004",
        "No data",
        {
            "condition": {"kind": "no_data", "minutes": 10, "intervals": 3},
            "selector": IMPORTANT,
            "consecutive": 1,
            "clear_sessions": 1,
        },
    ),
    (
        "5a0c1ea1-0000-4000-8000-000000000005",
        "Low trace quality",
        {
            "condition": {"kind": "discrepancy", "at_least": 0.05, "clears_below": 0.05},
            "severity": "info",
            "audience": "owner",
        },
    ),
)


def upgrade() -> None:
    op.create_table(
        "alert_channel",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("audience", sa.Text(), nullable=False),
        sa.Column("selector", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("config", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("secrets", sa.LargeBinary(), nullable=False),
        sa.Column("enabled", sa.Boolean(), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("disabled_reason", sa.Text(), nullable=True),
        sa.Column("hold_until", sa.DateTime(timezone=True), nullable=True),
        sa.Column("failures", sa.Integer(), nullable=False),
        sa.Column("last_error", sa.Text(), nullable=True),
        sa.Column("last_failure_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("last_success_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_alert_channel")),
        sa.UniqueConstraint("name", name=op.f("uq_alert_channel_name")),
    )
    op.create_table(
        "alert_rule",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("document", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.Column(
            "updated_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_alert_rule")),
        sa.UniqueConstraint("name", name=op.f("uq_alert_rule_name")),
    )
    op.create_table(
        "alert_group",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("job_id", sa.BigInteger(), nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.Column("flush_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("flushed_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("look_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(
            ["job_id"], ["job.id"], name=op.f("fk_alert_group_job_id_job"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_alert_group")),
        sa.UniqueConstraint("job_id", name=op.f("uq_alert_group_job_id")),
    )
    op.create_index(
        "ix_alert_group_flush_at",
        "alert_group",
        ["flush_at"],
        unique=False,
        postgresql_where=sa.text("flush_at IS NOT NULL"),
    )
    op.create_index(
        "ix_alert_group_look_at",
        "alert_group",
        ["look_at"],
        unique=False,
        postgresql_where=sa.text("look_at IS NOT NULL"),
    )
    op.create_table(
        "alert_delivery",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("group_id", sa.Uuid(), nullable=False),
        sa.Column("channel_id", sa.Uuid(), nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("next_attempt_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.Column("content", postgresql.JSONB(astext_type=sa.Text()), nullable=True),
        sa.Column("message", postgresql.JSONB(astext_type=sa.Text()), nullable=True),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("error_code", sa.Text(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("answer_status", sa.Integer(), nullable=True),
        sa.Column("answer", sa.Text(), nullable=True),
        sa.CheckConstraint(
            "state IN ('waiting', 'sending', 'delivered', 'failed', 'superseded')",
            name=op.f("ck_alert_delivery_state"),
        ),
        sa.ForeignKeyConstraint(
            ["channel_id"],
            ["alert_channel.id"],
            name=op.f("fk_alert_delivery_channel_id_alert_channel"),
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["group_id"],
            ["alert_group.id"],
            name=op.f("fk_alert_delivery_group_id_alert_group"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_alert_delivery")),
        sa.UniqueConstraint(
            "channel_id",
            "group_id",
            "number",
            name=op.f("uq_alert_delivery_channel_id_group_id_number"),
        ),
    )
    op.create_index("ix_alert_delivery_created_at", "alert_delivery", ["created_at"], unique=False)
    op.create_index(
        "ix_alert_delivery_due",
        "alert_delivery",
        ["channel_id", "next_attempt_at"],
        unique=False,
        postgresql_where=sa.text("state IN ('waiting', 'sending')"),
    )
    op.create_table(
        "alert_facts",
        sa.Column("session_id", sa.Uuid(), nullable=False),
        sa.Column("job_id", sa.BigInteger(), nullable=False),
        sa.Column("received_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("document", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.ForeignKeyConstraint(
            ["job_id"], ["job.id"], name=op.f("fk_alert_facts_job_id_job"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["session_id"],
            ["session.id"],
            name=op.f("fk_alert_facts_session_id_session"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("session_id", name=op.f("pk_alert_facts")),
    )
    op.create_index(
        "ix_alert_facts_job_id_received_at", "alert_facts", ["job_id", "received_at"], unique=False
    )
    op.create_table(
        "alert_incident",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("group_id", sa.Uuid(), nullable=False),
        sa.Column("fingerprint", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("opened_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("fired_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("resolved_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("silenced_until", sa.DateTime(timezone=True), nullable=True),
        sa.Column("document", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.CheckConstraint(
            "state IN ('pending', 'firing', 'acknowledged', 'silenced', 'resolved')",
            name=op.f("ck_alert_incident_state"),
        ),
        sa.ForeignKeyConstraint(
            ["group_id"],
            ["alert_group.id"],
            name=op.f("fk_alert_incident_group_id_alert_group"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_alert_incident")),
    )
    op.create_index(
        "ix_alert_incident_group_id_resolved_at",
        "alert_incident",
        ["group_id", "resolved_at"],
        unique=False,
    )
    op.create_index(
        "ix_alert_incident_state_fired_at", "alert_incident", ["state", "fired_at"], unique=False
    )
    op.create_index(
        "uq_alert_incident_open",
        "alert_incident",
        ["group_id", "fingerprint"],
        unique=True,
        postgresql_where=sa.text("state <> 'resolved'"),
    )
    op.create_table(
        "alert_event",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("incident_id", sa.Uuid(), nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.Column(
            "at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False
        ),
        sa.Column("event", sa.Text(), nullable=False),
        sa.Column("from_state", sa.Text(), nullable=True),
        sa.Column("to_state", sa.Text(), nullable=False),
        sa.Column("actor", sa.Text(), nullable=True),
        sa.Column("note", sa.Text(), nullable=True),
        sa.Column("session_id", sa.Uuid(), nullable=True),
        sa.ForeignKeyConstraint(
            ["incident_id"],
            ["alert_incident.id"],
            name=op.f("fk_alert_event_incident_id_alert_incident"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_alert_event")),
        sa.UniqueConstraint(
            "incident_id", "number", name=op.f("uq_alert_event_incident_id_number")
        ),
    )
    rules = sa.table(
        "alert_rule",
        sa.column("id", sa.Uuid(as_uuid=False)),
        sa.column("name", sa.Text()),
        sa.column("document", postgresql.JSONB()),
    )
    for rule_id, name, document in DEFAULT_RULES:
        op.execute(rules.insert().values(id=rule_id, name=name, document=document))


def downgrade() -> None:
    op.drop_table("alert_event")
    op.drop_index(
        "uq_alert_incident_open",
        table_name="alert_incident",
        postgresql_where=sa.text("state <> 'resolved'"),
    )
    op.drop_index("ix_alert_incident_state_fired_at", table_name="alert_incident")
    op.drop_index("ix_alert_incident_group_id_resolved_at", table_name="alert_incident")
    op.drop_table("alert_incident")
    op.drop_index("ix_alert_facts_job_id_received_at", table_name="alert_facts")
    op.drop_table("alert_facts")
    op.drop_index(
        "ix_alert_delivery_due",
        table_name="alert_delivery",
        postgresql_where=sa.text("state IN ('waiting', 'sending')"),
    )
    op.drop_index("ix_alert_delivery_created_at", table_name="alert_delivery")
    op.drop_table("alert_delivery")
    op.drop_index(
        "ix_alert_group_look_at",
        table_name="alert_group",
        postgresql_where=sa.text("look_at IS NOT NULL"),
    )
    op.drop_index(
        "ix_alert_group_flush_at",
        table_name="alert_group",
        postgresql_where=sa.text("flush_at IS NOT NULL"),
    )
    op.drop_table("alert_group")
    op.drop_table("alert_rule")
    op.drop_table("alert_channel")
