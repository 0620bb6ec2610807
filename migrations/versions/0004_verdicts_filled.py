"""Verdicts of the sessions that the version before analyzed, in batches."""

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

# Sessions of one transaction.
BATCH: Final = 500
LAST: Final = """
SELECT max(CAST(id AS text)) FROM (
    SELECT id FROM session WHERE id > CAST(:after AS uuid) ORDER BY id LIMIT :batch
) AS batch
"""
# A session that is being analyzed is waited for, and its row then says what the version before
# wrote; triggers keep what it writes afterwards.
FILL: Final = """
INSERT INTO session_verdict (project_id, session_id, document)
SELECT project_id, id, verdict_of_before(session) FROM session
WHERE id > CAST(:after AS uuid) AND id <= CAST(:last AS uuid) AND headline IS NOT NULL
FOR SHARE OF session
ON CONFLICT (session_id) DO NOTHING
"""


def backfill(connection: sa.Connection, after: str | None) -> str | None:
    """Fill one batch before `upgrade`; return after which session to go on, None at the end."""
    after = after or "00000000-0000-0000-0000-000000000000"
    last: str | None = connection.scalar(sa.text(LAST), {"after": after, "batch": BATCH})
    if last is not None:
        connection.execute(sa.text("SET LOCAL paceline.filling = 'on'"))
        connection.execute(sa.text(FILL), {"after": after, "last": last})
    return last


def upgrade() -> None:
    # Plans that take the table for empty are slow until it is looked at: pages come at once.
    op.execute("ANALYZE session_verdict")


def downgrade() -> None:
    """Leave the verdicts, which their table takes along."""
