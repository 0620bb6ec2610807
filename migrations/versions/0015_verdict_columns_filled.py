"""What sessions lose whose verdicts were stored before 0014, in batches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import sqlalchemy as sa
from alembic import op

if TYPE_CHECKING:
    from collections.abc import Sequence

revision: str = "0015"
down_revision: str | None = "0014"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

# Verdicts of one transaction.
BATCH: Final = 500
LAST: Final = """
SELECT max(CAST(session_id AS text)) FROM (
    SELECT session_id FROM session_verdict
    WHERE session_id > CAST(:after AS uuid) ORDER BY session_id LIMIT :batch
) AS batch
"""
# The trigger of 0014 writes the columns; the document, which is stored apart, stays where it is.
FILL: Final = """
UPDATE session_verdict SET document = document
WHERE session_id > CAST(:after AS uuid) AND session_id <= CAST(:last AS uuid)
    AND lost_by_cause IS NULL
"""


def backfill(connection: sa.Connection, after: str | None) -> str | None:
    """Fill one batch before `upgrade`; return after which session to go on, None at the end."""
    after = after or "00000000-0000-0000-0000-000000000000"
    last: str | None = connection.scalar(sa.text(LAST), {"after": after, "batch": BATCH})
    if last is not None:
        # What the version before reads of verdicts does not change.
        connection.execute(sa.text("SET LOCAL paceline.filling = 'on'"))
        connection.execute(sa.text(FILL), {"after": after, "last": last})
    return last


def upgrade() -> None:
    # Plans know nothing of the columns until the table is looked at: pages come at once.
    op.execute("ANALYZE session_verdict")


def downgrade() -> None:
    """Leave the columns, which 0014 takes along."""
