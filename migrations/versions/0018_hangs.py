"""Hangs that were sent, and the verdict on each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from alembic import op

if TYPE_CHECKING:
    from collections.abc import Sequence

revision: str = "0018"
down_revision: str | None = "0016"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

TABLES = """
CREATE TABLE hang (
    id uuid NOT NULL, job_id bigint NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(), changed_at timestamptz NOT NULL DEFAULT now(),
    content_sha256 bytea, over_at timestamptz, over_by text,
    kind text NOT NULL, sentence text NOT NULL, since timestamptz, ranks integer NOT NULL,
    waiting integer NOT NULL, culprits integer NOT NULL, confidence double precision NOT NULL,
    document bytea NOT NULL, project_id integer NOT NULL,
    CONSTRAINT pk_hang PRIMARY KEY (id),
    CONSTRAINT uq_hang_project_id_id UNIQUE (project_id, id),
    CONSTRAINT uq_hang_job_id_content_sha256 UNIQUE (job_id, content_sha256),
    CONSTRAINT ck_hang_kind CHECK (kind IN ('never_entered', 'device_stuck', 'silent', 'mismatch',
        'all_entered', 'nothing_pending')),
    CONSTRAINT fk_hang_project_id_job_id_job FOREIGN KEY (project_id, job_id)
        REFERENCES job (project_id, id) ON UPDATE CASCADE ON DELETE CASCADE
);
CREATE INDEX ix_hang_job_id_created_at ON hang (job_id, created_at);
CREATE INDEX ix_hang_project_id_created_at ON hang (project_id, created_at);
CREATE TABLE hang_file (
    hang_id uuid NOT NULL, kind text NOT NULL, rank integer NOT NULL, content bytea NOT NULL,
    project_id integer NOT NULL,
    CONSTRAINT pk_hang_file PRIMARY KEY (hang_id, kind, rank),
    CONSTRAINT ck_hang_file_kind
        CHECK (kind IN ('flight_recorder', 'py_spy', 'nccl_ras', 'process')),
    CONSTRAINT fk_hang_file_project_id_hang_id_hang FOREIGN KEY (project_id, hang_id)
        REFERENCES hang (project_id, id) ON UPDATE CASCADE ON DELETE CASCADE
);
-- Both are compressed.
ALTER TABLE hang ALTER COLUMN document SET STORAGE EXTERNAL;
ALTER TABLE hang_file ALTER COLUMN content SET STORAGE EXTERNAL;
"""


def upgrade() -> None:
    op.execute(TABLES)


def downgrade() -> None:
    """Drop all hangs, and the rules about them."""
    op.execute("DROP TABLE hang_file; DROP TABLE hang")
    op.execute("DELETE FROM alert_rule WHERE document #>> '{condition,kind}' = 'hang'")
