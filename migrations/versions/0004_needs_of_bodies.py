"""The generation of the formats of bodies in the inbox."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import sqlalchemy as sa
from alembic import op

if TYPE_CHECKING:
    from collections.abc import Sequence

revision: str = "0004"
down_revision: str | None = "0003"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

TRIGGERS: Final = """
CREATE TRIGGER leave_to_newer_version BEFORE UPDATE OF claim_token ON inbox FOR EACH ROW
    WHEN (NEW.claim_token IS NOT NULL AND NEW.needs > 1)
    EXECUTE FUNCTION leave_to_newer_version();

-- A waiting body makes its session or its attempt wait for a version that reads the body. A worker
-- of an earlier version loses its claim of the attempt.
CREATE FUNCTION newer_body_waits() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.kind = 'chunk' THEN
        UPDATE session SET needs = NEW.needs WHERE id = NEW.session_id AND needs < NEW.needs;
    ELSIF NOT EXISTS (
        SELECT FROM pulse_state
        WHERE job_id = NEW.job_id AND attempt = NEW.attempt AND needs >= NEW.needs
    ) THEN
        INSERT INTO pulse_state AS kept (project_id, job_id, attempt, needs)
        VALUES (NEW.project_id, NEW.job_id, NEW.attempt, NEW.needs)
        ON CONFLICT (job_id, attempt) DO UPDATE SET
            needs = excluded.needs, claim_token = NULL, lease_until = NULL
        WHERE kept.needs < excluded.needs;
    END IF;
    RETURN NULL;
END
$$;
CREATE TRIGGER newer_body_waits AFTER INSERT OR UPDATE OF body ON inbox FOR EACH ROW
    WHEN (NEW.needs > 1 AND NEW.body IS NOT NULL)
    EXECUTE FUNCTION newer_body_waits();
"""


def upgrade() -> None:
    op.add_column(
        "inbox", sa.Column("needs", sa.SmallInteger(), server_default="1", nullable=False)
    )
    op.execute(TRIGGERS)


def downgrade() -> None:
    op.execute("DROP TRIGGER newer_body_waits ON inbox")
    op.execute("DROP FUNCTION newer_body_waits()")
    op.execute("DROP TRIGGER leave_to_newer_version ON inbox")
    op.drop_column("inbox", "needs")
