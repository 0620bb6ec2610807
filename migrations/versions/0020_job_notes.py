"""Notes on a job's time axis."""

from __future__ import annotations

from typing import TYPE_CHECKING

import sqlalchemy as sa
from alembic import op

if TYPE_CHECKING:
    from collections.abc import Sequence

revision: str = "0020"
down_revision: str | None = "0019"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.create_table(
        "job_note",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("project_id", sa.Integer(), nullable=False),
        sa.Column("job_id", sa.BigInteger(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("words", sa.Text(), nullable=False),
        sa.Column("author", sa.Text(), nullable=False),
        sa.Column(
            "noted_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.PrimaryKeyConstraint("id", name="pk_job_note"),
        sa.CheckConstraint(
            "kind IN ('note', 'deployment', 'config_change', 'checkpoint', 'maintenance')",
            name=op.f("ck_job_note_kind"),
        ),
        sa.ForeignKeyConstraint(
            ["project_id", "job_id"],
            ["job.project_id", "job.id"],
            name="fk_job_note_project_id_job_id_job",
            onupdate="CASCADE",
            ondelete="CASCADE",
        ),
    )
    op.create_index("ix_job_note_job_id_at", "job_note", ["job_id", "at"])
    op.create_index("ix_job_note_project_id", "job_note", ["project_id"])


def downgrade() -> None:
    op.drop_table("job_note")
