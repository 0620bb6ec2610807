"""People who do not get in and stay in the list; attempts by project; a log that stays."""

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
    # Rows were guarded since 0011; without this all of them could go at once.
    op.execute(
        "CREATE TRIGGER audit_entry_is_not_emptied BEFORE TRUNCATE ON audit_entry"
        " FOR EACH STATEMENT EXECUTE FUNCTION audit_entry_stays()"
    )
    op.create_index("ix_attempt_project_id", "attempt", ["project_id"])


def downgrade() -> None:
    op.drop_index("ix_attempt_project_id", table_name="attempt")
    op.execute("DROP TRIGGER audit_entry_is_not_emptied ON audit_entry")
    # Without the column they would get in again.
    op.execute("DELETE FROM person WHERE disabled_at IS NOT NULL")
    op.drop_column("person", "disabled_at")
