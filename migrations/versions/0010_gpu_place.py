"""Where each GPU was seen."""

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
        "gpu_place",
        sa.Column("gpu", sa.Text(), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("guessed", sa.Boolean(), nullable=False),
        sa.Column("first_seen", sa.DateTime(timezone=True), nullable=False),
        sa.Column("last_seen", sa.DateTime(timezone=True), nullable=False),
        sa.Column("project_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.ForeignKeyConstraint(
            ["project_id"],
            ["project.id"],
            name=op.f("fk_gpu_place_project_id_project"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("gpu", "host", "project_id", name=op.f("pk_gpu_place")),
    )
    op.create_index("ix_gpu_place_project_id_host", "gpu_place", ["project_id", "host"])


def downgrade() -> None:
    op.drop_table("gpu_place")
