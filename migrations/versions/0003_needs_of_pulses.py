"""The generation of the formats of an attempt's pulse, and the rule of claims."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import sqlalchemy as sa
from alembic import op

if TYPE_CHECKING:
    from collections.abc import Sequence

revision: str = "0003"
down_revision: str | None = "0002"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

TRIGGERS: Final = """
-- Refuses a claim by a version that does not read the row's data: the UPDATE changes no row, as if
-- another worker had claimed it. 0.2.0 reads generation 1 and does not set `paceline.reads`.
CREATE FUNCTION leave_to_newer_version() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.needs > coalesce(nullif(current_setting('paceline.reads', true), '')::int, 1) THEN
        RETURN NULL;
    END IF;
    RETURN NEW;
END
$$;
CREATE TRIGGER leave_to_newer_version BEFORE UPDATE OF claim_token ON pulse_state FOR EACH ROW
    WHEN (NEW.claim_token IS NOT NULL AND NEW.needs > 1)
    EXECUTE FUNCTION leave_to_newer_version();
"""


def upgrade() -> None:
    op.add_column(
        "pulse_state", sa.Column("needs", sa.SmallInteger(), server_default="1", nullable=False)
    )
    op.execute(TRIGGERS)


def downgrade() -> None:
    op.execute("DROP TRIGGER leave_to_newer_version ON pulse_state")
    op.execute("DROP FUNCTION leave_to_newer_version()")
    op.drop_column("pulse_state", "needs")
