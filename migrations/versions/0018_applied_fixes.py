"""Fixes that were applied: predicted and realized."""

from __future__ import annotations

from typing import TYPE_CHECKING

import sqlalchemy as sa
from alembic import op

if TYPE_CHECKING:
    from collections.abc import Sequence

revision: str = "0018"
down_revision: str | None = "0017"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.create_table(
        "applied_fix",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("project_id", sa.Integer(), nullable=False),
        sa.Column("job_id", sa.BigInteger(), nullable=False),
        sa.Column("session_id", sa.Uuid(), nullable=False),
        sa.Column("action", sa.Text(), nullable=False),
        sa.Column("title", sa.Text(), nullable=False),
        sa.Column(
            "applied_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.Column("applied_by", sa.Text(), nullable=True),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("step_time_s", sa.Double(), nullable=False),
        sa.Column("predicted_gain", sa.Double(), nullable=False),
        sa.Column("at_most", sa.Boolean(), nullable=False),
        sa.Column("measured_by", sa.Uuid(), nullable=True),
        sa.Column("realized_step_time_s", sa.Double(), nullable=True),
        sa.Column("realized_gain", sa.Double(), nullable=True),
        sa.Column("unlike", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_applied_fix"),
        sa.UniqueConstraint(
            "session_id", "action", "title", name="uq_applied_fix_session_id_action_title"
        ),
        sa.CheckConstraint("source IN ('person', 'metadata')", name=op.f("ck_applied_fix_source")),
        sa.ForeignKeyConstraint(
            ["project_id", "job_id"],
            ["job.project_id", "job.id"],
            name="fk_applied_fix_project_id_job_id_job",
            onupdate="CASCADE",
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["project_id", "session_id"],
            ["session.project_id", "session.id"],
            name="fk_applied_fix_project_id_session_id_session",
            onupdate="CASCADE",
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["project_id", "measured_by"],
            ["session.project_id", "session.id"],
            name="fk_applied_fix_project_id_measured_by_session",
            onupdate="CASCADE",
            ondelete="SET NULL (measured_by)",
        ),
    )
    op.create_index("ix_applied_fix_job_id_applied_at", "applied_fix", ["job_id", "applied_at"])
    op.create_index(
        "ix_applied_fix_project_id_applied_at", "applied_fix", ["project_id", "applied_at"]
    )
    op.create_index("ix_applied_fix_measured_by", "applied_fix", ["measured_by"])


def downgrade() -> None:
    op.drop_table("applied_fix")
