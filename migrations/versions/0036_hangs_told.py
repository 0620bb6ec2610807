"""Actions that tell of jobs that hang: of no machine, and of several jobs at a time.

Revision ID: 0036
Revises: 0035
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from alembic import op

if TYPE_CHECKING:
    from collections.abc import Sequence

revision: str = "0036"
down_revision: str | None = "0035"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

OPEN = """
CREATE UNIQUE INDEX uq_machine_action_open ON machine_action (project_id, kind, host)
    WHERE state IN ('dry_run', 'asked', 'held', 'waiting', 'done', 'releasing')
"""


def upgrade() -> None:
    op.execute("ALTER TABLE machine_action ADD COLUMN hang jsonb")
    op.execute("DROP INDEX uq_machine_action_open")
    op.execute(f"{OPEN} AND hang IS NULL")


def downgrade() -> None:
    """Forget what was said about jobs."""
    op.execute("DELETE FROM machine_action WHERE hang IS NOT NULL")
    op.execute("DROP INDEX uq_machine_action_open")
    op.execute("ALTER TABLE machine_action DROP COLUMN hang")
    op.execute(OPEN)
