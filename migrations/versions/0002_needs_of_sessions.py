"""The generation of the formats of a session's trace."""

from __future__ import annotations

from typing import TYPE_CHECKING

import sqlalchemy as sa
from alembic import op

if TYPE_CHECKING:
    from collections.abc import Sequence

revision: str = "0002"
down_revision: str | None = "0001"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.add_column(
        "session", sa.Column("needs", sa.SmallInteger(), server_default="1", nullable=False)
    )


def downgrade() -> None:
    op.drop_column("session", "needs")
