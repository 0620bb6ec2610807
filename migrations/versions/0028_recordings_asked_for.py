"""Sessions that are asked for, and what they and the pulse say of a notice."""

from __future__ import annotations

from typing import TYPE_CHECKING

from alembic import op

if TYPE_CHECKING:
    from collections.abc import Sequence

revision: str = "0028"
down_revision: str | None = "0026"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

TABLE = """
CREATE TABLE recording_request (
    id bigint GENERATED ALWAYS AS IDENTITY,
    job_id bigint NOT NULL, attempt integer NOT NULL, steps integer NOT NULL, reason text NOT NULL,
    asked_by text, asked_at timestamptz NOT NULL DEFAULT now(), until timestamptz NOT NULL,
    window_s double precision NOT NULL, handed_at timestamptz, handed integer NOT NULL DEFAULT 0,
    session_id uuid, project_id integer NOT NULL,
    CONSTRAINT pk_recording_request PRIMARY KEY (id),
    CONSTRAINT fk_recording_request_project_id_job_id_job FOREIGN KEY (project_id, job_id)
        REFERENCES job (project_id, id) ON UPDATE CASCADE ON DELETE CASCADE
);
CREATE INDEX ix_recording_request_job_id_asked_at ON recording_request (job_id, asked_at);
CREATE INDEX ix_recording_request_open ON recording_request (job_id, attempt)
    WHERE session_id IS NULL;
ALTER TABLE pulse_state ADD COLUMN pace bytea;
ALTER TABLE pulse_state ALTER COLUMN pace SET STORAGE EXTERNAL;
ALTER TABLE pulse_notice
    ADD COLUMN cleared_at timestamptz, ADD COLUMN fires_at timestamptz,
    ADD COLUMN request_id bigint, ADD COLUMN outcome text, ADD COLUMN session_id uuid,
    ADD COLUMN cause text NOT NULL DEFAULT '', ADD COLUMN baseline_ns double precision,
    ADD COLUMN step_ns double precision, ADD COLUMN after_ns double precision,
    ADD COLUMN lost_ns double precision NOT NULL DEFAULT 0,
    ADD CONSTRAINT ck_pulse_notice_outcome CHECK (outcome IN ('confirmed', 'explained', 'cleared',
        'unconfirmed'));
CREATE INDEX ix_pulse_notice_open ON pulse_notice (job_id) WHERE cleared_at IS NULL;
"""


def upgrade() -> None:
    op.execute(TABLE)


def downgrade() -> None:
    """Forget what was asked for, and what came of it."""
    op.execute(
        "DROP TABLE recording_request; ALTER TABLE pulse_state DROP COLUMN pace;"
        " DROP INDEX ix_pulse_notice_open; ALTER TABLE pulse_notice"
        " DROP COLUMN cleared_at, DROP COLUMN fires_at, DROP COLUMN request_id,"
        " DROP COLUMN outcome, DROP COLUMN session_id, DROP COLUMN cause, DROP COLUMN baseline_ns,"
        " DROP COLUMN step_ns, DROP COLUMN after_ns, DROP COLUMN lost_ns"
    )
