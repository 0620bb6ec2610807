"""Labels of the sessions of before revision 0021, in batches; and an index that 0021 replaced."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import sqlalchemy as sa
from alembic import op

if TYPE_CHECKING:
    from collections.abc import Sequence

revision: str = "0024"
down_revision: str | None = "0023"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

# Sessions of one transaction.
BATCH: Final = 1000


def backfill(connection: sa.Connection, after: str | None) -> str | None:
    """Fill one batch before `upgrade`; return after which session to go on, None at the end."""
    # By key, so that each batch looks at rows of its own.
    last: str | None = connection.scalar(
        sa.text(
            """
            WITH batch AS (
                SELECT id FROM session WHERE id > CAST(:after AS uuid) ORDER BY id LIMIT :batch
            ), filled AS (
                UPDATE session SET labels = meta->'labels' FROM batch
                WHERE session.id = batch.id AND session.labels IS NULL AND meta->'labels' <> '{}'
            )
            SELECT CAST(id AS text) FROM batch ORDER BY id DESC LIMIT 1
            """
        ),
        {"after": after or "00000000-0000-0000-0000-000000000000", "batch": BATCH},
    )
    return last


def upgrade() -> None:
    # Where 0021 came from an earlier state of the program, it was dropped then.
    op.drop_index(
        "ix_host_reading_project_id_received_at", table_name="host_reading", if_exists=True
    )


def downgrade() -> None:
    op.create_index(
        "ix_host_reading_project_id_received_at", "host_reading", ["project_id", "received_at"]
    )
