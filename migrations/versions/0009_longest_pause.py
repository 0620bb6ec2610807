"""The longest pause between chunks that a session's producers expect."""

from __future__ import annotations

from typing import TYPE_CHECKING

import sqlalchemy as sa
from alembic import op

if TYPE_CHECKING:
    from collections.abc import Sequence

revision: str = "0009"
down_revision: str | None = "0008"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.add_column(
        "intake", sa.Column("pause_s", sa.Float(), server_default=sa.text("0"), nullable=False)
    )


def downgrade() -> None:
    op.drop_column("intake", "pause_s")
