"""Chunks: sessions that come in pieces."""

from __future__ import annotations

from typing import TYPE_CHECKING

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

if TYPE_CHECKING:
    from collections.abc import Sequence

revision: str = "0004"
down_revision: str | None = "0003"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    # Neither is known before the last chunk has come.
    op.alter_column("session", "content_sha256", nullable=True)
    op.alter_column("session", "trace_blob", nullable=True)
    op.create_table(
        "intake",
        sa.Column("session_id", sa.Uuid(), nullable=False),
        sa.Column("chunks", sa.Integer(), nullable=False),
        sa.Column("last_chunk_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("longest_gap_s", sa.Double(), nullable=False),
        sa.Column("refused_chunks", sa.Integer(), nullable=False),
        sa.Column("refused_bytes", sa.BigInteger(), nullable=False),
        sa.Column("sealed_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("sealed_by", sa.Text(), nullable=True),
        sa.Column("merged", postgresql.JSONB(astext_type=sa.Text()), nullable=True),
        sa.ForeignKeyConstraint(
            ["session_id"],
            ["session.id"],
            name=op.f("fk_intake_session_id_session"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("session_id", name=op.f("pk_intake")),
    )
    op.create_index(
        "ix_intake_open",
        "intake",
        ["last_chunk_at"],
        unique=False,
        postgresql_where=sa.text("sealed_at IS NULL"),
    )
    op.create_table(
        "chunk",
        sa.Column("session_id", sa.Uuid(), nullable=False),
        sa.Column("producer", sa.Text(), nullable=False),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("sha256", sa.LargeBinary(), nullable=False),
        sa.Column(
            "received_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.Column("final", sa.Boolean(), nullable=False),
        sa.Column("body_bytes", sa.BigInteger(), nullable=False),
        sa.Column("operations", sa.BigInteger(), nullable=False),
        sa.Column("cells", postgresql.ARRAY(sa.Integer()), nullable=False),
        sa.Column("blob", sa.Uuid(), nullable=True),
        sa.ForeignKeyConstraint(
            ["session_id"],
            ["intake.session_id"],
            name=op.f("fk_chunk_session_id_intake"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("session_id", "producer", "number", name=op.f("pk_chunk")),
    )


def downgrade() -> None:
    # What is not merged yet has no place in the older schema.
    op.execute(
        "DELETE FROM blob_part WHERE blob_id IN (SELECT blob FROM chunk WHERE blob IS NOT NULL)"
    )
    op.execute(
        "DELETE FROM task_run WHERE kind = 'analyze_session'"
        " AND subject_id IN (SELECT id FROM session WHERE trace_blob IS NULL)"
    )
    op.execute("DELETE FROM session WHERE trace_blob IS NULL")
    op.execute(
        "UPDATE session SET content_sha256 = sha256(id::text::bytea) WHERE content_sha256 IS NULL"
    )
    op.drop_table("chunk")
    op.drop_index(
        "ix_intake_open", table_name="intake", postgresql_where=sa.text("sealed_at IS NULL")
    )
    op.drop_table("intake")
    op.alter_column("session", "trace_blob", nullable=False)
    op.alter_column("session", "content_sha256", nullable=False)
