"""Plans: specifications and the pipeline templates found for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

if TYPE_CHECKING:
    from collections.abc import Sequence

revision: str = "0003"
down_revision: str | None = "0002"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.create_table(
        "plan",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("content_sha256", sa.LargeBinary(), nullable=False),
        sa.Column("name", sa.Text(), nullable=True),
        sa.Column("method", sa.Text(), nullable=False),
        sa.Column("objective", sa.Text(), nullable=False),
        sa.Column("time_limit_s", sa.Float(), nullable=False),
        sa.Column("spec", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("layers", sa.Integer(), nullable=False),
        sa.Column("gpus", sa.Integer(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.Column(
            "state_changed_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.Column("gap", sa.Float(), nullable=True),
        sa.Column("reason_code", sa.Text(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("reason_detail", postgresql.JSONB(astext_type=sa.Text()), nullable=True),
        sa.Column("result_blob", sa.Uuid(), nullable=True),
        sa.Column("headline", postgresql.JSONB(astext_type=sa.Text()), nullable=True),
        sa.CheckConstraint(
            "state IN ('queued', 'planning', 'planned', 'infeasible', 'canceled', 'failed')",
            name=op.f("ck_plan_state"),
        ),
        sa.CheckConstraint(
            "(state = 'planned') = (result_blob IS NOT NULL)", name=op.f("ck_plan_result")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_plan")),
        sa.UniqueConstraint("content_sha256", name=op.f("uq_plan_content_sha256")),
    )
    op.create_index("ix_plan_created_at_id", "plan", ["created_at", "id"], unique=False)


def downgrade() -> None:
    op.drop_index("ix_plan_created_at_id", table_name="plan")
    op.drop_table("plan")
