"""Where the GPUs were that earlier sessions named by their UUIDs, in batches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import sqlalchemy as sa

if TYPE_CHECKING:
    from collections.abc import Sequence

revision: str = "0011"
down_revision: str | None = "0010"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

# Sessions of one transaction.
BATCH: Final = 500
LAST: Final = """
SELECT max(CAST(id AS text)) FROM (
    SELECT id FROM session WHERE id > CAST(:after AS uuid) ORDER BY id LIMIT :batch
) AS batch
"""
# Earlier versions knew a GPU by one name only; a UUID was one.
FILL: Final = """
INSERT INTO gpu_place AS kept (project_id, gpu, host, guessed, first_seen, last_seen)
SELECT reading.project_id, one.gpu ->> 'gpu', reading.host, false,
    min(reading.received_at), max(reading.received_at)
FROM host_reading AS reading, jsonb_array_elements(reading.gpus) AS one (gpu)
WHERE reading.session_id > CAST(:after AS uuid) AND reading.session_id <= CAST(:last AS uuid)
    AND (one.gpu ->> 'gpu' LIKE 'GPU-%' OR one.gpu ->> 'gpu' LIKE 'MIG-%')
GROUP BY reading.project_id, one.gpu ->> 'gpu', reading.host
ORDER BY reading.project_id, one.gpu ->> 'gpu', reading.host
ON CONFLICT (gpu, host, project_id) DO UPDATE SET
    first_seen = least(kept.first_seen, excluded.first_seen),
    last_seen = greatest(kept.last_seen, excluded.last_seen)
"""


def backfill(connection: sa.Connection, after: str | None) -> str | None:
    """Fill one batch before `upgrade`; return after which session to go on, None at the end."""
    after = after or "00000000-0000-0000-0000-000000000000"
    last: str | None = connection.scalar(sa.text(LAST), {"after": after, "batch": BATCH})
    if last is not None:
        connection.execute(sa.text(FILL), {"after": after, "last": last})
    return last


def upgrade() -> None:
    """Change nothing more."""


def downgrade() -> None:
    """Leave the places, which their table takes along."""
