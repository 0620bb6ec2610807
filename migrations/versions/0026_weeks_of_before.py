"""Sums of the readings of before revision 0025, in batches; and hosts that were not at fault.

Sessions in which a cause of the job's own was held against a host are read into the ledger anew.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import sqlalchemy as sa
from alembic import op

if TYPE_CHECKING:
    from collections.abc import Sequence

revision: str = "0026"
down_revision: str | None = "0025"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

# Jobs of one transaction.
BATCH: Final = 10
# What named hosts that were not at fault.
OWN: Final = ("expert_parallel_imbalance", "memory_fragmentation")


def backfill(connection: sa.Connection, after: str | None) -> str | None:
    """Add up one batch before `upgrade`; return after which job to go on, None at the end."""
    jobs = list(
        connection.scalars(
            sa.text("SELECT id FROM job WHERE id > :after ORDER BY id LIMIT :batch"),
            {"after": int(after or 0), "batch": BATCH},
        )
    )
    if not jobs:
        return None
    for job in jobs:
        connection.execute(sa.text("SELECT host_week_lock(:job)"), {"job": job})
    # What triggers have of them since is in it again.
    connection.execute(sa.text("DELETE FROM host_week WHERE job_id = ANY(:jobs)"), {"jobs": jobs})
    connection.execute(
        sa.text(
            """
            INSERT INTO host_week (project_id, job_id, week, host, sessions, ranks, slowdown,
                computing, first_seen, last_seen)
            SELECT project_id, job_id, host_week_of(received_at), host, count(*), max(ranks),
                max(slowdown), max(computing), min(received_at), max(received_at)
            FROM host_reading WHERE job_id = ANY(:jobs)
            GROUP BY project_id, job_id, host_week_of(received_at), host
            """
        ),
        {"jobs": jobs},
    )
    connection.execute(
        sa.text(
            """
            UPDATE report SET in_ledger = false WHERE in_ledger AND session_id IN (
                SELECT session_id FROM host_reading
                WHERE job_id = ANY(:jobs) AND cause = ANY(:own)
            )
            """
        ),
        {"jobs": jobs, "own": list(OWN)},
    )
    return str(jobs[-1])


def upgrade() -> None:
    # No incident of another job joins one that is no machine's.
    op.get_bind().execute(
        sa.text(
            """
            UPDATE alert_on_host SET over_at = now(), stirred_at = NULL FROM alert_incident
            WHERE alert_incident.id = alert_on_host.incident_id
                AND alert_on_host.incident_id = alert_on_host.lead_id
                AND alert_on_host.over_at IS NULL
                AND alert_incident.document->>'cause' = ANY(:own)
            """
        ),
        {"own": list(OWN)},
    )


def downgrade() -> None:
    """Leave everything: the version before counts readings one by one."""
