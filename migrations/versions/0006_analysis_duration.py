"""How long analyses take: counts that no deletion of task runs lowers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import sqlalchemy as sa
from alembic import op

if TYPE_CHECKING:
    from collections.abc import Sequence

revision: str = "0006"
down_revision: str | None = "0005"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.create_table(
        "analysis_duration",
        sa.Column("limit_s", sa.Float(), nullable=False),
        sa.Column("analyses", sa.BigInteger(), nullable=False),
        sa.Column("total_s", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("limit_s", name="pk_analysis_duration"),
    )


def downgrade() -> None:
    op.drop_table("analysis_duration")
