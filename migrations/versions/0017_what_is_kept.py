"""What is kept: rules of each project, pins, archived jobs, and what was taken away.

Every step is one that the previous version of the program does not notice: columns that may be
null or have a default, tables that it does not know, and a check that falls. None reads a table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

if TYPE_CHECKING:
    from collections.abc import Sequence

revision: str = "0017"
down_revision: str | None = "0016"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def _time(name: str) -> sa.Column[object]:
    return sa.Column(name, sa.DateTime(timezone=True), nullable=True)


def upgrade() -> None:
    op.create_table(
        "retention",
        sa.Column("project_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("rules", postgresql.JSONB(), nullable=False),
        _time("looked_at"),
        sa.ForeignKeyConstraint(
            ["project_id"],
            ["project.id"],
            name=op.f("fk_retention_project_id_project"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("project_id", name=op.f("pk_retention")),
    )
    op.create_table(
        "doomed_blob",
        sa.Column("blob_id", sa.Uuid(), nullable=False),
        sa.Column("project_id", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(
            ["project_id"],
            ["project.id"],
            name=op.f("fk_doomed_blob_project_id_project"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("blob_id", name=op.f("pk_doomed_blob")),
    )
    op.add_column(
        "session",
        sa.Column("pinned", sa.Boolean(), server_default=sa.text("false"), nullable=False),
    )
    op.add_column("session", _time("trace_removed_at"))
    op.add_column("session", _time("report_removed_at"))
    op.add_column("job", _time("archived_at"))
    op.alter_column("report", "heatmap_blob", nullable=True)


def downgrade() -> None:
    # A report without heatmaps cannot be shown by what stood before.
    op.execute("DELETE FROM report WHERE heatmap_blob IS NULL")
    op.alter_column("report", "heatmap_blob", nullable=False)
    op.drop_column("job", "archived_at")
    op.drop_column("session", "report_removed_at")
    op.drop_column("session", "trace_removed_at")
    op.drop_column("session", "pinned")
    op.drop_table("doomed_blob")
    op.drop_table("retention")
