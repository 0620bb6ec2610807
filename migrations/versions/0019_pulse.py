"""Pulses: bodies in the inbox that are of no session, the state of detection, and notices."""

from __future__ import annotations

from typing import TYPE_CHECKING

from alembic import op

if TYPE_CHECKING:
    from collections.abc import Sequence

revision: str = "0019"
down_revision: str | None = "0018"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

INBOX = """
ALTER TABLE inbox
    ALTER COLUMN session_id DROP NOT NULL,
    ADD COLUMN job_id bigint,
    ADD COLUMN attempt integer,
    ADD CONSTRAINT ck_inbox_subject CHECK (CASE kind WHEN 'chunk' THEN session_id IS NOT NULL
        ELSE job_id IS NOT NULL AND attempt IS NOT NULL END),
    ADD CONSTRAINT fk_inbox_project_id_job_id_job FOREIGN KEY (project_id, job_id)
        REFERENCES job (project_id, id) ON UPDATE CASCADE ON DELETE CASCADE;
CREATE INDEX ix_inbox_pulse ON inbox (job_id, attempt, id) WHERE kind = 'pulse';
"""
TABLES = """
CREATE TABLE pulse_state (
    job_id bigint NOT NULL, attempt integer NOT NULL, advanced_at timestamptz, state bytea,
    rows bigint NOT NULL DEFAULT 0, counts jsonb NOT NULL DEFAULT '{}',
    claim_token uuid, lease_until timestamptz, tries integer NOT NULL DEFAULT 0,
    project_id integer NOT NULL,
    CONSTRAINT pk_pulse_state PRIMARY KEY (job_id, attempt),
    CONSTRAINT fk_pulse_state_project_id_job_id_job FOREIGN KEY (project_id, job_id)
        REFERENCES job (project_id, id) ON UPDATE CASCADE ON DELETE CASCADE
);
-- It is compressed, and written anew every few seconds.
ALTER TABLE pulse_state ALTER COLUMN state SET STORAGE EXTERNAL;
ALTER TABLE pulse_state SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);
CREATE TABLE pulse_notice (
    job_id bigint NOT NULL, attempt integer NOT NULL, number integer NOT NULL, kind text NOT NULL,
    ranks integer[] NOT NULL, hosts text[] NOT NULL, factor double precision,
    from_step bigint NOT NULL, noticed_step bigint NOT NULL, noticed_time_ns bigint NOT NULL,
    noticed_at timestamptz NOT NULL DEFAULT now(), cleared_step bigint, evidence jsonb NOT NULL,
    project_id integer NOT NULL,
    CONSTRAINT pk_pulse_notice PRIMARY KEY (job_id, attempt, number),
    CONSTRAINT ck_pulse_notice_kind CHECK (kind IN ('slow_rank', 'slow_job', 'spells', 'drift',
        'hang', 'silent')),
    CONSTRAINT fk_pulse_notice_project_id_job_id_job FOREIGN KEY (project_id, job_id)
        REFERENCES job (project_id, id) ON UPDATE CASCADE ON DELETE CASCADE
);
CREATE INDEX ix_pulse_notice_job_id_noticed_at ON pulse_notice (job_id, noticed_at);
"""


def upgrade() -> None:
    op.execute(INBOX)
    op.execute(TABLES)


def downgrade() -> None:
    """Drop all that was noticed, and the pulses that wait."""
    op.execute("DROP TABLE pulse_notice; DROP TABLE pulse_state")
    op.execute("DELETE FROM inbox WHERE kind = 'pulse'")
    op.execute(
        "ALTER TABLE inbox DROP COLUMN job_id, DROP COLUMN attempt,"
        " DROP CONSTRAINT IF EXISTS ck_inbox_subject, ALTER COLUMN session_id SET NOT NULL"
    )
