"""The generation of the formats that a task run reads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import sqlalchemy as sa
from alembic import op

if TYPE_CHECKING:
    from collections.abc import Sequence

revision: str = "0005"
down_revision: str | None = "0004"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

TRIGGERS: Final = """
CREATE TRIGGER leave_to_newer_version BEFORE UPDATE OF claim_token ON task_run FOR EACH ROW
    WHEN (NEW.claim_token IS NOT NULL AND NEW.needs > 1)
    EXECUTE FUNCTION leave_to_newer_version();

-- An analysis that a server of an earlier version queues needs what the session's trace needs.
CREATE FUNCTION needs_of_session() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.needs := greatest(
        NEW.needs, (SELECT session.needs FROM session WHERE session.id = NEW.subject_id)
    );
    RETURN NEW;
END
$$;
CREATE TRIGGER needs_of_session BEFORE INSERT ON task_run FOR EACH ROW
    WHEN (NEW.kind = 'analyze_session')
    EXECUTE FUNCTION needs_of_session();
"""


def upgrade() -> None:
    op.add_column(
        "task_run", sa.Column("needs", sa.SmallInteger(), server_default="1", nullable=False)
    )
    op.execute(TRIGGERS)


def downgrade() -> None:
    op.execute("DROP TRIGGER needs_of_session ON task_run")
    op.execute("DROP FUNCTION needs_of_session()")
    op.execute("DROP TRIGGER leave_to_newer_version ON task_run")
    op.drop_column("task_run", "needs")
