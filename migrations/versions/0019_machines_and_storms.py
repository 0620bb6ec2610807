"""One machine, one incident; storms in digests; and since when a channel hears of a rule."""

from __future__ import annotations

from typing import TYPE_CHECKING

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

if TYPE_CHECKING:
    from collections.abc import Sequence

revision: str = "0019"
down_revision: str | None = "0018"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def _of_incident(column: str) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint(
        ["project_id", column],
        ["alert_incident.project_id", "alert_incident.id"],
        name=op.f(f"fk_alert_on_host_project_id_{column}_alert_incident"),
        onupdate="CASCADE",
        ondelete="CASCADE",
    )


def upgrade() -> None:
    op.create_table(
        "alert_on_host",
        sa.Column("incident_id", sa.Uuid(), nullable=False),
        sa.Column("lead_id", sa.Uuid(), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("over_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("stirred_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("project_id", sa.Integer(), nullable=False),
        _of_incident("incident_id"),
        _of_incident("lead_id"),
        sa.PrimaryKeyConstraint("incident_id", name=op.f("pk_alert_on_host")),
    )
    op.create_index(
        "uq_alert_on_host_lead",
        "alert_on_host",
        ["project_id", "host"],
        unique=True,
        postgresql_where=sa.text("incident_id = lead_id AND over_at IS NULL"),
    )
    op.create_index("ix_alert_on_host_lead_id", "alert_on_host", ["lead_id"])
    op.create_index(
        "ix_alert_on_host_stirred_at",
        "alert_on_host",
        ["stirred_at"],
        postgresql_where=sa.text("stirred_at IS NOT NULL"),
    )
    op.add_column(
        "alert_channel",
        sa.Column("per_10_min", sa.Integer(), server_default=sa.text("10"), nullable=False),
    )
    op.add_column("alert_delivery", sa.Column("digest_id", sa.Uuid(), nullable=True))
    op.add_column(
        "alert_delivery", sa.Column("started_at", sa.DateTime(timezone=True), nullable=True)
    )
    op.create_index(
        "ix_alert_delivery_channel_id_started_at", "alert_delivery", ["channel_id", "started_at"]
    )
    op.create_index("ix_alert_delivery_digest_id", "alert_delivery", ["digest_id"])
    op.add_column(
        "alert_rule",
        sa.Column(
            "attached",
            JSONB(),
            server_default=sa.text("'{}'"),
            nullable=False,
        ),
    )


def downgrade() -> None:
    op.drop_column("alert_rule", "attached")
    op.drop_index("ix_alert_delivery_digest_id", "alert_delivery")
    op.drop_index("ix_alert_delivery_channel_id_started_at", "alert_delivery")
    op.drop_column("alert_delivery", "started_at")
    op.drop_column("alert_delivery", "digest_id")
    op.drop_column("alert_channel", "per_10_min")
    op.drop_table("alert_on_host")
