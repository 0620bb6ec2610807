"""Notices of ranks that always have more tokens than their peers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from alembic import op

if TYPE_CHECKING:
    from collections.abc import Sequence

revision: str = "0012"
down_revision: str | None = "0011"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.execute(
        """
        ALTER TABLE pulse_notice DROP CONSTRAINT ck_pulse_notice_kind;
        ALTER TABLE pulse_notice ADD CONSTRAINT ck_pulse_notice_kind CHECK (kind IN (
            'slow_rank', 'slow_job', 'spells', 'drift', 'imbalance', 'hang', 'silent'));
        """
    )


def downgrade() -> None:
    op.execute(
        """
        DELETE FROM pulse_notice WHERE kind = 'imbalance';
        ALTER TABLE pulse_notice DROP CONSTRAINT ck_pulse_notice_kind;
        ALTER TABLE pulse_notice ADD CONSTRAINT ck_pulse_notice_kind CHECK (kind IN (
            'slow_rank', 'slow_job', 'spells', 'drift', 'hang', 'silent'));
        """
    )
