"""Archives of hangs that a worker reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from alembic import op

if TYPE_CHECKING:
    from collections.abc import Sequence

revision: str = "0029"
down_revision: str | None = "0028"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

TABLES = """
CREATE TABLE hang_upload (
    id uuid NOT NULL, job_id bigint NOT NULL, created_at timestamptz NOT NULL DEFAULT now(),
    content_sha256 bytea NOT NULL, state text NOT NULL, reason_code text, reason text,
    hang_id uuid, not_read jsonb NOT NULL DEFAULT '[]', project_id integer NOT NULL,
    CONSTRAINT pk_hang_upload PRIMARY KEY (id),
    CONSTRAINT uq_hang_upload_project_id_id UNIQUE (project_id, id),
    CONSTRAINT uq_hang_upload_job_id_content_sha256 UNIQUE (job_id, content_sha256),
    CONSTRAINT ck_hang_upload_state CHECK (state IN ('queued', 'reading', 'read', 'refused',
        'failed')),
    CONSTRAINT fk_hang_upload_project_id_job_id_job FOREIGN KEY (project_id, job_id)
        REFERENCES job (project_id, id) ON UPDATE CASCADE ON DELETE CASCADE
);
CREATE INDEX ix_hang_upload_project_id_created_at ON hang_upload (project_id, created_at);
CREATE TABLE hang_upload_part (
    upload_id uuid NOT NULL, part integer NOT NULL, content bytea NOT NULL,
    project_id integer NOT NULL,
    CONSTRAINT pk_hang_upload_part PRIMARY KEY (upload_id, part),
    CONSTRAINT fk_hang_upload_part_project_id_upload_id_hang_upload
        FOREIGN KEY (project_id, upload_id) REFERENCES hang_upload (project_id, id)
        ON UPDATE CASCADE ON DELETE CASCADE
);
-- It is compressed as it comes.
ALTER TABLE hang_upload_part ALTER COLUMN content SET STORAGE EXTERNAL;
"""


def upgrade() -> None:
    op.execute(TABLES)


def downgrade() -> None:
    """Forget what is not read yet."""
    op.execute("DELETE FROM task_run WHERE kind = 'read_hang'")
    op.execute("DROP TABLE hang_upload_part; DROP TABLE hang_upload")
