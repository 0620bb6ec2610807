"""Tokens for some jobs of a project."""

from __future__ import annotations

from typing import TYPE_CHECKING

from alembic import op

if TYPE_CHECKING:
    from collections.abc import Sequence

revision: str = "0006"
down_revision: str | None = "0005"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.execute("ALTER TABLE token ADD COLUMN jobs text[]")


def downgrade() -> None:
    # Without the column these tokens would be valid for all jobs.
    op.execute("UPDATE token SET revoked_at = now() WHERE jobs IS NOT NULL AND revoked_at IS NULL")
    op.execute("ALTER TABLE token DROP COLUMN jobs")
