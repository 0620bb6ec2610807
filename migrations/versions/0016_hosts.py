"""Hosts: what each session says of each, and what was repaired.

Reports that are there already are read by the sweeper, a few at a time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

if TYPE_CHECKING:
    from collections.abc import Sequence

revision: str = "0016"
down_revision: str | None = "0015"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.create_table(
        "host_reading",
        sa.Column("session_id", sa.Uuid(), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("job_id", sa.BigInteger(), nullable=False),
        sa.Column("received_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("ranks", sa.Integer(), nullable=False),
        sa.Column("workers", sa.Integer(), nullable=False),
        sa.Column("slowdown", sa.Float(), nullable=False),
        sa.Column("computing", sa.Float(), nullable=True),
        sa.Column("cause", sa.Text(), nullable=True),
        sa.Column("lost_each_hour", sa.Float(), nullable=False),
        sa.Column("measured_s", sa.Float(), nullable=False),
        sa.Column("gpus", postgresql.JSONB(), nullable=False),
        sa.Column("project_id", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(
            ["project_id", "session_id"],
            ["session.project_id", "session.id"],
            name=op.f("fk_host_reading_project_id_session_id_session"),
            onupdate="CASCADE",
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["project_id", "job_id"],
            ["job.project_id", "job.id"],
            name=op.f("fk_host_reading_project_id_job_id_job"),
            onupdate="CASCADE",
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("session_id", "host", name=op.f("pk_host_reading")),
    )
    op.create_index(
        "ix_host_reading_project_id_host_received_at",
        "host_reading",
        ["project_id", "host", "received_at"],
    )
    op.create_index(
        "ix_host_reading_project_id_received_at", "host_reading", ["project_id", "received_at"]
    )
    op.create_index("ix_host_reading_job_id", "host_reading", ["job_id"])
    op.create_table(
        "host_repair",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("gpu", sa.Text(), nullable=True),
        sa.Column("what", sa.Text(), nullable=False),
        sa.Column("by", sa.Text(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column(
            "noted_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False
        ),
        sa.Column("project_id", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(
            ["project_id"],
            ["project.id"],
            name=op.f("fk_host_repair_project_id_project"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_host_repair")),
    )
    op.create_index(
        "ix_host_repair_project_id_host_at", "host_repair", ["project_id", "host", "at"]
    )
    op.add_column(
        "report",
        sa.Column("in_ledger", sa.Boolean(), server_default=sa.text("false"), nullable=False),
    )
    # The sweeper looks for what is left every few seconds.
    op.create_index(
        "ix_report_not_in_ledger",
        "report",
        ["created_at"],
        postgresql_where=sa.text("NOT in_ledger"),
    )


def downgrade() -> None:
    op.drop_index("ix_report_not_in_ledger", table_name="report")
    op.drop_column("report", "in_ledger")
    op.drop_table("host_repair")
    op.drop_table("host_reading")
