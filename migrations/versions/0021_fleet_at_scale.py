"""The fleet at scale: labels beside the metadata, and what lists of jobs and hosts look up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

if TYPE_CHECKING:
    from collections.abc import Sequence

revision: str = "0021"
down_revision: str | None = "0020"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

# Sessions of one statement.
BATCH: Final = 1000


def upgrade() -> None:
    op.add_column("session", sa.Column("labels", postgresql.JSONB(), nullable=True))
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
    op.drop_index("ix_host_reading_project_id_received_at", table_name="host_reading")
    # By key, so that each looks at rows of its own and none twice.
    last = "00000000-0000-0000-0000-000000000000"
    while last is not None:
        last = op.get_bind().scalar(
            sa.text(
                """
                WITH batch AS (
                    SELECT id FROM session WHERE id > CAST(:last AS uuid) ORDER BY id LIMIT :batch
                ), filled AS (
                    UPDATE session SET labels = meta->'labels'
                    FROM batch WHERE session.id = batch.id AND meta->'labels' <> '{}'
                )
                SELECT CAST(max(CAST(id AS text)) AS text) FROM batch
                """
            ),
            {"last": last, "batch": BATCH},
        )


def downgrade() -> None:
    op.create_index(
        "ix_host_reading_project_id_received_at", "host_reading", ["project_id", "received_at"]
    )
    op.drop_index("ix_host_reading_of_slow", table_name="host_reading")
    op.drop_index("ix_host_reading_of_all", table_name="host_reading")
    op.drop_index("ix_session_job_id_received_at", table_name="session")
    op.drop_column("session", "labels")
