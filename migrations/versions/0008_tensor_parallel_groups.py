"""Tensor-parallel groups: times that jobs report, the plans they got, and their switch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

if TYPE_CHECKING:
    from collections.abc import Sequence

revision: str = "0008"
down_revision: str | None = "0007"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.create_table(
        "tensor_group",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("job_id", sa.BigInteger(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.Column("world_size", sa.Integer(), nullable=False),
        sa.Column("columns", sa.Integer(), nullable=False),
        sa.Column("unit", sa.Integer(), nullable=False),
        sa.Column("max_gamma", sa.Double(), nullable=False),
        sa.Column("apply", sa.Boolean(), nullable=False),
        sa.Column("methods", sa.ARRAY(sa.Text()), nullable=False),
        sa.Column("costs", postgresql.JSONB(astext_type=sa.Text()), nullable=True),
        sa.Column("sizes", postgresql.JSONB(astext_type=sa.Text()), nullable=True),
        sa.Column("ranks", sa.ARRAY(sa.Integer()), nullable=True),
        sa.Column("hosts", sa.ARRAY(sa.Text()), nullable=True),
        sa.Column("reports", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=True),
        sa.Column("reported_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("over", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("calm", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("drifted", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("missed", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("rung", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("since_step", sa.BigInteger(), nullable=True),
        sa.Column("replace_node", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("refused", sa.ARRAY(sa.Text()), server_default=sa.text("'{}'"), nullable=False),
        sa.Column("version", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.CheckConstraint("world_size >= 2", name=op.f("ck_tensor_group_world_size")),
        sa.ForeignKeyConstraint(
            ["job_id"], ["job.id"], name=op.f("fk_tensor_group_job_id_job"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tensor_group")),
        sa.UniqueConstraint(
            "job_id", "name", "attempt", name=op.f("uq_tensor_group_job_id_name_attempt")
        ),
    )
    op.create_table(
        "tensor_switch",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("job_id", sa.BigInteger(), nullable=False),
        sa.Column(
            "at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False
        ),
        sa.Column("by", sa.Text(), nullable=False),
        sa.Column("mode", sa.Text(), nullable=False),
        sa.Column("max_gamma", sa.Double(), nullable=True),
        sa.Column("expires_after_steps", sa.Integer(), nullable=False),
        sa.CheckConstraint("mode IN ('advise', 'apply')", name=op.f("ck_tensor_switch_mode")),
        sa.ForeignKeyConstraint(
            ["job_id"], ["job.id"], name=op.f("fk_tensor_switch_job_id_job"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tensor_switch")),
    )
    op.create_index("ix_tensor_switch_job_id_id", "tensor_switch", ["job_id", "id"], unique=False)
    op.create_table(
        "tensor_plan",
        sa.Column("group_id", sa.BigInteger(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("method", sa.Text(), nullable=False),
        sa.Column("criterion", sa.Text(), nullable=True),
        sa.Column("apply", sa.Boolean(), nullable=False),
        sa.Column("budget", sa.Double(), nullable=False),
        sa.Column("ranks", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("slowest_time_s", sa.Double(), nullable=False),
        sa.Column("fastest_time_s", sa.Double(), nullable=False),
        sa.Column("predicted_time_s", sa.Double(), nullable=False),
        sa.Column("extra_bytes", sa.BigInteger(), nullable=True),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.Column("created_step", sa.BigInteger(), nullable=False),
        sa.Column("expires_step", sa.BigInteger(), nullable=False),
        sa.Column(
            "acknowledged", sa.ARRAY(sa.Integer()), server_default=sa.text("'{}'"), nullable=False
        ),
        sa.Column("applied_step", sa.BigInteger(), nullable=True),
        sa.Column("ended_step", sa.BigInteger(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("measured_time_s", sa.Double(), nullable=True),
        sa.Column("measured_reports", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.CheckConstraint(
            "state IN ('advised', 'offered', 'in_force', 'refused', 'withdrawn', 'superseded',"
            " 'expired')",
            name=op.f("ck_tensor_plan_state"),
        ),
        sa.ForeignKeyConstraint(
            ["group_id"],
            ["tensor_group.id"],
            name=op.f("fk_tensor_plan_group_id_tensor_group"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("group_id", "version", name=op.f("pk_tensor_plan")),
    )
    op.create_table(
        "tensor_report",
        sa.Column("group_id", sa.BigInteger(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column(
            "received_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.Column("times_s", sa.ARRAY(sa.Double()), nullable=False),
        sa.Column("matmul_s", sa.ARRAY(sa.Double()), nullable=False),
        sa.Column("free_times_s", sa.ARRAY(sa.Double()), nullable=False),
        sa.Column("free_matmul_s", sa.ARRAY(sa.Double()), nullable=False),
        sa.Column("measured_step_s", sa.Double(), nullable=True),
        sa.Column("plan_version", sa.Integer(), nullable=True),
        sa.ForeignKeyConstraint(
            ["group_id"],
            ["tensor_group.id"],
            name=op.f("fk_tensor_report_group_id_tensor_group"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("group_id", "number", name=op.f("pk_tensor_report")),
    )


def downgrade() -> None:
    op.drop_table("tensor_report")
    op.drop_table("tensor_plan")
    op.drop_index("ix_tensor_switch_job_id_id", table_name="tensor_switch")
    op.drop_table("tensor_switch")
    op.drop_table("tensor_group")
