"""Names that schedulers have for a session's processes on a host."""

from __future__ import annotations

from typing import TYPE_CHECKING

from alembic import op

if TYPE_CHECKING:
    from collections.abc import Sequence

revision: str = "0008"
down_revision: str | None = "0007"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.execute("ALTER TABLE host_reading ADD COLUMN launched_as jsonb")


def downgrade() -> None:
    op.execute("ALTER TABLE host_reading DROP COLUMN launched_as")
