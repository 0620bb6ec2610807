"""What each project has used of its quotas, and how many producers a session has."""

from __future__ import annotations

from typing import TYPE_CHECKING

import sqlalchemy as sa
from alembic import op

if TYPE_CHECKING:
    from collections.abc import Sequence

revision: str = "0010"
down_revision: str | None = "0009"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.create_table(
        "project_usage",
        sa.Column("project_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("hour", sa.DateTime(timezone=True), nullable=False),
        sa.Column("hour_sessions", sa.Integer(), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("operations", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("project_id", name=op.f("pk_project_usage")),
    )
    # All that is there is the first project's.
    op.execute(
        """
        INSERT INTO project_usage (project_id, hour, hour_sessions, bytes, operations)
        SELECT 1, date_trunc('hour', now()), 0,
            coalesce(sum(body_bytes), 0), coalesce(sum(operations), 0)
        FROM session
        """
    )
    op.add_column(
        "intake",
        sa.Column("producers", sa.Integer(), server_default=sa.text("0"), nullable=False),
    )
    op.execute(
        """
        UPDATE intake SET producers = counted.producers
        FROM (SELECT session_id, count(DISTINCT producer) AS producers
              FROM chunk GROUP BY session_id) AS counted
        WHERE intake.session_id = counted.session_id
        """
    )
    # From now on every row says its own.
    op.alter_column("intake", "producers", server_default=None)


def downgrade() -> None:
    op.drop_column("intake", "producers")
    op.drop_table("project_usage")
