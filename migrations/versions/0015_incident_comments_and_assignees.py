"""What people say about incidents, and whose each one is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import sqlalchemy as sa
from alembic import op

if TYPE_CHECKING:
    from collections.abc import Sequence

revision: str = "0015"
down_revision: str | None = "0014"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def _of_incident(table: str) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint(
        ["project_id", "incident_id"],
        ["alert_incident.project_id", "alert_incident.id"],
        name=op.f(f"fk_{table}_project_id_incident_id_alert_incident"),
        onupdate="CASCADE",
        ondelete="CASCADE",
    )


def upgrade() -> None:
    op.create_table(
        "alert_comment",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("incident_id", sa.Uuid(), nullable=False),
        sa.Column(
            "at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False
        ),
        sa.Column("author", sa.Text(), nullable=False),
        sa.Column("words", sa.Text(), nullable=False),
        sa.Column("project_id", sa.Integer(), nullable=False),
        _of_incident("alert_comment"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_alert_comment")),
    )
    op.create_index(
        "ix_alert_comment_incident_id_id", "alert_comment", ["incident_id", "id"], unique=False
    )
    op.create_table(
        "alert_assignee",
        sa.Column("incident_id", sa.Uuid(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("assigned_by", sa.Text(), nullable=False),
        sa.Column(
            "at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False
        ),
        sa.Column("project_id", sa.Integer(), nullable=False),
        _of_incident("alert_assignee"),
        sa.PrimaryKeyConstraint("incident_id", name=op.f("pk_alert_assignee")),
    )


def downgrade() -> None:
    op.drop_table("alert_assignee")
    op.drop_table("alert_comment")
