"""The fleet at scale: labels beside the metadata, and what lists of jobs and hosts look up.

This is the part that expands: what the version before writes gets its labels, too. Revision 0024
fills those of before, and drops what is needed no more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

if TYPE_CHECKING:
    from collections.abc import Sequence

revision: str = "0021"
down_revision: str | None = "0020"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    op.add_column("session", sa.Column("labels", postgresql.JSONB(), nullable=True))
    # A version that knows no labels writes the metadata alone.
    op.execute(
        """
        CREATE FUNCTION session_labels() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            NEW.labels := NEW.meta->'labels';
            RETURN NEW;
        END
        $$
        """
    )
    op.execute(
        """
        CREATE TRIGGER session_labels_when_received BEFORE INSERT ON session
        FOR EACH ROW WHEN (NEW.labels IS NULL) EXECUTE FUNCTION session_labels()
        """
    )
    op.execute(
        """
        CREATE TRIGGER session_labels_when_joined BEFORE UPDATE OF meta ON session
        FOR EACH ROW WHEN (
            NEW.labels IS NOT DISTINCT FROM OLD.labels
            AND NEW.meta->'labels' IS DISTINCT FROM OLD.meta->'labels'
        ) EXECUTE FUNCTION session_labels()
        """
    )
    op.create_index("ix_session_job_id_received_at", "session", ["job_id", "received_at"])
    op.create_index(
        "ix_host_reading_of_all",
        "host_reading",
        ["project_id", "received_at"],
        postgresql_include=["host", "job_id", "ranks", "slowdown", "computing"],
    )
    op.create_index(
        "ix_host_reading_of_slow",
        "host_reading",
        ["project_id", "received_at"],
        postgresql_where=sa.text("cause IS NOT NULL"),
    )


def downgrade() -> None:
    op.drop_index("ix_host_reading_of_slow", table_name="host_reading")
    op.drop_index("ix_host_reading_of_all", table_name="host_reading")
    op.drop_index("ix_session_job_id_received_at", table_name="session")
    op.execute("DROP TRIGGER session_labels_when_joined ON session")
    op.execute("DROP TRIGGER session_labels_when_received ON session")
    op.execute("DROP FUNCTION session_labels()")
    op.drop_column("session", "labels")
