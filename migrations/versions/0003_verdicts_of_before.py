"""Verdicts of the sessions that the version before analyzed, in batches."""

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

# Sessions of one transaction.
BATCH: Final = 500
# By key, so that each batch looks at rows of its own. A session that is being analyzed is waited
# for, and its row then says what the version before wrote; triggers keep what it writes afterwards.
FILL: Final = """
WITH batch AS (
    SELECT id FROM session WHERE id > CAST(:after AS uuid) ORDER BY id LIMIT :batch
), filled AS (
    INSERT INTO session_verdict (project_id, session_id, document)
    SELECT session.project_id, session.id, verdict_of_before(session)
    FROM session JOIN batch USING (id)
    WHERE session.headline IS NOT NULL FOR SHARE OF session
    ON CONFLICT (session_id) DO NOTHING
)
SELECT CAST(id AS text) FROM batch ORDER BY id DESC LIMIT 1
"""


def backfill(connection: sa.Connection, after: str | None) -> str | None:
    """Fill one batch before `upgrade`; return after which session to go on, None at the end."""
    last: str | None = connection.scalar(
        sa.text(FILL),
        {"after": after or "00000000-0000-0000-0000-000000000000", "batch": BATCH},
    )
    return last


def upgrade() -> None:
    # Plans that take the table for empty are slow until it is looked at: pages come at once.
    op.execute("ANALYZE session_verdict")


def downgrade() -> None:
    """Leave the verdicts to the table's own revision."""
