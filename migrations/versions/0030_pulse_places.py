"""Where the ranks of a pulse are, and what their GPUs say of themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from alembic import op

if TYPE_CHECKING:
    from collections.abc import Sequence

revision: str = "0030"
down_revision: str | None = "0039"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.execute(
        "ALTER TABLE pulse_state ADD COLUMN places bytea, ADD COLUMN hardware bytea;"
        " ALTER TABLE pulse_state ALTER COLUMN places SET STORAGE EXTERNAL,"
        " ALTER COLUMN hardware SET STORAGE EXTERNAL"
    )


def downgrade() -> None:
    op.execute("ALTER TABLE pulse_state DROP COLUMN places, DROP COLUMN hardware")
