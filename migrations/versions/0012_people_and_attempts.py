"""People who do not get in any more, and stay in the list; attempts counted by project."""

from __future__ import annotations

from typing import TYPE_CHECKING

import sqlalchemy as sa
from alembic import op

if TYPE_CHECKING:
    from collections.abc import Sequence

revision: str = "0012"
down_revision: str | None = "0011"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.add_column("person", sa.Column("disabled_at", sa.DateTime(timezone=True), nullable=True))
    op.create_index("ix_attempt_project_id", "attempt", ["project_id"])


def downgrade() -> None:
    op.drop_index("ix_attempt_project_id", table_name="attempt")
    # Without the column they would get in again.
    op.execute("DELETE FROM person WHERE disabled_at IS NOT NULL")
    op.drop_column("person", "disabled_at")
