"""Requests for sessions of every rank."""

from __future__ import annotations

from typing import TYPE_CHECKING

from alembic import op

if TYPE_CHECKING:
    from collections.abc import Sequence

revision: str = "0011"
down_revision: str | None = "0010"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.execute("ALTER TABLE recording_request ADD COLUMN every_rank boolean DEFAULT false NOT NULL")


def downgrade() -> None:
    op.execute("ALTER TABLE recording_request DROP COLUMN every_rank")
