"""The fleet's report: what each session is in its figures, and weekly summaries."""

from __future__ import annotations

from typing import TYPE_CHECKING

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

if TYPE_CHECKING:
    from collections.abc import Sequence

revision: str = "0022"
down_revision: str | None = "0021"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.create_table(
        "session_figure",
        sa.Column("session_id", sa.Uuid(), nullable=False),
        sa.Column("project_id", sa.Integer(), nullable=False),
        sa.Column("job_id", sa.BigInteger(), nullable=False),
        sa.Column("received_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("gpus", sa.Integer(), nullable=False),
        sa.Column("stages", sa.Integer(), nullable=False),
        sa.Column("context", sa.BigInteger(), nullable=True),
        sa.Column("slowdown", sa.Double(), nullable=False),
        sa.Column("lost_each_hour", sa.Double(), nullable=False),
        sa.Column("measured_s", sa.Double(), nullable=False),
        sa.Column("m_w", sa.Double(), nullable=True),
        sa.Column("m_s", sa.Double(), nullable=True),
        sa.Column("correlation", sa.Double(), nullable=True),
        sa.Column("waste", postgresql.JSONB(), nullable=False),
        sa.Column("steps", sa.ARRAY(sa.Double()), nullable=False),
        sa.Column("causes", postgresql.JSONB(), nullable=False),
        sa.PrimaryKeyConstraint("session_id", name="pk_session_figure"),
        sa.ForeignKeyConstraint(
            ["project_id", "session_id"],
            ["session.project_id", "session.id"],
            name="fk_session_figure_project_id_session_id_session",
            onupdate="CASCADE",
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["project_id", "job_id"],
            ["job.project_id", "job.id"],
            name="fk_session_figure_project_id_job_id_job",
            onupdate="CASCADE",
            ondelete="CASCADE",
        ),
    )
    op.create_index(
        "ix_session_figure_project_id_received_at", "session_figure", ["project_id", "received_at"]
    )
    op.create_index("ix_session_figure_job_id", "session_figure", ["job_id"])
    op.create_table(
        "weekly_summary",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("project_id", sa.Integer(), nullable=False),
        sa.Column("rule_id", sa.Uuid(), nullable=False),
        sa.Column("channel_id", sa.Uuid(), nullable=False),
        sa.Column("week", sa.Date(), nullable=False),
        sa.Column("since", sa.DateTime(timezone=True), nullable=False),
        sa.Column("until", sa.DateTime(timezone=True), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("next_attempt_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.Column("note", postgresql.JSONB(), nullable=True),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("error_code", sa.Text(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_weekly_summary"),
        sa.UniqueConstraint(
            "rule_id", "channel_id", "week", name="uq_weekly_summary_rule_id_channel_id_week"
        ),
        sa.CheckConstraint(
            "state IN ('waiting', 'sending', 'delivered', 'failed', 'superseded')",
            name=op.f("ck_weekly_summary_state"),
        ),
        sa.ForeignKeyConstraint(
            ["project_id", "channel_id"],
            ["alert_channel.project_id", "alert_channel.id"],
            name="fk_weekly_summary_project_id_channel_id_alert_channel",
            onupdate="CASCADE",
            ondelete="CASCADE",
        ),
    )
    op.create_index(
        "ix_weekly_summary_due",
        "weekly_summary",
        ["next_attempt_at"],
        postgresql_where=sa.text("state = 'waiting'"),
    )
    op.create_index("ix_weekly_summary_channel_id", "weekly_summary", ["channel_id"])
    op.create_table(
        "ingest_refusal",
        sa.Column("project_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("day", sa.Date(), nullable=False),
        sa.Column("code", sa.Text(), nullable=False),
        sa.Column("bodies", sa.BigInteger(), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("last_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("last_job", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("project_id", "day", "code", name="pk_ingest_refusal"),
        sa.ForeignKeyConstraint(
            ["project_id"],
            ["project.id"],
            name="fk_ingest_refusal_project_id_project",
            ondelete="CASCADE",
        ),
    )
    op.add_column(
        "report",
        sa.Column("in_figures", sa.Boolean(), server_default=sa.text("false"), nullable=False),
    )
    op.create_index(
        "ix_report_not_in_figures",
        "report",
        ["created_at"],
        postgresql_where=sa.text("NOT in_figures"),
    )


def downgrade() -> None:
    op.drop_index("ix_report_not_in_figures", table_name="report")
    op.drop_column("report", "in_figures")
    op.drop_table("ingest_refusal")
    op.drop_table("weekly_summary")
    op.drop_table("session_figure")
