"""The token that owns an attempt of a job."""

from __future__ import annotations

from typing import TYPE_CHECKING

from alembic import op

if TYPE_CHECKING:
    from collections.abc import Sequence

revision: str = "0007"
down_revision: str | None = "0006"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None

TABLE = """
CREATE TABLE attempt_owner (
    job_id bigint NOT NULL, attempt integer NOT NULL, token_id uuid NOT NULL,
    project_id integer NOT NULL,
    CONSTRAINT pk_attempt_owner PRIMARY KEY (job_id, attempt),
    CONSTRAINT fk_attempt_owner_project_id_job_id_job FOREIGN KEY (project_id, job_id)
        REFERENCES job (project_id, id) ON UPDATE CASCADE ON DELETE CASCADE
)
"""


def upgrade() -> None:
    op.execute(TABLE)


def downgrade() -> None:
    op.execute("DROP TABLE attempt_owner")
