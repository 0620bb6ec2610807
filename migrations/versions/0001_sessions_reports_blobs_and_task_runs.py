"""Sessions, reports, blobs and task runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

if TYPE_CHECKING:
    from collections.abc import Sequence

revision: str = "0001"
down_revision: str | None = None
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.create_table(
        "blob_part",
        sa.Column("blob_id", sa.Uuid(), nullable=False),
        sa.Column("part", sa.Integer(), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("blob_id", "part", name=op.f("pk_blob_part")),
    )
    # Traces are compressed already: trying again costs CPU on every write and gains nothing.
    op.execute("ALTER TABLE blob_part ALTER COLUMN data SET STORAGE EXTERNAL")
    # A part of 4 MiB is one row here and 2,100 in the TOAST table. The defaults wait until 20 % of
    # the table is dead, which with 100 GB of traces means 20 GB of space that nobody gets back.
    op.execute(
        """
        ALTER TABLE blob_part SET (
            autovacuum_vacuum_scale_factor = 0,
            autovacuum_vacuum_threshold = 64,
            toast.autovacuum_vacuum_scale_factor = 0,
            toast.autovacuum_vacuum_threshold = 100000
        )
        """
    )
    op.create_table(
        "job",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_job")),
        sa.UniqueConstraint("name", name=op.f("uq_job_name")),
    )
    op.create_table(
        "task_run",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("subject_id", sa.Uuid(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("claim_token", sa.Uuid(), nullable=True),
        sa.Column("lease_until", sa.DateTime(timezone=True), nullable=True),
        sa.Column("error_code", sa.Text(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.Column("published_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint(
            "state IN ('queued', 'running', 'done', 'dead')", name=op.f("ck_task_run_state")
        ),
        sa.CheckConstraint(
            "(state = 'running') = (claim_token IS NOT NULL) "
            "AND (claim_token IS NULL) = (lease_until IS NULL)",
            name=op.f("ck_task_run_claim"),
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_task_run")),
    )
    op.create_index(
        "ix_task_run_due",
        "task_run",
        ["state", "lease_until"],
        unique=False,
        postgresql_where=sa.text("state IN ('queued', 'running')"),
    )
    op.create_index(
        "uq_task_run_open",
        "task_run",
        ["kind", "subject_id"],
        unique=True,
        postgresql_where=sa.text("state IN ('queued', 'running')"),
    )
    op.create_table(
        "worker_heartbeat",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column("queues", sa.Text(), nullable=False),
        sa.Column(
            "started_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.Column(
            "seen_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_worker_heartbeat")),
    )
    op.create_table(
        "session",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("job_id", sa.BigInteger(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("content_sha256", sa.LargeBinary(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column(
            "received_at",
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
        sa.Column("meta", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("dp", sa.Integer(), nullable=False),
        sa.Column("pp", sa.Integer(), nullable=False),
        sa.Column("tp", sa.Integer(), nullable=False),
        sa.Column("cp", sa.Integer(), nullable=False),
        sa.Column("vpp", sa.Integer(), nullable=False),
        sa.Column("world", sa.Integer(), nullable=False),
        sa.Column("trace_format", sa.Text(), nullable=False),
        sa.Column("body_bytes", sa.BigInteger(), nullable=False),
        sa.Column("operations", sa.BigInteger(), nullable=False),
        sa.Column("steps", sa.Integer(), nullable=False),
        sa.Column("trace_blob", sa.Uuid(), nullable=False),
        sa.Column("reason_code", sa.Text(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("reason_detail", postgresql.JSONB(astext_type=sa.Text()), nullable=True),
        sa.Column("slowdown", sa.Double(), nullable=True),
        sa.Column("slowdown_low", sa.Double(), nullable=True),
        sa.Column("slowdown_high", sa.Double(), nullable=True),
        sa.Column("waste", sa.Double(), nullable=True),
        sa.Column("gpu_hours_lost", sa.Double(), nullable=True),
        sa.Column("discrepancy", sa.Double(), nullable=True),
        sa.Column("headline", postgresql.JSONB(astext_type=sa.Text()), nullable=True),
        sa.CheckConstraint(
            "state IN ('open', 'sealed', 'queued', 'analyzing', 'analyzed', 'no_verdict', "
            "'discarded', 'failed')",
            name=op.f("ck_session_state"),
        ),
        sa.ForeignKeyConstraint(
            ["job_id"], ["job.id"], name=op.f("fk_session_job_id_job"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_session")),
        sa.UniqueConstraint(
            "job_id", "attempt", "number", name=op.f("uq_session_job_id_attempt_number")
        ),
        sa.UniqueConstraint(
            "job_id", "content_sha256", name=op.f("uq_session_job_id_content_sha256")
        ),
    )
    op.create_index("ix_session_received_at_id", "session", ["received_at", "id"], unique=False)
    op.create_index(
        "ix_session_state_received_at", "session", ["state", "received_at"], unique=False
    )
    op.create_table(
        "report",
        sa.Column("session_id", sa.Uuid(), nullable=False),
        sa.Column("document_blob", sa.Uuid(), nullable=False),
        sa.Column("heatmap_blob", sa.Uuid(), nullable=False),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.ForeignKeyConstraint(
            ["session_id"],
            ["session.id"],
            name=op.f("fk_report_session_id_session"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("session_id", name=op.f("pk_report")),
    )


def downgrade() -> None:
    op.drop_table("report")
    op.drop_index("ix_session_state_received_at", table_name="session")
    op.drop_index("ix_session_received_at_id", table_name="session")
    op.drop_table("session")
    op.drop_table("worker_heartbeat")
    op.drop_index(
        "uq_task_run_open",
        table_name="task_run",
        postgresql_where=sa.text("state IN ('queued', 'running')"),
    )
    op.drop_index(
        "ix_task_run_due",
        table_name="task_run",
        postgresql_where=sa.text("state IN ('queued', 'running')"),
    )
    op.drop_table("task_run")
    op.drop_table("job")
    op.drop_table("blob_part")
